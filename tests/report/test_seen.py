import math

import pytest
from seen_toys import ALONE, of_fleet, of_worker

from swath.report.seen import WINDOW_S, Sight, WorkerSeen, numbers_of


def test_a_fleet_is_seen_with_every_worker():
    seen = Sight().look(of_fleet(2, **of_worker(1, state="restarting", life=2)), now=0.0)
    assert (seen.alive, seen.workers_up, seen.staleness) == (2, "2 of 2 workers", 1)
    assert seen.workers == (
        WorkerSeen(0, "up", life=0, frames=50, rate=0.0, version=2, staleness=1),
        WorkerSeen(1, "restarting", life=2, frames=50, rate=0.0, version=2, staleness=1),
    )


def test_a_collector_in_this_process_has_no_workers_to_show():
    seen = Sight().look(ALONE, now=0.0)
    assert (seen.alive, seen.workers, seen.workers_up) == (None, (), "")
    assert (seen.frames, seen.version) == (100, 3)
    assert math.isnan(seen.episode_return)


def test_rates_are_over_the_last_seconds():
    sight = Sight()
    for second in range(21):
        frames = 100 + 10 * second if second <= 10 else 200
        seen = sight.look(of_fleet(1, frames=frames, **of_worker(0, frames=3 * second)), now=float(second))
        if second == 10:
            assert (seen.rate, seen.workers[0].rate) == (10.0, 3.0)
    assert WINDOW_S == 10.0
    assert (seen.rate, seen.workers[0].rate) == (0.0, 3.0)


def test_rates_survive_pauses_of_the_viewer_and_counts_that_begin_anew():
    sight = Sight()
    sight.look({**ALONE, "frames": 100}, now=0.0)
    assert sight.look({**ALONE, "frames": 400}, now=100.0).rate == 3.0
    assert sight.look({**ALONE, "frames": 0}, now=101.0).rate == 0.0


def test_a_worker_that_joins_is_seen_from_its_first_frame():
    sight = Sight()
    sight.look(of_fleet(1), now=0.0)
    assert sight.look(of_fleet(2), now=5.0).workers[1].rate == 10.0


@pytest.mark.parametrize(("seconds", "waited", "share"), [(4.0, 1.0, 0.25), (4.0, 4.5, 1.0), (0.0, 0.0, math.nan)])
def test_waiting_is_a_share_of_the_time_since_the_first_draw(seconds, waited, share):
    seen = Sight().look({**ALONE, "seconds": seconds, "seconds_waiting": waited}, now=0.0)
    assert seen.waiting == pytest.approx(share, nan_ok=True)


def test_time_left_is_known_where_the_run_has_an_end():
    assert Sight().look(ALONE, now=0.0).seconds_left == math.inf
    assert Sight().look({**ALONE, "total_frames": 200}, now=0.0).seconds_left == 4.0
    assert Sight().look({**ALONE, "total_frames": 200, "fps": 0.0}, now=0.0).seconds_left == math.inf


@pytest.mark.parametrize(
    ("facts", "share", "progress"),
    [
        (ALONE, None, "100"),
        ({**ALONE, "total_frames": 1000}, 0.1, "100 of 1,000"),
        ({**ALONE, "total_frames": 90}, 1.0, "100 of 90"),
    ],
)
def test_how_far_it_is_is_known_where_the_run_has_an_end(facts, share, progress):
    seen = Sight().look(facts, now=0.0)
    assert (seen.share, seen.progress) == (share, progress)


def test_trouble_is_said_in_words():
    facts = of_fleet(restarts=1, workers_lost=2, late=3, fragments_lost=1, env_errors=1200, batches_dropped=1)
    assert Sight().look(facts, now=0.0).trouble == (
        "1 restart",
        "2 workers lost",
        "3 too late",
        "1 fragment lost",
        "1,200 env errors",
        "1 fragment too old",
    )
    assert Sight().look(of_fleet(), now=0.0).trouble == ()


def test_what_cannot_go_wrong_need_not_be_among_the_facts():
    facts = of_fleet(restarts=1)
    del facts["batches_dropped"]
    assert Sight().look(facts, now=0.0).trouble == ("1 restart",)


def test_sinks_get_the_numbers_among_the_facts():
    facts = {"frames": 3, "fps": 1.5, "running": True, "error": "no", "worker_0/state": "up", "worker_0/life": 0}
    assert numbers_of(facts) == {"frames": 3, "fps": 1.5, "running": 1, "worker_0/life": 0}
    assert not isinstance(numbers_of(facts)["running"], bool)
