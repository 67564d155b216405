"""Evaluations in TorchRL's envs: who plays what, from which seeds, what counts as reward and as an end."""

from functools import partial

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn
from torchrl.data import Bounded, Categorical, Composite, Unbounded
from torchrl.envs import (
    EnvBase,
    GymEnv,
    ParallelEnv,
    RewardSum,
    SerialEnv,
    StepCounter,
    TransformedEnv,
)
from torchrl_toys import Agents, Answer, Counting, NestedKeys, PushBoth, TwoParts, gru, lean_left, linear, lstm, push

from swath.evaluators import Evaluator, evaluate_policy

SHORT, LONG = 3, 41


class Coin(EnvBase):
    """Episodes of 3 or 41 steps, as the seed falls; never stepped past its end unless somebody makes a mistake."""

    def __init__(self, endless=False):
        super().__init__(batch_size=torch.Size(()))
        self.endless, self.steps, self.closed = endless, 0, False
        self.observation_spec = Composite(observation=Unbounded((2,)))
        self.action_spec = Bounded(-1, 1, (1,))
        self.reward_spec = Unbounded((1,))
        flag = {"dtype": torch.bool, "shape": (1,)}
        self.done_spec = Composite({name: Categorical(2, **flag) for name in ("done", "terminated", "truncated")})
        self._set_seed(0)

    def _set_seed(self, seed):
        self.rng = torch.Generator().manual_seed(seed)

    def close(self, **kwargs):
        self.closed = True
        return super().close(**kwargs)

    def _reset(self, tensordict=None, **kwargs):
        self.token = int(torch.randint(1000, (), generator=self.rng))
        self.length = SHORT if self.token % 2 else LONG
        self.t = 0
        return self._seen()

    def _step(self, tensordict):
        assert self.endless or self.t < self.length, "stepped past its end"
        self.t += 1
        self.steps += 1
        over = torch.tensor([not self.endless and self.t >= self.length])
        reward = torch.tensor([float((self.token + self.t) % 11)])
        flags = {"done": over, "terminated": over.clone(), "truncated": torch.zeros_like(over)}
        return self._seen().update({"reward": reward, **flags})

    def _seen(self):
        return TensorDict({"observation": torch.tensor([float(self.token), float(self.t)])})


def cartpole():
    return GymEnv("CartPole-v1", categorical_action_encoding=True)


def still(env=None):
    return Answer(lambda observation: torch.zeros_like(observation[..., :1]))


def leaning(env=None):
    return TensorDictModule(lean_left, ["observation"], ["action"])


def evaluated(env, policy, **options):
    with Evaluator(env, policy, **{"num_trajectories": 7, **options}) as evaluator:
        return evaluator.evaluate()


@pytest.fixture(scope="module")
def reference():
    return evaluated(Coin, still())


@pytest.mark.parametrize(
    "layout",
    [
        {"num_envs": 1},
        {"num_envs": 3},
        {"num_envs": 9},
        {"backend": "process", "num_envs": 2, "num_workers": 2},
    ],
    ids=str,
)
def test_numbers_of_single_envs_do_not_depend_on_how_many_are_stepped_together(layout, reference):
    with Evaluator(Coin, policy_factory=still, num_trajectories=7, **layout) as evaluator:
        result = evaluator.evaluate()
    assert set(reference.lengths.tolist()) == {SHORT, LONG}
    assert result.returns.tolist() == reference.returns.tolist()
    assert result.lengths.tolist() == reference.lengths.tolist()
    assert result.seeds.tolist() == reference.seeds.tolist()
    assert result.seeding == "episode"


def test_an_instance_and_lists_of_forms_play_the_same_episodes(reference):
    for env in (Coin(), [Coin, Coin], [Coin(), Coin(), Coin()]):
        assert evaluated(env, still()).returns.tolist() == reference.returns.tolist()


def test_single_envs_that_have_no_episode_left_are_not_stepped():
    envs = [Coin() for _ in range(5)]
    result = evaluated(envs, still(), num_trajectories=3)
    assert sum(env.steps for env in envs) == result["eval/frames"] == sum(result.lengths)


def test_a_batch_plays_its_quota_and_nobody_is_stepped_past_an_end():
    for n in (2, 5, 9):
        result = evaluated(SerialEnv(n, Coin), still())
        assert result.seeding == "layout"
        assert set(result.seeds.tolist()) == {-1}
        assert set(result.lengths.tolist()) <= {SHORT, LONG}


def test_sub_envs_of_a_batch_get_different_seeds_and_repeat_them():
    first, second = (evaluated(SerialEnv(4, Coin), still(), num_trajectories=8) for _ in range(2))
    assert len(set(first.returns.tolist())) > 2
    assert first.returns.tolist() == second.returns.tolist()


def test_sub_envs_that_end_sooner_do_not_count_more_often():
    class Fixed(Coin):
        made = 0

        def __init__(self):
            super().__init__()
            Fixed.made += 1
            self.fixed = (SHORT, LONG)[Fixed.made % 2]

        def _reset(self, tensordict=None, **kwargs):
            super()._reset()
            self.length = self.fixed
            return self._seen()

    result = evaluated(SerialEnv(2, Fixed), still(), num_trajectories=10)
    assert result["eval/episode_length"] == (SHORT + LONG) / 2


@pytest.mark.parametrize("make", [Coin, lambda: SerialEnv(3, partial(Coin, endless=True))], ids=["single", "batch"])
def test_max_steps_ends_episodes_whatever_the_env_counts(make):
    result = evaluated(make, still(), num_trajectories=10, max_steps=2)
    assert result.lengths.tolist() == [2] * 10
    assert result.truncated.all()
    assert not result.terminated.any()


def test_max_steps_holds_beside_a_step_counter_of_the_env():
    def counted():
        return TransformedEnv(Coin(endless=True), StepCounter(max_steps=5))

    assert evaluated(counted, still(), max_steps=4).lengths.tolist() == [4] * 7
    assert evaluated(counted, still(), max_steps=9).lengths.tolist() == [5] * 7


class Untruncated(Coin):
    """Knows of no truncation."""

    def __init__(self):
        super().__init__(endless=True)
        del self.done_spec["truncated"]

    def _step(self, tensordict):
        return super()._step(tensordict).exclude("truncated")


@pytest.mark.parametrize(
    ("make", "num_envs"),
    [(partial(Coin, endless=True), 2), (Untruncated, 2), (partial(SerialEnv, 2, Untruncated), None)],
    ids=["single", "untruncated", "batch-untruncated"],
)
def test_a_cut_shows_as_truncated_in_the_trajectories(make, num_envs):
    seen = []

    def measure(batch):
        seen.append(batch)
        return {"rows": batch.shape[0]}

    result = evaluated(make, still(), num_envs=num_envs, max_steps=4, metrics_fn=measure)
    flags = seen[0]["next"]
    assert result["eval/rows"] == 7
    for name in ("truncated", "done"):
        assert flags[name][..., 0].tolist() == [[False] * 3 + [True]] * 7
    assert seen[0]["collector", "traj_ids"][:, 0].tolist() == list(range(7))


class Summing(Coin):
    """Writes a sum of its own beside the reward."""

    def __init__(self):
        super().__init__()
        self.observation_spec["episode_reward"] = Unbounded((1,))

    def _seen(self):
        return super()._seen().set("episode_reward", torch.tensor([100.0 * self.t]))


def test_what_the_env_has_summed_beside_the_reward_is_the_return():
    result = evaluated(Summing, still(), num_envs=2)
    assert result.returns.tolist() == [100.0 * length for length in result.lengths]


def test_a_reward_sum_gives_the_sums_that_are_made_without_it(reference):
    assert (
        evaluated(lambda: TransformedEnv(Coin(), RewardSum()), still()).returns.tolist() == reference.returns.tolist()
    )
    bare, summed = evaluated(SerialEnv(3, Coin), still()), TransformedEnv(SerialEnv(3, Coin), RewardSum())
    assert evaluated(summed, still()).returns.tolist() == bare.returns.tolist()


def test_rewards_of_agents_are_averaged_and_a_group_is_read_by_its_key():
    def one(td):
        return torch.ones(td.shape[:-1], dtype=torch.int64)

    policy = Answer(one, ("agents", "observation"), ("agents", "action"))
    key = ("next", "agents", "reward")
    result = evaluated(Agents, policy, num_trajectories=2, reward_keys=key)
    lengths = result.lengths.tolist()
    assert result.returns.tolist() == [sum(1.0 + step for step in range(1, n + 1)) for n in lengths]


def test_several_rewards_are_averaged_key_by_key():
    def motor(left):
        return torch.ones((*left.shape[:-2], 2))

    policy = Answer(motor, ("sensors", "camera", "left"), ("control", "motor"))
    keys = [("next", "scores", "main"), ("next", "scores", "parts")]
    result = evaluated(NestedKeys, policy, num_trajectories=1, reward_keys=keys)
    steps = range(1, result.lengths[0] + 1)
    assert result.returns[0] == pytest.approx(sum((2.0 + (1.0 + 1.0 + step) / 3) / 2 for step in steps))


def test_a_key_that_the_env_does_not_write_is_named_with_those_it_does():
    with Evaluator(TwoParts, PushBoth(), num_trajectories=1) as evaluator:
        for _ in range(2):
            with pytest.raises(KeyError, match=r"reward_keys.*'first', 'reward'"):
                evaluator.evaluate()
    with pytest.raises(KeyError, match=r"done_keys.*'second', 'done'"):
        evaluated(TwoParts, PushBoth(), reward_keys=("next", "first", "reward"))


def test_an_episode_without_root_flags_ends_when_all_flags_read_are_set():
    parts = [("next", part, "done") for part in ("first", "second")]
    options = {"num_trajectories": 3, "reward_keys": ("next", "first", "reward")}
    assert evaluated(TwoParts, PushBoth(), done_keys=parts, **options).lengths.tolist() == [5] * 3
    assert evaluated(TwoParts, PushBoth(), done_keys=parts[0], **options).lengths.tolist() == [3] * 3


@pytest.mark.parametrize("cell", [lstm, gru])
@pytest.mark.parametrize("n", [None, 3])
def test_a_recurrent_policy_begins_each_episode_anew(cell, n):
    _, policy = cell(2)
    alone = evaluated(Coin, policy)
    assert evaluated(Coin, policy, num_envs=n).returns.tolist() == alone.returns.tolist()


def test_memory_that_the_env_supplies_begins_anew_too():
    seen = []
    module, policy = lstm(1)

    def primed():
        return TransformedEnv(Counting(), module.make_tensordict_primer())

    def measure(batch):
        seen.append(batch["recurrent_state_h"])
        return {}

    evaluated(primed, policy, num_envs=2, num_trajectories=5, metrics_fn=measure)
    assert not seen[0][:, 0].any()
    assert seen[0][:, 1].any()


class Noisy(nn.Module):
    """Draws inside itself."""

    def forward(self, observation):
        return torch.rand((*observation.shape[:-1], 1))


class Echo(Coin):
    """Rewards are the actions."""

    def _step(self, tensordict):
        return super()._step(tensordict).update({"reward": tensordict["action"]})


def test_the_noise_of_an_episode_does_not_depend_on_its_neighbours():
    def noisy():
        return TensorDictSequential(TensorDictModule(Noisy(), ["observation"], ["action"]))

    options = {"policy_factory": noisy, "backend": "process", "exploration_type": "RANDOM", "num_trajectories": 5}
    few, many = (evaluated(Echo, None, num_envs=n, **options) for n in (None, 4))
    assert few.returns.tolist() == many.returns.tolist()
    assert len(set(few.returns.tolist())) == 5


@pytest.mark.parametrize("policy", [push, linear(2)], ids=["function", "module"])
def test_policies_of_all_forms_act(policy):
    assert evaluated(Coin, policy, num_envs=2, num_trajectories=3)["eval/num_episodes"] == 3


def test_a_factory_gets_the_first_copy():
    seen = []

    def factory(env):
        seen.append(env)
        return still()

    with Evaluator(Coin, policy_factory=factory, num_envs=3, num_trajectories=3) as evaluator:
        evaluator.evaluate()
    assert [type(env) for env in seen] == [Coin]


def test_envs_of_a_parallel_env_in_a_process_play_their_quota():
    def parallel():
        return ParallelEnv(2, cartpole, mp_start_method="fork")

    with Evaluator(parallel, policy_factory=leaning, backend="process", num_trajectories=3, max_steps=9) as evaluator:
        assert evaluator.evaluate().lengths.tolist() == [9] * 3


def test_lists_must_be_of_one_kind_and_of_single_envs():
    with pytest.raises(TypeError, match="one kind"):
        evaluated([Coin, "CartPole-v1"], still())
    with pytest.raises(TypeError, match="single envs"):
        evaluated([lambda: SerialEnv(2, Coin)], still())
    with pytest.raises(ValueError, match="differ"):
        evaluated([Coin, TwoParts], still())


def test_evaluate_policy_takes_envs_of_torchrl():
    returns, lengths = evaluate_policy(still(), Coin, 7, return_episode_rewards=True, num_envs=2)
    reference = evaluated(Coin, still())
    assert (returns, lengths) == (reference.returns.tolist(), reference.lengths.tolist())
    env, shown = Coin(), []
    evaluate_policy(still(), env, 1, callback=lambda local, _: shown.append(local["observations"]["observation"]))
    assert len(shown) == env.steps
    assert not env.closed
