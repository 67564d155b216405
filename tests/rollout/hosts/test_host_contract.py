"""The host contract, on every kind of env source."""

from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from host_contract import CountedHostContract, HostContract
from test_vec_env import Count, DummyVecEnv

from counting_vector import CountingVectorEnv
from mock_envs import BasicMultiAgent
from swath.rollout.hosts.gymnasium import EnvListHost, MultiAgentHost
from swath.rollout.hosts.sources import Source, build
from swath.rollout.hosts.tensors import TensorHost
from swath.rollout.hosts.torchrl import EnvOptions
from swath.rollout.hosts.vector import AsVectorEnv, VectorHost
from swath.testing import OBSERVATIONS, Counting, CountingEnv, Script
from tensor_simulators import OfTensors

NESTED_ACTIONS = spaces.Dict(
    {
        "y": spaces.Tuple((spaces.Discrete(3, start=-1), spaces.Dict({"p": spaces.MultiBinary([2, 2])}))),
        "x": spaces.Box(0, 255, (2,), np.uint8),
    }
)
ACTIONS = [
    spaces.Box(-1, 2, (2, 3), np.float64),
    spaces.Box(0, 9, (), np.float32),
    spaces.MultiDiscrete(np.array([[2, 5], [3, 4]]), start=np.array([[0, 1], [2, -3]])),
    NESTED_ACTIONS,
]


def envs(counting, n=3):
    return [CountingEnv(i, counting) for i in range(n)]


def vector_env(mode, copy):
    """Return a maker of hosts of a vector env that stacks its last observations, and takes one seed for all."""
    return lambda counting: VectorHost(CountingVectorEnv(3, counting, autoreset_mode=mode, copy=copy))


def simulator(device):
    """Return a function of mode and copy, which returns a maker of hosts of tensors on a device."""

    def of_mode(mode, copy):
        def make(counting):
            env = OfTensors(CountingVectorEnv(3, counting, autoreset_mode=mode, copy=copy), device)
            return TensorHost(env, device=torch.device(device), first=env.reset())

        return make

    return of_mode


def sync_vector_env(mode, copy):
    """Return a maker of hosts of gymnasium's vector env, with one last observation and one seed per env."""

    def make(counting):
        fns = [lambda env=env: env for env in envs(counting)]
        return VectorHost(SyncVectorEnv(fns, autoreset_mode=mode, copy=copy))

    return make


def a_list(counting):
    return EnvListHost(envs(counting))


IN_PLACE = [Counting(observation=name, in_place=True) for name in ("vector", "nested")]
IN_VECTORS = [Counting(observation=name, action_space=NESTED_ACTIONS) for name in ("tuple", "nested")]
WAYS = [(AutoresetMode.SAME_STEP, True), *((mode, False) for mode in AutoresetMode)]
COUNTED = {
    **{f"list of {name}": (a_list, Counting(observation=name)) for name in OBSERVATIONS},
    **{f"list in place, {counting.observation}": (a_list, counting) for counting in IN_PLACE},
    **{f"list, actions {space}": (a_list, Counting(action_space=space)) for space in ACTIONS},
    "bare": (lambda counting: EnvListHost(envs(counting, 1), bare=True), Counting()),
    **{
        f"{kind.__name__} of {counting.observation}, {mode.name}, {copy=}": (kind(mode, copy), counting)
        for first, kind in enumerate((vector_env, sync_vector_env))
        for number, (mode, copy) in enumerate(WAYS)
        for counting in [IN_VECTORS[(first + number) % 2]]  # each pair of kind, way and observation
    },
    **{
        f"sync_vector_env, actions {space}": (sync_vector_env(*WAYS[0]), Counting(action_space=space))
        for space in ACTIONS
        if space.shape != ()
    },
}


class TestCountingEnvs(CountedHostContract):
    @pytest.fixture(params=COUNTED)
    def case(self, request):
        return COUNTED[request.param]

    @pytest.fixture
    def counting(self, case):
        return case[1]

    @pytest.fixture
    def make_host(self, case):
        return partial(*case)


class TestTensors(CountedHostContract):
    """Of the same vector env, whose arrays are tensors on a device."""

    @pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
    def device(self, request):
        return request.param

    @pytest.fixture(params=IN_VECTORS, ids=lambda counting: counting.observation)
    def counting(self, request):
        return request.param

    @pytest.fixture(params=WAYS, ids=lambda way: f"{way[0].name}, copy={way[1]}")
    def make_host(self, request, device, counting):
        return partial(simulator(device)(*request.param), counting)


class TestAsyncVectorEnv(CountedHostContract):
    """In its default mode; in the other modes it works as `SyncVectorEnv`."""

    n_steps = 15

    @pytest.fixture
    def counting(self):
        return Counting(observation="nested", script=Script((3, 2, 1)))

    @pytest.fixture
    def make_host(self, counting):
        return lambda: VectorHost(AsyncVectorEnv([partial(CountingEnv, i, counting) for i in range(2)]))


class TestCartPole(HostContract):
    @pytest.fixture(params=["native", "by id", "of Stable-Baselines3"])
    def make_host(self, request):
        return {
            "native": lambda: VectorHost(CartPoleVectorEnv(4)),
            "by id": lambda: EnvListHost([gym.make("CartPole-v1") for _ in range(3)]),
            "of Stable-Baselines3": lambda: VectorHost(AsVectorEnv(DummyVecEnv([Count] * 3))),  # by a stand-in
        }[request.param]


@pytest.mark.filterwarnings("ignore:.*precision lowered by casting to float32:UserWarning")
class TestEnvPool(HostContract):
    """Resets within the next step, by default; or on demand, with other metadata."""

    @pytest.fixture(params=[None, AutoresetMode.DISABLED])
    def make_host(self, request):
        envpool = pytest.importorskip("envpool")

        def make():
            env = envpool.make_gymnasium("CartPole-v1", num_envs=3, seed=5)
            if request.param is not None:
                env.metadata = {**env.metadata, "autoreset_mode": request.param}
            return VectorHost(env)

        return make


class TestAtari(HostContract):
    n_steps = 20

    @pytest.fixture(params=[AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP], ids=lambda mode: mode.name)
    def make_host(self, request):
        ale = pytest.importorskip("ale_py.vector_env")
        options = {"max_num_frames_per_episode": 60, "noop_max": 5, "num_threads": 1}
        return lambda: VectorHost(ale.AtariVectorEnv("pong", 2, autoreset_mode=request.param, **options))


class TestTorchRLEnvs(HostContract):
    """A single env, a batch, or separate envs."""

    @pytest.fixture(params=["one", "batch", "separate"])
    def make_host(self, request):
        envs = pytest.importorskip("torchrl.envs")
        cartpole, kind = partial(envs.GymEnv, "CartPole-v1"), request.param
        source = Source(cartpole, copies=3 if kind == "separate" else None)
        if kind == "batch":
            source = Source(lambda: envs.SerialEnv(3, cartpole))
        return lambda: build(source, EnvOptions(separate=kind == "separate"))


class TwoAgents(BasicMultiAgent):
    """Two agents that observe their step, and end together."""

    def __init__(self, length):
        super().__init__(2)
        self.envs = {
            agent: CountingEnv(agent, Counting(script=Script((length,), ("terminated",)))) for agent in range(2)
        }


class TestSeveralAgents(HostContract):
    @pytest.fixture
    def make_host(self):
        return lambda: MultiAgentHost([TwoAgents(length) for length in (3, 5)])


class TestPettingZoo(HostContract):
    @pytest.fixture(params=[None, 3])
    def make_host(self, request):
        simple = pytest.importorskip("mpe2.simple_spread_v3")
        return lambda: build(Source(partial(simple.parallel_env, max_cycles=7), copies=request.param), EnvOptions())
