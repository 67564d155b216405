"""Evaluations of one env: episodes, seeds, numbers, and running statistics."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from evaluator_toys import PLACES, evaluate_once
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import NormalizeObservation, NormalizeReward
from gymnasium.wrappers import vector as of_vectors
from tensordict.nn import ProbabilisticTensorDictModule, TensorDictModule, TensorDictSequential
from tensordict.nn.probabilistic import interaction_type
from torch import nn
from uneven_env import LONG, SHORT, Shifted, UnevenEnv, played

from swath.errors import NoEffectWarning
from swath.evaluators import Evaluator

pytestmark = pytest.mark.usefixtures("fork_server")

N = 23
SHIFTED = Shifted()


def coins(num_envs, n=N, env=UnevenEnv, policy=SHIFTED, **options):
    return evaluate_once(policy, env, num_envs, num_trajectories=n, **options)


@pytest.mark.parametrize("wrap", [lambda env: env, of_vectors.RecordEpisodeStatistics], ids=["bare", "counted"])
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


class Normed(Shifted):
    """Acts differently in training mode, and notes its calls."""

    def __init__(self):
        super().__init__()
        self.calls, self.copies = [], []

    def __deepcopy__(self, memo):
        self.copies.append(Normed())
        return self.copies[-1]

    def forward(self, observation):
        self.calls.append((self.training, torch.is_grad_enabled()))
        return torch.zeros_like(observation[..., 0]) if self.training else super().forward(observation)


def test_the_module_itself_is_neither_called_nor_switched():
    policy = Normed().train()
    result = coins(2, policy=policy)
    assert policy.calls == []
    assert policy.training
    assert set(policy.copies[0].calls) == {(False, False)}
    np.testing.assert_array_equal(result.returns, coins(2).returns)
    assert torch.is_grad_enabled()


def test_tensordict_modules_sample_by_the_exploration_type_and_keep_the_process_s_type():
    def logits(observation):
        return torch.stack([observation[..., 0] % 5, observation[..., 1] % 3], -1).float()

    net = TensorDictModule(logits, ["observation"], ["logits"])
    head = ProbabilisticTensorDictModule(["logits"], ["action"], distribution_class=torch.distributions.Categorical)
    policy, before = TensorDictSequential(net, head), interaction_type()
    greedy = coins(3, policy=policy)
    drawn = coins(3, exploration_type="RANDOM", policy=policy)
    assert interaction_type() is before
    expected = coins(1, policy=lambda observation: logits(observation).argmax(-1))
    np.testing.assert_array_equal(greedy.returns, expected.returns)
    assert not np.array_equal(greedy.returns, drawn.returns)
    np.testing.assert_array_equal(coins(1, exploration_type="RANDOM", policy=policy).returns, drawn.returns)


class Memory(nn.Module):
    """Counts the steps of an episode in a recurrent state."""

    in_keys = ["observation", "count"]
    out_keys = ["action", ("next", "count")]

    def forward(self, observation, count):
        count = torch.zeros_like(observation[..., :1]) if count is None else count
        return (count[..., 0] + observation[..., 0]) % 7, count + 1


@pytest.mark.parametrize("exploration", ["RANDOM", "DETERMINISTIC"])
@pytest.mark.parametrize("num_envs", [None, 4])
def test_recurrent_state_restarts_with_each_episode(num_envs, exploration):
    result = coins(num_envs, policy=Memory(), exploration_type=exploration)
    np.testing.assert_array_equal(result.returns, coins(1).returns)  # the state is the env's own step counter


@pytest.mark.filterwarnings("ignore:.*precision lowered")  # gymnasium's, about EnvPool's spaces
def test_envs_that_cannot_be_seeded_are_warned_of_once():
    envpool = pytest.importorskip("envpool")
    env = envpool.make("CartPole-v1", env_type="gymnasium", num_envs=3)

    def policy(observation):
        return (observation[..., 2] > 0).int()

    with pytest.warns(NoEffectWarning, match="the seed of an evaluation has no effect"):
        result = coins(None, 8, env, policy)
    assert (result.seeding, len(result.returns)) == ("none", 8)
    np.testing.assert_array_equal(result.returns, result.lengths)


class OneSeedForAll(SyncVectorEnv):
    """A vector env of an unknown kind: it resets only as a whole and takes one seed."""

    @property
    def unwrapped(self):
        return object()


@pytest.mark.parametrize("max_steps", [None, 12])
@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP], ids=lambda mode: mode.name)
def test_vector_envs_with_one_seed_for_all_are_repeatable_as_a_whole(mode, max_steps):
    def play(seed):
        envs = OneSeedForAll([UnevenEnv] * 4, autoreset_mode=mode)
        return coins(None, 9, envs, seed=seed, max_steps=max_steps)

    first, second = play(0), play(0)
    np.testing.assert_array_equal(first.returns, second.returns)
    assert (first.seeding, first.seeds.tolist()) == ("layout", [-1] * 9)
    assert not np.array_equal(first.returns, play(1).returns)
    assert set(first.lengths.tolist()) == {SHORT, max_steps or LONG}


# Objects with `predict` -----------------------------------------------------------------------------------------------


class Remembering:
    """Predicts from a step count in its state, and notes its calls."""

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
def test_predict_gets_batches_its_own_state_and_the_starts_of_episodes_in_evaluation_mode(num_envs):
    model = Remembering()
    model.policy.add_module("inner", torch.nn.Linear(1, 1).eval())
    result = coins(num_envs, 11, policy=model)
    assert result.returns.tolist() == [played(seed)[0] for seed in result.seeds]
    starts = np.array([call[0] for call in model.calls])
    assert starts[0].all()
    assert starts.sum() == 11
    assert {call[1:] for call in model.calls} == {(True, False)}
    assert (model.policy.training, model.policy.inner.training) == (True, False), "put back"


# Envs in any form -----------------------------------------------------------------------------------------------------


class OtherSpaces(UnevenEnv):
    action_space = spaces.Discrete(3)


@pytest.mark.parametrize(
    ("env", "num_envs", "error", "says"),
    [
        (SyncVectorEnv([UnevenEnv] * 3), 2, ValueError, "num_envs=2 for .*which has 3 already"),
        (lambda: SyncVectorEnv([UnevenEnv] * 3), 2, ValueError, "num_envs=2 for .*batched already"),
        ([UnevenEnv(), UnevenEnv()], 4, ValueError, "multiple of 2, or 2 for instances"),
        ([UnevenEnv, OtherSpaces], None, ValueError, "agree in their spaces"),
        ([lambda: SyncVectorEnv([UnevenEnv])], None, ValueError, "batched already"),
        (lambda: None, None, TypeError, "returned None"),
        ("NoSuchEnv-v0", None, gym.error.NameNotFound, "NoSuchEnv"),
    ],
)
def test_wrong_envs_are_refused(env, num_envs, error, says):
    with pytest.raises(error, match=says):
        coins(num_envs, env=env)


@pytest.mark.parametrize(
    ("make", "statistics"),
    [
        (lambda: NormalizeReward(NormalizeObservation(UnevenEnv())), lambda env: [env.return_rms, env.env.obs_rms]),
        (lambda: SyncVectorEnv([lambda: NormalizeReward(UnevenEnv())]), lambda env: [env.envs[0].return_rms]),
        (lambda: of_vectors.NormalizeObservation(SyncVectorEnv([UnevenEnv] * 2)), lambda env: [env.obs_rms]),
        (lambda: of_vectors.NormalizeReward(SyncVectorEnv([UnevenEnv] * 2)), lambda env: [env.return_rms]),
        (lambda: AsyncVectorEnv([lambda: NormalizeObservation(UnevenEnv())] * 2), lambda env: env.get_attr("obs_rms")),
    ],
    ids=["single", "in a vector env", "observations of a vector env", "rewards of a vector env", "in other processes"],
)
def test_running_statistics_are_updated_only_outside_evaluations(make, statistics):
    def learned():
        return [(np.array(rms.mean).tolist(), float(rms.count)) for rms in statistics(env)]

    env = make()
    env.reset(seed=1)
    act = env.action_space.sample
    env.step(act())
    before = learned()
    assert len(coins(None, 2, env, lambda observation: (observation[..., 0] > 0).int()).returns) == 2
    assert learned() == before
    env.reset(seed=2)
    env.step(act())
    assert learned() != before
    env.close()


MEAN, VAR = np.array([5.0, 1.0]), np.array([4.0, 0.25])
SENT = {"mean": MEAN, "var": VAR, "count": 50}


def normal():
    return NormalizeObservation(NormalizeReward(UnevenEnv()))


def still(observation):
    return torch.zeros(observation.shape[:-1], dtype=torch.int64)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("num_envs", [None, 3])
def test_statistics_reach_every_copy(place, num_envs):
    observations = []

    def measure(batch):
        observations.append(batch["observation"][:, 0] * torch.tensor(VAR + 1e-8).sqrt() + torch.tensor(MEAN))
        return {}

    options = {"num_trajectories": 4, "metrics_fn": measure, "num_envs": num_envs, "backend": place}
    with Evaluator(normal, policy_factory=lambda: still, **options) as evaluator:
        evaluator.evaluate(weights_dict={"env.obs_rms": SENT})
        evaluator.evaluate()
    assert observations[0][:, 1].tolist() == pytest.approx([0.0] * 4, abs=1e-5)
    assert observations[0].tolist() == observations[1].tolist()
    assert len({round(token) for token in observations[0][:, 0].tolist()}) == 4


def test_the_first_name_is_looked_up_through_wrappers_and_in_envs_of_a_vector_env():
    env = SyncVectorEnv([normal, normal])
    with Evaluator(env, still, num_trajectories=2) as evaluator:
        evaluator.evaluate(weights_dict={"env.return_rms": {"mean": 0.5, "var": 2.0, "count": 9}})
        assert [(inner.env.return_rms.mean, float(inner.env.return_rms.var)) for inner in env.envs] == [(0.5, 2.0)] * 2


@pytest.mark.parametrize(
    ("sent", "error", "says"),
    [
        ({"env.obs_rms": {**SENT, "mean": np.zeros(3)}}, ValueError, "mean"),
        ({"env.obs_rms": SENT, "env.nothing": SENT}, KeyError, "'policy', 'env.obs_rms'"),
        ({"env.obs_rms": SENT, "env.spec": SENT}, KeyError, "'policy', 'env.obs_rms'"),
        ({"env.obs_rms": SENT, "critic": torch.nn.Linear(1, 1)}, KeyError, "'policy', 'env.obs_rms'"),
    ],
)
def test_weights_that_do_not_fit_change_nothing(sent, error, says):
    env = normal()
    with Evaluator(env, still, num_trajectories=1) as evaluator:
        before = env.obs_rms.mean.copy(), env.obs_rms.count
        with pytest.raises(error, match=says):
            evaluator.evaluate(weights_dict=sent)
        assert (env.obs_rms.mean == before[0]).all()
        assert env.obs_rms.count == before[1]
        assert len(evaluator.evaluate().returns) == 1
