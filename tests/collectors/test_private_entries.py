"""Private entries that a TensorDict module writes are there in its next call, as in TorchRL's collectors."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from pettingzoo import ParallelEnv
from tensordict.nn import TensorDictModule, TensorDictModuleBase, TensorDictSequential
from torchrl.envs import GymWrapper, InitTracker, SerialEnv, TransformedEnv

from swath import Collector, Evaluator, evaluate_policy

FRAMES = 60


class Counted(gym.Env):
    """An env that rewards the number of the step within the episode as action; it may raise in its 20th step."""

    observation_space, action_space = spaces.Box(-1, 1, (1,)), spaces.Box(-100, 100, (1,))

    def __init__(self, raises_at=-1):
        self.raises_at, self.total = raises_at, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.length = 0, int(self.np_random.integers(2, 7))
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.t, self.total = self.t + 1, self.total + 1
        if self.total == self.raises_at:
            raise RuntimeError("broken")
        return np.zeros(1, np.float32), float(action[0] == self.t), self.t >= self.length, False, {}


class CountedAgents(ParallelEnv):
    """Two agents with the rewards of `Counted`."""

    metadata, possible_agents = {"name": "counted"}, ["a_0", "a_1"]

    def __init__(self):
        self.env = Counted()

    def observation_space(self, agent):
        return Counted.observation_space

    def action_space(self, agent):
        return Counted.action_space

    def reset(self, seed=None, options=None):
        self.agents = [*self.possible_agents]
        observation, _ = self.env.reset(seed=seed)
        return dict.fromkeys(self.agents, observation), {agent: {} for agent in self.agents}

    def step(self, actions):
        observation, _, ended, _, _ = self.env.step(np.zeros(1))
        agents, rewards = self.agents, {agent: float(action[0] == self.env.t) for agent, action in actions.items()}
        self.agents = [] if ended else agents
        parts = (
            dict.fromkeys(agents, observation),
            rewards,
            dict.fromkeys(agents, ended),
            dict.fromkeys(agents, False),
        )
        return (*parts, {agent: {} for agent in agents})


class Counter(TensorDictModuleBase):
    """A policy that acts with the number of the step, which it keeps in a private entry."""

    out_keys = ("action", "_count")

    def __init__(self, group=()):
        super().__init__()
        self.group, self.in_keys = group, ((*group, "observation"),)

    def forward(self, td):
        step, is_init = (td.get(key, torch.zeros(td.batch_size)) for key in ("_count", "is_init"))
        td["_count"] = step = step.masked_fill(is_init.reshape(td.batch_size).bool(), 0) + 1
        action = step.view(*td.batch_size, *[1] * (1 + len(self.group)))
        return td.set((*self.group, "action"), action.expand(td[self.in_keys[0]].shape))


def tracked():
    return TransformedEnv(GymWrapper(Counted()), InitTracker())


def serial():
    return TransformedEnv(SerialEnv(3, lambda: GymWrapper(Counted())), InitTracker())


@pytest.mark.parametrize("plans", [True, False])
@pytest.mark.parametrize(
    ("env", "options"),
    [
        (Counted, {}),
        (Counted, {"envs_per_worker": 3}),
        (lambda: gym.vector.SyncVectorEnv([Counted] * 3), {}),
        (lambda: gym.vector.SyncVectorEnv([Counted] * 3, autoreset_mode=gym.vector.AutoresetMode.SAME_STEP), {}),
        (Counted, {"envs_per_worker": 3, "env_processes": 2}),
        (lambda: Counted(raises_at=20), {"on_env_error": "reset"}),
        (tracked, {}),
        (tracked, {"envs_per_worker": 3}),
        (serial, {}),
    ],
    ids=[
        "gymnasium",
        "several",
        "vector",
        "same step",
        "processes",
        "raising",
        "torchrl",
        "torchrl, several",
        "serial",
    ],
)
def test_the_next_call_has_them(fork_server, env, options, plans):
    with Collector(
        env, Counter(), frames_per_batch=FRAMES, total_frames=2 * FRAMES, plans=plans, **options
    ) as collector:
        batches = [*collector]
    for batch in batches:
        valid = batch.get(("collector", "mask"), torch.ones(batch.shape, dtype=torch.bool))
        assert valid.sum() > FRAMES / 2
        assert batch["next", "reward"][valid].all()
        assert not any(key.startswith("_") for key in batch.keys())  # noqa: SIM118
        assert ("is_init" in batch) == (env in (tracked, serial))


@pytest.mark.parametrize(
    "options",
    [{}, {"envs_per_worker": 3}, {"envs_per_worker": 3, "env_processes": 2}],
    ids=["one", "several", "processes"],
)
def test_the_next_call_has_them_in_pettingzoo(fork_server, options):
    with Collector(
        CountedAgents, Counter(("a",)), frames_per_batch=FRAMES, total_frames=2 * FRAMES, **options
    ) as collector:
        batches = [*collector]
    assert [batch["next", "a", "reward"].sum() for batch in batches] == [2 * FRAMES, 2 * FRAMES]


@pytest.mark.parametrize("env", [Counted, tracked])
@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("deterministic", [True, False])
def test_the_next_call_has_them_in_evaluations(env, n_envs, deterministic):
    options = {"deterministic": deterministic, "return_episode_rewards": True}
    returns, lengths = evaluate_policy(Counter(), [env] * n_envs, 12, **options)
    assert returns == lengths
    assert len(set(lengths)) > 1


class Total(Counter):
    """A policy that ignores `is_init`: it counts through the ends of episodes."""

    def forward(self, td):
        td["_count"] = td.get("_count", torch.zeros(td.batch_size)) + 1
        return td.set("action", td["_count"].unsqueeze(-1))


@pytest.mark.parametrize("plans", [True, False])
@pytest.mark.parametrize("env", [Counted, tracked])
def test_a_reset_of_all_envs_forgets_them(env, plans):
    with Collector(env, Total(), frames_per_batch=FRAMES, total_frames=-1, plans=plans) as collector:
        first, second = collector.next(), collector.next()
        collector.reset()
        third = collector.next()
    steps = torch.arange(1, FRAMES + 1)
    assert first["action"].flatten().tolist() == third["action"].flatten().tolist() == steps.tolist()
    assert second["action"].flatten().tolist() == (steps + FRAMES).tolist()


@pytest.mark.parametrize("env", [Counted, tracked])
@pytest.mark.parametrize("exploration", ["deterministic", "random"])
def test_each_evaluation_begins_without_them(env, exploration):
    options = {"num_trajectories": 3, "num_envs": 3, "seed": 1, "exploration_type": exploration}
    with Evaluator(env, Total(), **options) as evaluator:
        results = [evaluator.evaluate() for _ in range(2)]
    assert results[0].returns.tolist() == results[1].returns.tolist() == results[0].lengths.tolist()


class Unsteady(Counter):
    """A policy whose private entries are there in some steps only, or are no tensors."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind

    def forward(self, td):
        if self.kind == "text":
            td.set_non_tensor("_text", td.get("_text", "") + "a")
        elif self.kind == "others":
            td["_other" if "_count" in td else "_count"] = torch.ones(td.batch_size)
        elif "_count" in td:
            del td["_count"]
        else:
            td["_count"] = torch.ones(td.batch_size)
        return td.set("action", torch.full(td["observation"].shape, float("_count" in td)))


@pytest.mark.parametrize("plans", [True, False])
@pytest.mark.parametrize(("kind", "actions"), [("text", [0, 0, 0]), ("others", [1, 1, 1]), ("deleted", [1, 0, 1])])
@pytest.mark.parametrize(
    ("env", "options"),
    [(Counted, {}), (Counted, {"envs_per_worker": 2}), (tracked, {}), (serial, {})],
    ids=["gymnasium", "several", "torchrl", "serial"],
)
def test_they_may_come_and_go(env, options, kind, actions, plans):
    tanh = TensorDictModule(torch.tanh, ["observation"], ["same"])
    policy = TensorDictSequential(tanh, Unsteady(kind))
    with Collector(env, policy, frames_per_batch=FRAMES, total_frames=FRAMES, plans=plans, **options) as collector:
        batch = collector.next()
    assert batch["action"].reshape(-1, batch.shape[-1])[0, :3].tolist() == actions
