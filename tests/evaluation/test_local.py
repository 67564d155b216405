"""Evaluations in the calling thread: which episodes, from which seeds, with which numbers."""

import numpy as np
import pytest
import torch
from evaluator_toys import evaluate_once
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics as RecordVectorStatistics
from tensordict import TensorDict
from tensordict.nn import ProbabilisticTensorDictModule, TensorDictModule, TensorDictSequential
from tensordict.nn.probabilistic import interaction_type
from torch import nn
from uneven_env import LONG, SHORT, Shifted, UnevenEnv, played

from swath.errors import NoEffectWarning

N = 23
SHIFTED = Shifted()


def coins(num_envs, n=N, env=UnevenEnv, policy=SHIFTED, **options):
    return evaluate_once(policy, env, num_envs, num_trajectories=n, **options)


@pytest.mark.parametrize("wrap", [lambda env: env, RecordVectorStatistics], ids=["bare", "counted"])
@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.name)
def test_vector_envs_in_every_autoreset_mode_give_the_same_episodes(mode, wrap):
    result = coins(None, env=wrap(SyncVectorEnv([UnevenEnv] * 4, autoreset_mode=mode)))
    reference = coins(1)
    np.testing.assert_array_equal(result.returns, reference.returns)
    np.testing.assert_array_equal(result.lengths, reference.lengths)
    np.testing.assert_array_equal(result.seeds, reference.seeds)


def test_no_env_is_stepped_or_reset_beyond_what_its_episodes_need():
    envs = []

    def make():
        envs.append(UnevenEnv())
        return envs[-1]

    result = coins(4, 10, make)
    by_slot = [result.lengths[slot::4].sum() for slot in range(4)]
    assert [env.steps for env in envs] == by_slot
    assert [env.resets for env in envs] == [result.seeds[slot::4].tolist() for slot in range(4)]
    assert all(env.closed for env in envs)


# ----------------------------------------------------------------------------------------------------------------------


class Normed(Shifted):
    """Acts differently in training mode, and notes how it was called."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def forward(self, observation):
        self.calls.append((self.training, torch.is_grad_enabled()))
        return torch.zeros_like(observation[..., 0]) if self.training else super().forward(observation)


def test_the_module_itself_is_neither_called_nor_switched():
    policy = Normed().train()
    copies = []
    policy.__class__ = type(
        "Spied", (Normed,), {"__deepcopy__": lambda self, memo: copies.append(Normed()) or copies[-1]}
    )
    result = coins(2, policy=policy)
    assert policy.calls == []
    assert policy.training
    assert set(copies[0].calls) == {(False, False)}
    np.testing.assert_array_equal(result.returns, coins(2).returns)
    assert torch.is_grad_enabled()


def test_tensordict_modules_sample_by_the_type_asked_for_and_leave_the_process_s_type_alone():
    net = TensorDictModule(
        lambda obs: torch.stack([obs[..., 0] % 5, obs[..., 1] % 3], -1).float(), ["observation"], ["logits"]
    )
    head = ProbabilisticTensorDictModule(["logits"], ["action"], distribution_class=torch.distributions.Categorical)
    policy = TensorDictSequential(net, head)
    before = interaction_type()
    greedy = coins(3, policy=policy)
    drawn = coins(3, exploration_type="RANDOM", policy=policy)
    assert interaction_type() is before
    by_hand = coins(
        1, policy=lambda obs: policy[0](TensorDict({"observation": obs}, obs.shape[:-1]))["logits"].argmax(-1)
    )
    np.testing.assert_array_equal(greedy.returns, by_hand.returns)
    assert not np.array_equal(greedy.returns, drawn.returns)
    alone = coins(1, exploration_type="RANDOM", policy=policy)
    np.testing.assert_array_equal(alone.returns, drawn.returns)


class Memory(nn.Module):
    """Counts the steps of an episode in a recurrent state."""

    in_keys = ["observation", "count"]
    out_keys = ["action", ("next", "count")]

    def forward(self, observation, count):
        count = torch.zeros_like(observation[..., :1]) if count is None else count
        return (count[..., 0] + observation[..., 0]) % 7, count + 1


@pytest.mark.parametrize("exploration", ["RANDOM", "DETERMINISTIC"])
@pytest.mark.parametrize("num_envs", [None, 4])
def test_recurrent_state_starts_anew_with_each_episode(num_envs, exploration):
    result = coins(num_envs, policy=Memory(), exploration_type=exploration)
    np.testing.assert_array_equal(result.returns, coins(1).returns)  # the state is the env's own step counter


# ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*precision lowered")  # gymnasium's, about EnvPool's spaces
def test_envs_that_cannot_be_seeded_say_so_once_and_everything_else_holds():
    envpool = pytest.importorskip("envpool")
    env = envpool.make("CartPole-v1", env_type="gymnasium", num_envs=3)

    def policy(observation):
        return (observation[..., 2] > 0).int()

    with pytest.warns(NoEffectWarning, match="the seed of an evaluation has no effect"):
        result = coins(None, 8, env, policy)
    assert result.seeding == "none"
    assert len(result.returns) == 8
    np.testing.assert_array_equal(result.returns, result.lengths)


class OneSeedForAll(SyncVectorEnv):
    """A vector env of a stranger: it resets only as a whole and takes one seed."""

    @property
    def unwrapped(self):
        return object()


@pytest.mark.parametrize("max_steps", [None, 12])
@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP], ids=lambda mode: mode.name)
def test_vector_envs_that_take_one_seed_for_all_are_repeatable_as_a_whole(mode, max_steps):
    def play(seed):
        envs = OneSeedForAll([UnevenEnv] * 4, autoreset_mode=mode)
        return coins(None, 9, envs, seed=seed, max_steps=max_steps)

    first, second = play(0), play(0)
    np.testing.assert_array_equal(first.returns, second.returns)
    assert first.seeding == "layout"
    assert first.seeds.tolist() == [-1] * 9
    assert not np.array_equal(first.returns, play(1).returns)
    longest = max_steps or LONG
    assert set(first.lengths.tolist()) == {SHORT, longest}


# Objects with `predict` -----------------------------------------------------------------------------------------------


class Remembering:
    """Predicts from a step count that it keeps in its state, and notes how it was called."""

    def __init__(self):
        self.policy = torch.nn.Linear(1, 1).train()
        self.calls = []

    def predict(self, observation, state=None, episode_start=None, deterministic=False):
        self.calls.append((episode_start.tolist(), deterministic, self.policy.training))
        count = np.zeros(len(observation), dtype=int) if state is None else state
        count = np.where(episode_start, 0, count)
        action = (observation[:, 0] + count) % 7
        if not deterministic:
            action = (action + np.random.randint(7, size=len(action))) % 7
        return action, count + 1


@pytest.mark.parametrize("num_envs", [None, 1, 4])
def test_predict_gets_batches_its_own_state_and_the_starts_of_episodes(num_envs):
    model = Remembering()
    result = coins(num_envs, 11, policy=model)
    assert result.returns.tolist() == [played(seed)[0] for seed in result.seeds]
    starts = np.array([call[0] for call in model.calls])
    assert starts[0].all()
    assert starts.sum() == 11
    assert {call[1] for call in model.calls} == {True}


def test_its_mode_is_evaluation_meanwhile_and_put_back_afterwards():
    model = Remembering()
    model.policy.add_module("inner", torch.nn.Linear(1, 1).eval())
    coins(2, 11, policy=model)
    assert {call[2] for call in model.calls} == {False}
    assert model.policy.training
    assert not model.policy.inner.training
