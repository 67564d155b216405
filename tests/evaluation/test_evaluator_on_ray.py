"""Evaluations on Ray: placement, deaths, and a cluster that is gone."""

import pytest
from eval_mischief import Broke, Mischief, evaluator

import ray_cluster
from swath.errors import PlacementFailed, WorkerLate, WorkerLost
from toys import first_in_time


@pytest.fixture(scope="module")
def truth():
    with evaluator() as ev:
        return ev.evaluate().returns.tolist()


def call_until_it_fails(ray, actor):
    while True:
        ray.get(actor.__ray_ready__.remote())


@pytest.mark.usefixtures("lent_actors")
def test_exceptions_and_deaths_do_not_change_the_numbers(tmp_path, truth):
    ray = ray_cluster.up()
    mischief = Mischief.at(tmp_path)
    with evaluator(mischief, "ray") as ev:
        mischief.order("step", "raise")
        with pytest.raises(Broke) as raised:
            ev.evaluate()
        notes = "\n".join(raised.value.__notes__)
        assert "backend 'ray'" in notes
        assert "remote traceback" in notes
        mischief.order("step", "kill")
        result = ev.evaluate()
        assert (result.returns.tolist(), result.retries) == (truth, 1)
        actor = ev._service._workers._fleet.handle(0).actor
        ray.kill(actor)
        with pytest.raises(ray.exceptions.ActorDiedError):
            call_until_it_fails(ray, actor)
        result = ev.evaluate()
        assert (result.returns.tolist(), result.retries) == (truth, 0)
        counts = ev.stats()
        assert [counts[name] for name in ("accepted", "completed", "errors", "retries")] == [3, 2, 1, 1]


@pytest.mark.usefixtures("lent_actors")
def test_a_hang_is_an_error_and_the_next_evaluation_works(tmp_path, truth):
    mischief = Mischief.at(tmp_path)
    with evaluator(mischief, "ray", retries=0, timeout_s=2.0) as ev:
        mischief.order("policy", "hang")
        with pytest.raises(WorkerLate):
            ev.evaluate()
        assert first_in_time(WorkerLate, ev.evaluate).returns.tolist() == truth


def test_a_worker_without_room_is_an_error_with_the_free_resources_and_is_tried_again():
    ray_cluster.up()
    with evaluator(None, "ray", num_gpus=1, placement_timeout_s=0.5) as ev:
        for _ in range(2):
            message = r"(?s)placement_timeout_s=0\.5.*num_gpus=1.*CPU.*num_gpus=0"
            with pytest.raises(PlacementFailed, match=message) as raised:
                ev.evaluate()
            assert (raised.value.asked, "CPU" in raised.value.available) == ("num_gpus=1", True)
        ev.trigger_eval()
        ev.shutdown()
        assert not ev.pending


def test_workers_of_a_lost_ray_are_lost_and_the_next_evaluation_uses_the_running_ray(truth):
    ray = ray_cluster.up()
    with evaluator(None, "ray", retries=0) as ev:
        assert ev.evaluate().returns.tolist() == truth
        fleet = ev._service._workers._fleet
        actor = fleet.handle(0).actor
        fleet._backend._session = ("another node", "another job")
        with pytest.raises(WorkerLost, match="Ray was restarted"):
            ev.evaluate()
        assert ev.evaluate().returns.tolist() == truth
    ray.kill(actor)
