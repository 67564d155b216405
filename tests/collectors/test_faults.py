"""Envs that raise: the error as its own type with a note, or another episode, or another env."""

import logging
from functools import partial
from itertools import count

import pytest
import torch
from collector_toys import LONG, Counts, make_collector, raising
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from counting_vector import CountingVectorEnv
from swath import Collector, MultiSyncCollector
from swath.testing import Counting, CountingEnv, CountingEnvs, EnvBroke, Fault, Lives, Script
from swath.testing.checks import check_lives, joined, valid
from swath.testing.faults import FaultInjector

IDS = ("collector", "traj_ids")


def drawn(collector, n):
    return torch.cat([collector.next() for _ in range(n)], -1)


# ---- raise


def test_an_error_leaves_as_its_own_type_with_one_note():
    with make_collector(raising(episode=1), envs_per_worker=2, seed=5) as collector:
        collector.increment_version()
        seed = collector.env[1].seeds[-1]
        with pytest.raises(EnvBroke, match="env 1 raised at step 4 of episode 1") as caught:
            collector.next()
        assert caught.value.__notes__ == [f"raised by env 1 (seed {seed}) of worker 0 (life 0, policy version 1)"]
        stats = collector.stats()
    assert stats["env_errors"] == 1
    assert stats["fragments_lost"] == 1
    assert stats["frames_discarded"] == 6
    assert stats["frames"] == 0


def stop(*_):
    raise StopIteration


@pytest.mark.usefixtures("fork_server")
@pytest.mark.parametrize("place", [None, "process"])
@pytest.mark.parametrize("whose", ["env", "hook"])
def test_a_stop_iteration_does_not_end_the_loop_as_if_the_run_were_complete(whose, place):
    class Stopping(CountingEnv):
        step = stop

    source = Stopping if whose == "env" else CountingEnv
    options = {"frames_per_batch": 10, "total_frames": 40, "post_collect_hook": stop if whose == "hook" else None}
    collector = (
        Collector(source, **options) if place is None else MultiSyncCollector([source] * 2, backend=place, **options)
    )
    with collector, pytest.raises(RuntimeError, match="StopIteration") as caught:
        list(collector)
    assert isinstance(caught.value.__cause__, StopIteration)


# ---- reset


def test_with_reset_only_that_env_begins_another_episode():
    with make_collector(raising(), Counts(), envs_per_worker=2, frames_per_batch=16, on_env_error="reset") as collector:
        batch = collector.next()
        stats = collector.stats()
    steps = batch["observation"]
    assert torch.equal(batch["hidden"], steps[..., 2:]), "so does the policy's memory of it, and no other's"
    assert batch.shape == (2, 8)
    assert steps[0, :, 2].tolist() == list(range(8))
    assert steps[1].tolist() == [[1, 0, 0], [1, 0, 1], [1, 0, 2], *([1, 1, i] for i in range(5))]
    assert batch["next", "truncated"][..., 0].nonzero().tolist() == [[1, 2]]
    assert batch["next", "done"][..., 0].nonzero().tolist() == [[1, 2]]
    assert not batch["next", "terminated"].any()
    assert batch["next", "observation"][1, 2].tolist() == [1, 0, 3]
    assert batch[IDS].tolist() == [[0] * 8, [1] * 3 + [2] * 5]
    assert (stats["env_errors"], stats["fragments_lost"], stats["frames"]) == (1, 0, 16)


def test_a_source_that_cannot_reset_one_env_is_rebuilt_with_the_marks_on_all():
    faults = [{1: [Fault("raise", step=4)]}, {}]

    def env():
        return CountingVectorEnv(2, LONG, faults=faults.pop(0))

    with make_collector(env, frames_per_batch=16, on_env_error="reset") as collector:
        batch = collector.next()
    assert batch["observation"][..., 2].tolist() == [[0, 1, 2, 0, 1, 2, 3, 4]] * 2
    assert batch["next", "truncated"][..., 0].nonzero().tolist() == [[0, 2], [1, 2]]


def test_an_episode_whose_last_good_row_was_delivered_ends_without_a_mark():
    with make_collector(raising(step=6), envs_per_worker=2, on_env_error="reset", max_frames_per_traj=100) as collector:
        td = drawn(collector, 2)
        stats = collector.stats()
    assert not td["next", "done"].any()
    assert td[IDS].tolist() == [[0] * 10, [1] * 5 + [2] * 5]
    assert td["step_count"][1, :, 0].tolist() == [*range(5), *range(5)]
    assert stats["episodes"] == 0


def test_three_failures_in_a_row_are_raised():
    faults = {1: [Fault("raise", episode=episode, step=1) for episode in (0, 1, 2)]}
    with make_collector(CountingEnvs(LONG, faults), envs_per_worker=2, on_env_error="reset") as collector:
        with pytest.raises(EnvBroke, match="step 1 of episode 2") as caught:
            collector.next()
        assert len(caught.value.__notes__) == 1
        assert collector.stats()["env_errors"] == 3
        assert collector.next().shape == (2, 5)


# ---- restart


def test_with_restart_the_source_is_rebuilt_in_another_life(caplog):
    envs = raising()
    with (
        caplog.at_level(logging.WARNING, "swath"),
        make_collector(envs, envs_per_worker=2, on_env_error="restart") as collector,
    ):
        batch = collector.next()
        stats = collector.stats()
        assert [env.closed for env in envs.made] == [1, 1, 0, 0]
        assert collector.env == envs.made[2:]
    assert batch["observation"][:, :, 0].tolist() == [[2] * 5, [3] * 5]
    assert batch[IDS].unique().tolist() == [1 << 32, (1 << 32) + 1]
    assert (stats["restarts"], stats["env_errors"], stats["fragments_lost"]) == (1, 1, 1)
    assert stats["frames_discarded"] == 6
    (record,) = caplog.records
    assert "EnvBroke" in record.getMessage()
    assert record.name.startswith("swath")


# ---- all that an env may raise, from each kind of source, with each choice of what to do then


T, N_DRAWS = 5, 4
COUNTING = Counting(observation="vector", script=Script(lengths=(6,)))
FAULTS = {
    "step": Fault("raise", episode=1, step=3),
    "first step": Fault("raise", episode=0, step=1),
    "reset": Fault("raise_at_reset", episode=1),
}


def maker(mishaps):
    """Numbers its envs; the first that comes to a fault fails, once."""
    numbers = count()
    return lambda: CountingEnv(next(numbers), COUNTING, mishaps)


def one_env(mishaps):
    return maker(mishaps), {}


def env_list(mishaps):
    return maker(mishaps), {"envs_per_worker": 2}


def vector(mode):
    return lambda mishaps: (partial(SyncVectorEnv, [maker(mishaps)] * 2, autoreset_mode=mode), {})


def torchrl_env(mishaps):
    envs, make = pytest.importorskip("torchrl.envs"), maker(mishaps)
    return lambda: envs.GymWrapper(make()), {}


def torchrl_list(mishaps):
    return torchrl_env(mishaps)[0], {"envs_per_worker": 2}


def torchrl_batch(mishaps):
    envs, make = pytest.importorskip("torchrl.envs"), torchrl_env(mishaps)[0]
    return lambda: envs.SerialEnv(2, [make] * 2), {}


IN_A_PROCESS = "list in a process"
SOURCES = {
    "one env": one_env,
    "list": env_list,
    IN_A_PROCESS: None,
    **{f"vector, {mode.name}": vector(mode) for mode in AutoresetMode},
    "TorchRL env": torchrl_env,
    "TorchRL envs": torchrl_list,
    "TorchRL batch": torchrl_batch,
}


@pytest.fixture(params=FAULTS)
def mishaps(request):
    return FaultInjector([FAULTS[request.param]])


@pytest.fixture(params=SOURCES)
def collect(request, mishaps, tmp_path):
    """Return a function that builds a collector that draws `T` steps of every env."""

    def make(on_env_error):
        if request.param == IN_A_PROCESS:  # each life of which has its own copy of the faults
            request.getfixturevalue("fork_server")
            fault = FAULTS[request.node.callspec.params["mishaps"]]
            (source,) = Lives(tmp_path, {0: [[fault]]}, 2, COUNTING).sources(1)
            options = {"envs_per_worker": 2, "env_processes": 1}
        else:
            source, options = SOURCES[request.param](mishaps)
        n_envs = 1 if request.param in ("one env", "TorchRL env") else 2
        return make_collector(source, frames_per_batch=T * n_envs, on_env_error=on_env_error, **options)

    return make


def require_whole(drawing, batches, **options):
    """Check that no frame is missing or repeated."""
    assert {batch.numel() for batch in batches} == {drawing.frames_per_batch}
    check_lives(batches, COUNTING, **options)


def test_raise_loses_the_fragment_and_the_next_one_is_whole(collect):
    with collect("raise") as drawing:
        with pytest.raises(EnvBroke) as caught:
            [drawing.next() for _ in range(N_DRAWS)]
        assert caught.value.__notes__
        batches = [drawing.next() for _ in range(2)]
        stats = drawing.stats()
    require_whole(drawing, batches, gaps=True)
    assert (stats["env_errors"], stats["fragments_lost"]) == (1, 1)


@pytest.mark.parametrize("choice", ["reset", "restart"])
def test_reset_and_restart_go_on_with_whole_batches(collect, choice):
    with collect(choice) as drawing:
        batches = [drawing.next() for _ in range(N_DRAWS)]
        stats = drawing.stats()
    require_whole(drawing, batches, gaps=choice == "restart")
    assert stats["env_errors"] == 1
    assert stats["fragments_lost"] == (choice == "restart")
    assert stats["frames"] == sum(int(valid(joined([batch])).sum()) for batch in batches)
