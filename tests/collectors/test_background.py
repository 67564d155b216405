"""Background mode: a thread that writes to the replay buffer until it is stopped."""

import pytest
import torch
from collector_toys import Always, Memory, Signalling, make_collector

from swath.errors import WorkerLate
from toys import end


def finished(collector):
    """Wait until the thread has ended."""
    end(collector._background._thread)
    assert not collector.is_running()


def test_start_needs_a_buffer():
    with make_collector() as collector, pytest.raises(RuntimeError, match="pass replay_buffer="):
        collector.start()


def test_it_collects_until_the_total():
    buffer = Memory()
    with make_collector(replay_buffer=buffer, total_frames=50) as collector:
        assert collector.start() is None
        finished(collector)
        assert buffer.frames == collector.stats()["frames"] == 50
        assert collector.next() is None
        assert list(collector) == []


def test_an_exception_in_the_pause_resumes():
    buffer = Signalling()
    with make_collector(replay_buffer=buffer) as collector:
        collector.start()
        with pytest.raises(ZeroDivisionError), collector.pause():
            1 / 0  # noqa: B018
        buffer.wait_for(len(buffer.written) + 2)


def test_a_pause_without_a_running_thread_does_nothing():
    with make_collector(replay_buffer=Memory()) as collector:
        with collector.pause(), collector.pause(resume=False):
            assert not collector.is_running()
        assert collector.next() is None


def test_a_pause_that_takes_too_long_raises_and_collection_goes_on():
    buffer = Signalling(permits=0)
    with make_collector(replay_buffer=buffer) as collector:
        collector.start()
        buffer.wait_for_offer(1)
        with (
            pytest.raises(WorkerLate, match=r"was not written within .* s; collection g") as caught,
            collector.pause(0.01),
        ):
            pass
        assert caught.value.deadline == 0.01
        assert caught.value.workers == (0,)
        assert isinstance(caught.value, TimeoutError)
        buffer.permit(10**6)
        buffer.wait_for(2)


WAYS = {
    "update": lambda collector: collector.update_policy_weights_(),
    "pause": lambda collector: collector.pause().__enter__(),
    "start": lambda collector: collector.start(),
    "state_dict": lambda collector: collector.state_dict(),
    "draw": lambda collector: collector.next(),
    "iter": lambda collector: next(iter(collector)),
}


@pytest.mark.parametrize("action", WAYS.values(), ids=WAYS)
def test_an_error_stops_it_is_kept_shown_and_raised_once(action):
    buffer = Memory(raises_at=2)
    with make_collector(replay_buffer=buffer) as collector:
        collector.start()
        finished(collector)
        stats = collector.stats()
        assert stats["running"] is False
        assert stats["error"] == "OSError: disk full"
        with pytest.raises(OSError, match="disk full") as caught:
            action(collector)
        assert "raised by extend() of the replay buffer" in caught.value.__notes__
        assert "error" not in collector.stats()
        collector.state_dict()
        collector.start()
        assert collector.is_running()


def test_in_the_background_a_snapshot_acts():
    policy, buffer = Always(1), Signalling()
    with make_collector(policy=policy, replay_buffer=buffer) as collector:
        collector.start()
        with torch.no_grad():
            policy.weight.fill_(2)
        buffer.wait_for(3)
        with collector.pause():
            n = len(buffer.written)
            assert all(bool((td["action"] == 1).all()) for td in buffer.written), "training reached the workers"
            collector.update_policy_weights_()
            with torch.no_grad():
                policy.weight.fill_(0)
            assert collector.state_dict()["policy_state_dict"]["weight"] == 2
        buffer.wait_for(n + 2)
        with collector.pause():
            assert bool((buffer.written[n]["action"] == 2).all())
            assert bool((buffer.written[n]["collector", "policy_version"] == 1).all())
            collector.update_policy_weights_({"weight": torch.tensor(1.0)})
            n = len(buffer.written)
            assert policy.weight == 0, "the user's module is only read"
        buffer.wait_for(n + 1)
        with collector.pause(resume=False):
            assert bool((buffer.written[n]["action"] == 1).all())
        collector.next()
        assert bool((buffer.written[-1]["action"] == 0).all()), "within draws the user's own module acts"
        collector.start()
        assert collector.policy is policy
