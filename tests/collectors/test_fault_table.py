"""Every kind of env source, everything that an env may raise, every choice of what to do then."""

from functools import partial
from itertools import count

import pytest
from collector_toys import make_collector
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from swath.testing import Counting, CountingEnv, EnvBroke, Fault, Lives, Script
from swath.testing.checks import check_lives, joined, valid
from swath.testing.faults import FaultInjector

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
