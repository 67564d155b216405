"""Envs, policies, workers and batches that tests of rollout workers share."""

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from torch import nn

from mock_envs import MockEnv, MultiAgentCartPole
from swath.rollout_workers import (
    AlgorithmConfig,
    MultiAgentBatch,
    MultiAgentEnv,
    Policy,
    PPOTorchPolicy,
    RandomPolicy,
    RolloutWorker,
    SampleBatch,
)
from swath.rollout_workers.batches.names import optional_views
from swath.testing.counting import ENDLESS, Counting, CountingEnvs, Script


class Foreseen(Policy):
    """Acts by the step that the observation tells of, and notes how many rows it was asked for."""

    looks_at_episodes = False

    def __init__(self, observation_space, action_space, config):
        super().__init__(observation_space, action_space, config)
        self.view_requirements = optional_views()
        self.asked, self.explored = [], []

    def compute_actions(self, obs_batch, state_batches=None, **kwargs):
        self.asked.append(len(obs_batch))
        self.explored.append(kwargs["explore"])
        steps = np.asarray(obs_batch)[:, -1].astype(np.int64)
        return steps % 3, [], {"twice": 2.0 * steps}


LONG = Counting(script=Script((ENDLESS,)))


class CountingCreator(CountingEnvs):
    """What makes counting envs for a worker."""

    def __call__(self, context):
        return super().__call__()


def counting_worker(counting=LONG, faults=None, policy=Foreseen, **settings):
    """A worker whose envs count; its `env_creator` knows them."""
    settings = {"num_envs_per_env_runner": 3, "rollout_fragment_length": 4, **settings}
    config = AlgorithmConfig().update_from_dict({"delay_between_sub_environment_restarts_s": 0.0, **settings})
    return RolloutWorker(env_creator=CountingCreator(counting, faults), default_policy_class=policy, config=config)


def made_of(make, policy=Foreseen, **settings):
    """A worker with envs that `make` makes."""
    config = AlgorithmConfig().update_from_dict(settings)
    return RolloutWorker(env_creator=lambda _: make(), default_policy_class=policy, config=config)


def waiting_steps(worker):
    """Discard the env steps that were not handed out; return their number."""
    before = worker.counters["env_steps_discarded"]
    worker.sampler.discard_waiting()
    return worker.counters["env_steps_discarded"] - before


SMALL = {"model": {"fcnet_hiddens": [4]}, "rollout_fragment_length": 10}
DEFAULT = "default_policy"


def cartpole(context=None):
    return gym.make("CartPole-v1")


def learner(policy=PPOTorchPolicy, **settings):
    """A worker that can learn."""
    return made_of(cartpole, policy, **{**SMALL, "seed": 3, **settings})


def mock(**arguments):
    """A worker with envs of five steps, whose policy draws."""
    return RolloutWorker(
        **{"env_creator": lambda context: MockEnv(5, context), "default_policy_class": RandomPolicy, **arguments}
    )


def bare(**arguments):
    """A worker without envs."""
    space = spaces.Discrete(2)
    defaults = {"default_policy_class": RandomPolicy, "spaces": {DEFAULT: (space, space)}}
    return RolloutWorker(**{**defaults, **arguments})


def two(**settings):
    """A worker with two policies, of which the only agent of its env uses the first."""
    first = {"policies": ["a", "b"], "policy_mapping_fn": lambda agent_id, *_, **__: "a", "seed": 3}
    return made_of(lambda: MultiAgentCartPole({"num_agents": 1}), PPOTorchPolicy, **{**SMALL, **first, **settings})


REFUSED_POLICIES = {
    "an id that is taken": (lambda w: w.add_policy("a", RandomPolicy), KeyError, "taken|already"),
    "no class": (lambda w: w.add_policy("new"), ValueError, "exactly one"),
    "class and object": (lambda w: w.add_policy("new", RandomPolicy, object()), ValueError, "exactly one"),
    "no class, but 5": (lambda w: w.add_policy("new", 5), TypeError, "policy_cls=5 must be a class"),
    "a class as object": (lambda w: w.add_policy("new", policy=RandomPolicy), TypeError, "an object of one"),
    "a module": (lambda w: w.add_policy("new", RandomPolicy, module_spec=1), ValueError, "module_spec"),
    "added with a mapping": (lambda w: w.add_policy("new", RandomPolicy, policy_mapping_fn=3), ValueError, "=3"),
    "added to train": (lambda w: w.add_policy("new", RandomPolicy, policies_to_train="a"), TypeError, "'a'"),
    "an unknown id is removed": (lambda w: w.remove_policy(policy_id="unknown"), ValueError, "unknown"),
    "removed with a mapping": (lambda w: w.remove_policy(policy_id="a", policy_mapping_fn=3), ValueError, "=3"),
    "removed with learners": (lambda w: w.remove_policy(policy_id="a", policies_to_train=3), TypeError, "3"),
    "a mapping": (lambda w: w.set_policy_mapping_fn(3), ValueError, "policy_mapping_fn=3"),
    "a str to train": (lambda w: w.set_is_policy_to_train("a"), TypeError, "'a'"),
    "none to train": (lambda w: w.set_is_policy_to_train(None), TypeError, "None"),
}
"""What cannot be done to a worker or a set that has a policy "a"."""


def spaces_of(env=None):
    env = env or MockEnv(5)
    return {"observation_space": env.observation_space, "action_space": env.action_space}


def shifted(weights, by=1.0):
    """Return other weights of equal shapes."""
    return {pid: {name: array + np.float32(by) for name, array in arrays.items()} for pid, arrays in weights.items()}


def same(first, second):
    """Return whether two dicts of arrays are equal, bit for bit."""
    return first.keys() == second.keys() and all(np.array_equal(first[name], second[name]) for name in first)


def alike(first, second):
    """Return whether weights by policy are equal, bit for bit."""
    return first.keys() == second.keys() and all(same(first[pid], second[pid]) for pid in first)


def by_parity(agent, episode):
    return f"p{agent % 2}"


class Counter(Policy):
    """Answers 0, 1, 0, 1, … by the row of the call; keeps the observations of each call."""

    wanted = ()

    def __init__(self, observation_space, action_space, config):
        super().__init__(observation_space, action_space, config)
        self.view_requirements = optional_views(*self.wanted)
        self.asked = []

    def compute_actions(self, obs_batch, state_batches=None, **kwargs):
        self.asked.append(np.array(obs_batch))
        n = len(obs_batch)
        return np.arange(n) % 2, [], {"asked": np.full(n, len(self.asked))}


TWO = {"p0": Counter, "p1": Counter}


class Agents(MultiAgentEnv):
    """Agents see their step, and are paid 1; `hook(env, answer)` may change what is returned. Keeps the actions."""

    def __init__(self, num=2, length=5, action_space=None, hook=lambda env, answer: None):
        self.agents, self.length, self.hook = list(range(num)), length, hook
        self.observation_space = spaces.Box(0, 100, (1,), np.float32)
        self.action_space = action_space or spaces.Discrete(3)
        self.episode, self.got = -1, []
        super().__init__()

    def reset(self, *, seed=None, options=None):
        self.at, self.episode = 0, self.episode + 1
        obs, *_, infos = self._answer()
        return obs, infos

    def step(self, action_dict):
        self.got.append(action_dict)
        self.at += 1
        return self._answer()

    def _answer(self):
        observations = {agent: np.float32([self.at]) for agent in self.agents}
        flags = {"__all__": self.at == self.length}, {"__all__": False}
        answer = [observations, dict.fromkeys(self.agents, 1.0), *flags, {}]
        self.hook(self, answer)
        return answer


class Troupe(RolloutWorker):
    """A worker with envs that `make` makes, policies by id and `mapping(agent, episode)`; `built` are all its envs."""

    def __init__(self, make, num_envs=1, policies=None, mapping=None, callbacks=None, **config):
        classes = policies or {"default_policy": Counter}
        settings = AlgorithmConfig().update_from_dict({"num_envs_per_env_runner": num_envs, **config})
        settings.multi_agent(policies={pid: (kind, None, None, {}) for pid, kind in classes.items()})
        if mapping is not None:
            settings.multi_agent(policy_mapping_fn=lambda agent, episode, **kwargs: mapping(agent, episode))
        if callbacks is not None:
            settings.callbacks(lambda: callbacks)
        self.built = []
        super().__init__(env_creator=lambda context: self.built.append(make()) or self.built[-1], config=settings)

    @property
    def made(self):
        return self.envs.get_sub_environments()


BOX, CHOICE = spaces.Box(-10, 10, (3,)), spaces.Discrete(2)
CONFIG = {"seed": 0, "__policy_id": "p", "model": {"fcnet_hiddens": [16]}}


def ppo(action_space=CHOICE, observation_space=BOX, cls=PPOTorchPolicy, **config):
    return cls(observation_space, action_space, {**CONFIG, **config})


def batch_for(policy, n=60, seed=0):
    """Rows that the policy acted in, with made-up advantages and targets, which have no relation to its values."""
    draw = np.random.default_rng(seed)
    obs = draw.normal(size=(n, 3)).astype(np.float32)
    torch.manual_seed(seed)
    actions, _, extra = policy.compute_actions(obs, explore=True)
    names = ("advantages", "value_targets", "rewards")
    columns = {name: draw.normal(size=n).astype(np.float32) for name in names}
    return SampleBatch({"obs": obs, "actions": actions, **extra, **columns}, _num_grad_updates=0)


class Adder(nn.Module):
    """Remembers the sum of what it saw; its outputs are linear in that."""

    def __init__(self, observation_space, action_space, num_outputs, model_config):
        super().__init__()
        self.out, self.value = nn.Linear(3, num_outputs), nn.Linear(3, 1)

    def get_initial_state(self):
        return [np.zeros(3, np.float32), {"steps": torch.zeros(())}]

    def forward(self, obs, states, seq_lens):
        rows = obs.reshape(len(seq_lens), -1, 3)
        summed = states[0].unsqueeze(1) + rows.cumsum(1)
        flat = summed.reshape(-1, 3)
        last = summed[torch.arange(len(seq_lens)), seq_lens.long() - 1]
        after = [last, {"steps": states[1]["steps"] + seq_lens}]
        return self.out(flat), self.value(flat), after


def recurrent(**config):
    return ppo(model={"custom_model": Adder}, **config)


def episodes():
    """Two episodes of three and two rows, with nested columns and infos."""
    return SampleBatch(
        {
            "obs": {"x": np.arange(5.0), "y": (np.arange(5), np.arange(10).reshape(5, 2))},
            "rewards": np.array([0.0, 1.0, 2.0, 3.0, 4.0], dtype=np.float32),
            "terminateds": np.array([0, 0, 1, 0, 0], dtype=bool),
            "truncateds": np.array([0, 0, 0, 0, 1], dtype=bool),
            "eps_id": np.array([7, 7, 7, 3, 3]),
            "infos": [{"row": i} for i in range(5)],
        },
        _num_grad_updates=2,
        _is_training=True,
    )


def sequences(lengths=(2, 3, 1), padded_to=None):
    """Return rows 0, 1, … in sequences; the state before row i is i, if the batch has it."""
    n, starts = sum(lengths), np.cumsum([0, *lengths[:-1]])
    columns = {"a": np.arange(n), "b": {"c": np.arange(n) + 10}, "infos": [{"row": i} for i in range(n)]}
    batch = SampleBatch(**columns, state_in_0=starts, state_out_0=np.arange(n) + 1, seq_lens=lengths)
    return batch if padded_to is None else batch.right_zero_pad(padded_to)


def plain(value):
    """Convert a value to lists, dicts and numbers."""
    if isinstance(value, MultiAgentBatch):
        return value.count, plain(value.policy_batches)
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(map(plain, value))
    return value.tolist() if isinstance(value, np.ndarray | np.generic | torch.Tensor) else value
