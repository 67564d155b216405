"""Values that are computed for many rows at once: the same as with each step, and of the weights that acted."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from agent_toys import Troupe
from policy_batches import ppo, recurrent
from sampling_toys import made_of
from torch import nn

from swath.rollout_workers import PGTorchPolicy, PPOTorchPolicy, SampleBatch, make_multi_agent
from swath.rollout_workers.sampling import values
from swath.testing.envs import MockVectorEnv

OBS = np.random.default_rng(0).normal(size=(9, 3)).astype(np.float32)
SEEDED = {"seed": 3, "model": {"fcnet_hiddens": [8]}, "rollout_fragment_length": 40, "num_envs_per_env_runner": 3}


class AtEachStep(PPOTorchPolicy):
    """Acts in a way of its own, as far as a worker can know."""

    def compute_actions(self, *args, **kwargs):
        return super().compute_actions(*args, **kwargs)


class Counted(PPOTorchPolicy):
    """Counts the rows that its critic is asked for."""

    def __init__(self, *args):
        super().__init__(*args)
        self.asked = []
        value = self.model.value
        self.model.value = lambda obs, **given: self.asked.append(len(obs)) or value(obs, **given)


class Walk(gym.Env):
    """An episode of some steps, which ends by an error if `fails` says so.

    Args:
        length: of an episode.
        fails: at this step of the first episode; 0 never.
    """

    observation_space, action_space = gym.spaces.Box(0, 100, (2,), np.float32), gym.spaces.Discrete(2)

    def __init__(self, length=25, fails=0):
        self.length, self.fails = length, fails

    def _see(self):
        return np.array([self.at, self.length], np.float32) / 10

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = 0
        return self._see(), {}

    def step(self, action):
        self.at += 1
        if self.at == self.fails:
            self.fails = 0
            raise ArithmeticError("lost the way")
        return self._see(), 1.0, self.at == self.length, False, {}


def lone(policy=PPOTorchPolicy, make=Walk, **settings):
    return made_of(make, policy, **{**SEEDED, **settings})


def several(policy=PPOTorchPolicy, make=Walk, **settings):
    env = make_multi_agent(lambda config: make())
    ids = {"p0": policy, "p1": policy}
    settings = {**SEEDED, **settings}
    n = settings.pop("num_envs_per_env_runner")
    return Troupe(lambda: env({"num_agents": 4}), n, ids, lambda agent, episode: f"p{agent % 2}", **settings)


KINDS = {"one agent": lone, "several agents": several}


def parts(batch):
    return {"default_policy": batch} if isinstance(batch, SampleBatch) else batch.policy_batches


def critic(policy, weights):
    """Who values by these weights."""
    other = type(policy)(policy.observation_space, policy.action_space, policy.config)
    other.set_weights(weights)
    return other.compute_values


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_all_columns_are_those_of_a_policy_that_gives_values_with_each_step(make):
    with make() as late, make(AtEachStep) as stepwise:
        assert late.policy_map.keys() == stepwise.policy_map.keys()
        for _ in range(3):
            ours, theirs = parts(late.sample()), parts(stepwise.sample())
            assert ours.keys() == theirs.keys()
            for pid, batch in ours.items():
                assert set(batch) == set(theirs[pid])
                for name in batch:
                    assert batch[name].dtype == theirs[pid][name].dtype
                    np.testing.assert_allclose(batch[name], theirs[pid][name], rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_rows_that_wait_for_their_episode_to_end_have_the_values_of_the_weights_that_acted(make):
    versions = set()
    with make(batch_mode="complete_episodes", make=iter([Walk(20), *map(Walk, range(70, 90))]).__next__) as worker:
        kept = {}
        for number in range(1, 4):
            weights = {
                pid: {name: array + 0.1 * number for name, array in policy.get_weights().items()}
                for pid, policy in worker.policy_map.items()
            }
            worker.set_weights(weights, weights_seq_no=number)
            kept[number] = {pid: critic(policy, weights[pid]) for pid, policy in worker.policy_map.items()}
            for pid, batch in parts(worker.sample()).items():
                for version in set(batch["policy_version"].tolist()):
                    rows = batch["policy_version"] == version
                    wanted = kept[version][pid]({"obs": batch["obs"][rows]})
                    np.testing.assert_allclose(batch["vf_preds"][rows], wanted, rtol=1e-5)
                versions.add(frozenset(batch["policy_version"].tolist()))
    assert any(len(those) > 1 for those in versions), "no batch has rows of an earlier call"


def test_fragments_of_a_vector_env_that_wait_have_the_values_of_the_weights_that_acted():
    worker = lone(make=lambda: MockVectorEnv(9, 4), num_envs_per_env_runner=1, rollout_fragment_length=5)
    with worker:
        policy = worker.get_policy()
        before = critic(policy, policy.get_weights())
        worker.sample()
        worker.set_weights({"default_policy": {k: v + 1 for k, v in policy.get_weights().items()}}, weights_seq_no=9)
        batch = worker.sample()
        assert set(batch["policy_version"].tolist()) == {0}
        np.testing.assert_allclose(batch["vf_preds"], before({"obs": batch["obs"]}), rtol=1e-5)
        assert not np.allclose(batch["vf_preds"], policy.compute_values({"obs": batch["obs"]}))


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_rows_made_before_an_env_raised_have_the_values_of_the_weights_that_acted(make):
    with make(make=lambda: Walk(fails=30, length=60)) as worker:
        before = {pid: critic(policy, policy.get_weights()) for pid, policy in worker.policy_map.items()}
        with pytest.raises(ArithmeticError, match="lost the way"):
            worker.sample()
        changed = {
            pid: {name: array + 1 for name, array in policy.get_weights().items()}
            for pid, policy in worker.policy_map.items()
        }
        worker.set_weights(changed, weights_seq_no=9)
        for pid, batch in parts(worker.sample()).items():
            old = batch["policy_version"] == 0
            assert 0 < old.sum() < len(old)
            np.testing.assert_allclose(batch["vf_preds"][old], before[pid]({"obs": batch["obs"][old]}), rtol=1e-5)
            now = worker.get_policy(pid).compute_values({"obs": batch["obs"][~old]})
            np.testing.assert_allclose(batch["vf_preds"][~old], now, rtol=1e-5)


@pytest.mark.parametrize(("make", "rows"), [(lone, [120]), (several, [240])], ids=KINDS)
def test_a_critic_is_asked_for_the_rows_of_a_call_at_once_and_for_open_ends(make, rows):
    with make(Counted, make=lambda: Walk(1000)) as worker:
        worker.sample()
        worker.sample()
        for policy in worker.policy_map.values():
            ends = rows[0] // SEEDED["rollout_fragment_length"]
            assert policy.asked == [*rows, ends] * 2


def test_rows_are_valued_in_pieces(monkeypatch):
    monkeypatch.setattr(values, "PIECE", 4)
    asked, policy = [], ppo()
    whole = policy.compute_values({"obs": OBS})
    value = policy.model.value
    policy.model.value = lambda obs, **given: asked.append(len(obs)) or value(obs, **given)
    np.testing.assert_allclose(values.values_of(policy, len(OBS), OBS.__getitem__), whole, rtol=1e-5)
    assert asked == [4, 4, 1]


def test_actions_alone_are_the_same_ones():
    policy = ppo()
    torch.manual_seed(1)
    actions, states, extra = policy.compute_actions(OBS, explore=True)
    torch.manual_seed(1)
    alone, _, beside = policy.compute_actions(OBS, explore=True, values=False)
    assert extra.keys() - beside.keys() == {"vf_preds"}
    np.testing.assert_array_equal(actions, alone)
    for name, column in beside.items():
        np.testing.assert_array_equal(column, extra[name])
    assert states == []


class OwnValues(PPOTorchPolicy):
    def compute_values(self, input_dict):
        return super().compute_values(input_dict)


class OwnInput(PPOTorchPolicy):
    def compute_actions_from_input_dict(self, *args, **kwargs):
        return super().compute_actions_from_input_dict(*args, **kwargs)


class Linear(nn.Module):
    def __init__(self, observation_space, action_space, num_outputs, model_config):
        super().__init__()
        self.out, self.value = nn.Linear(3, num_outputs), nn.Linear(3, 1)

    def forward(self, obs):
        return self.out(obs), self.value(obs)


def test_values_are_apart_only_where_a_critic_of_its_own_gives_them_as_the_class_does():
    assert ppo().values_apart
    others = [
        ppo(cls=AtEachStep),
        ppo(cls=OwnValues),
        ppo(cls=OwnInput),
        ppo(cls=PGTorchPolicy),
        ppo(model={"vf_share_layers": True}),
        ppo(model={"custom_model": Linear}),
        recurrent(),
    ]
    assert [policy.values_apart for policy in others] == [False] * 7
