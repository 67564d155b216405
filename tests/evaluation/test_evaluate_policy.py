"""`evaluate_policy`: the arguments of Stable-Baselines3.

The promises of this folder: `Evaluator` plays exactly the requested episodes, each once, with one set of weights,
and gives the same numbers whatever the backend and the layout, also if workers die (`test_evaluator_contract`,
`test_evaluator_faults`); it leaves training alone (`test_isolation`); each argument works or is refused
(`test_evaluator_arguments`); results and intervals are correct (`test_statistics`, `test_result`).
`evaluate_policy` and `RayEvalWorker` keep the promises of their peers (here, `test_ray_eval_worker`).
"""

import gymnasium as gym
import numpy as np
import pytest
import torch
from eval_mischief import UnrulyEnv
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import ClipReward, RecordEpisodeStatistics, TimeLimit, TransformReward
from uneven_env import UnevenEnv, played

from swath import seeds
from swath.errors import WorkerLate
from swath.evaluators import Evaluator, evaluate_policy


class Walk(UnevenEnv):
    """Each step earns the number of the action; infos have the number of steps left."""

    renders = 0

    def step(self, action):
        observation, _, *ends, _ = super().step(action)
        return observation, float(action), *ends, {"left": self.length - self.t}

    def render(self):
        self.renders += 1


class Lives(gym.Wrapper):
    """Ends at every third step, as games do where a life is lost; the game goes on unless it was over or is seeded."""

    over = True

    def reset(self, *, seed=None, options=None):
        self.count = 0
        if self.over or seed is not None:
            return self.env.reset(seed=seed)
        return np.array([self.unwrapped.token, self.unwrapped.t]), {}

    def step(self, action):
        observation, reward, self.over, truncated, info = self.env.step(action)
        self.count += 1
        return observation, reward, self.over or self.count % 3 == 0, truncated, info


def two(observation):
    return torch.full(observation.shape[:-1], 2)


def lengths_of(n):
    return [played(seeds.derive(0, "evaluation", 0, i))[1] for i in range(n)]


def test_it_gives_mean_and_standard_deviation_with_divisor_n():
    mean, std = evaluate_policy(two, Walk, 6)
    returns = 2.0 * np.array(lengths_of(6))
    assert (type(mean), type(std)) == (float, float)
    assert mean == returns.mean()
    assert std == pytest.approx(np.sqrt(((returns - returns.mean()) ** 2).sum() / 6))
    assert evaluate_policy(two, Walk, 1)[1] == 0.0
    assert evaluate_policy(model=two, env=Walk, n_eval_episodes=6) == (mean, std)


@pytest.mark.parametrize("num_envs", [None, 3, 8])
def test_lists_are_in_episode_order(num_envs):
    returns, lengths = evaluate_policy(two, Walk, 7, return_episode_rewards=True, num_envs=num_envs)
    assert lengths == lengths_of(7)
    assert returns == [2.0 * length for length in lengths]
    assert [{type(value) for value in values} for values in (returns, lengths)] == [{float}, {int}]


def test_a_mean_that_is_not_above_the_threshold_is_an_assertion_error_with_both_numbers():
    mean, _ = evaluate_policy(two, Walk)
    evaluate_policy(two, Walk, reward_threshold=mean - 0.01)
    with pytest.raises(AssertionError, match=rf"{mean:.2f} is not above reward_threshold={mean:.2f}"):
        evaluate_policy(two, Walk, reward_threshold=mean)
    with pytest.raises(AssertionError, match="nan"):
        evaluate_policy(two, TransformReward(Walk(), lambda _: np.nan), warn=False, reward_threshold=0)


@pytest.fixture
def walks():
    """Return the list of envs that `make` has built."""
    return []


@pytest.fixture
def make(walks):
    def make():
        walks.append(Walk())
        return TimeLimit(walks[-1], 50)

    return make


def test_instances_are_borrowed_and_what_it_built_is_closed(make, walks):
    mine = Walk()
    evaluate_policy(two, mine, 3)
    assert (mine.closed, len(mine.resets)) == (False, 3)
    evaluate_policy(two, make, 3, num_envs=2)
    assert [env.closed for env in walks] == [True, True]


def test_without_a_seed_the_env_goes_on_from_its_own_state_as_in_a_plain_loop():
    def loop(env):
        returns = []
        for _ in range(5):
            env.reset()
            returns.append(2.0 * env.length)
            for _ in range(env.length):
                env.step(2)
        return returns

    mine, theirs = Walk(), Walk()
    mine.reset(seed=7), theirs.reset(seed=7)
    assert evaluate_policy(two, mine, 5, seed=None, return_episode_rewards=True)[0] == loop(theirs)
    assert mine.resets == [7] + [None] * 5


def test_max_steps_cuts_and_past_the_deadline_it_is_late():
    assert evaluate_policy(two, Walk, 5, max_steps=2, return_episode_rewards=True) == ([4.0] * 5, [2] * 5)
    with pytest.raises(WorkerLate, match=r"timeout_s=0\.01"):
        evaluate_policy(two, UnrulyEnv(endless=True), timeout_s=0.01)


def lively():
    return ClipReward(Lives(RecordEpisodeStatistics(Walk())), 0, 1)


@pytest.mark.parametrize("mode", [None, *AutoresetMode], ids=str)
def test_only_a_monitor_ends_an_episode_and_its_sums_count(mode):
    env, num_envs = (lively, 3) if mode is None else (SyncVectorEnv([lively] * 3, autoreset_mode=mode), None)
    returns, lengths = evaluate_policy(two, env, 6, return_episode_rewards=True, num_envs=num_envs)
    assert lengths == lengths_of(6)
    assert returns == [2.0 * length for length in lengths]


def test_max_steps_counts_over_lives_and_truncates_without_a_report_of_the_monitor():
    env = Lives(RecordEpisodeStatistics(Walk()))
    returns, lengths = evaluate_policy(two, env, 8, return_episode_rewards=True, max_steps=4)
    assert lengths == [min(length, 4) for length in lengths_of(8)]
    assert returns == [2.0 * length for length in lengths]


def test_wrappers_that_change_rewards_are_warned_of_unless_a_monitor_has_the_true_ones():
    with pytest.warns(UserWarning, match="the env's ClipReward changes rewards"):
        evaluate_policy(two, lambda: ClipReward(Walk(), 0, 1))
    evaluate_policy(two, lambda: ClipReward(Walk(), 0, 1), warn=False)
    evaluate_policy(two, lambda: ClipReward(RecordEpisodeStatistics(Walk()), 0, 1))


NAMES = {
    *("i", "n_envs", "reward", "done", "info", "actions", "observations", "new_observations", "states"),
    *("episode_starts", "current_rewards", "current_lengths", "episode_rewards", "episode_lengths"),
    *("episode_counts", "episode_count_targets", "model", "env"),
}


def test_the_callback_gets_every_step_of_every_slot_before_the_end_is_recorded():
    calls = []
    evaluate_policy(two, Walk, 5, num_envs=2, callback=lambda *arguments: calls.append(arguments))
    views = [view for view, _ in calls]
    assert all((set(view), rest) == (NAMES, {}) for view, rest in calls)
    assert len(views) == sum(lengths_of(5))
    ends = [view for view in views if view["done"]]
    assert [len(view["episode_rewards"]) for view in ends] == [0, 1, 2, 3, 4]
    for view in ends:
        slot = view["i"]
        assert view["current_rewards"][slot] == 2.0 * view["current_lengths"][slot]
        assert view["new_observations"][slot][1] == view["current_lengths"][slot]
        assert view["info"] == {"left": 0}
        assert view["episode_starts"][slot]
    last = views[-1]
    assert last["episode_count_targets"].tolist() == [3, 2]
    assert (last["n_envs"], last["model"], last["reward"]) == (2, two, 2.0)
    assert (last["actions"].tolist(), last["observations"].shape, last["states"]) == ([2, 2], (2, 2), None)
    assert isinstance(last["env"], list)


@pytest.mark.parametrize("num_envs", [None, 2])
def test_render_renders_after_each_step(make, walks, num_envs):
    evaluate_policy(two, make, 4, render=True, num_envs=num_envs)
    assert {env.renders for env in walks} == {max(env.steps for env in walks)}


@pytest.mark.parametrize(
    ("arguments", "named", "message"),
    [
        (("CartPole-v1", two), {}, r"'CartPole-v1' is a text; the order is evaluate_policy\(policy, env\)"),
        ((None, "CartPole-v1"), {}, "needs a policy, .* got neither"),
        ((two, "CartPole-v1"), {"model": two}, "needs a policy, .* got both"),
    ],
)
def test_not_exactly_one_policy_is_a_type_error(arguments, named, message):
    with pytest.raises(TypeError, match=message):
        evaluate_policy(*arguments, **named)


def test_a_time_limit_that_was_changed_is_the_one_that_counts():
    env = TimeLimit(UnrulyEnv(endless=True), 50)
    assert env.spec is None or env.spec.max_episode_steps == 50
    for limit in (3, 7):
        env.set_wrapper_attr("_max_episode_steps", limit)
        assert evaluate_policy(two, env, 4, return_episode_rewards=True)[1] == [limit] * 4
        assert evaluate_policy(two, env, 4, max_steps=5, return_episode_rewards=True)[1] == [min(limit, 5)] * 4
    with Evaluator(env, two, num_trajectories=2) as evaluator:
        assert evaluator.evaluate().lengths.tolist() == [7, 7]
        env.set_wrapper_attr("_max_episode_steps", 2)
        assert evaluator.evaluate().lengths.tolist() == [2, 2]


@pytest.mark.parametrize("mode", [None, *AutoresetMode], ids=str)
def test_a_truncation_outside_the_monitor_ends_the_episode(mode):
    def cut():
        return TimeLimit(RecordEpisodeStatistics(UnrulyEnv(endless=True)), 10)

    env = cut if mode is None else SyncVectorEnv([cut] * 2, autoreset_mode=mode)
    returns, lengths = evaluate_policy(two, env, 3, return_episode_rewards=True, timeout_s=60)
    assert lengths == [10] * 3
    assert len({*returns}) == 3


def test_a_lost_life_goes_on_until_the_time_limit_around_it():
    env = TimeLimit(Lives(RecordEpisodeStatistics(UnrulyEnv(endless=True))), 2)
    assert evaluate_policy(two, env, 2, return_episode_rewards=True, timeout_s=60)[1] == [2, 2]
    env = Lives(TimeLimit(RecordEpisodeStatistics(UnrulyEnv(endless=True)), 10))
    assert evaluate_policy(two, env, 2, return_episode_rewards=True, timeout_s=60)[1] == [10, 10]


class WithoutInfo(UnevenEnv):
    """Returns None for an empty info, as many envs do."""

    def reset(self, **options):
        return super().reset(**options)[0], None

    def step(self, action):
        return *super().step(action)[:4], None


@pytest.mark.parametrize("num_envs", [None, 2])
def test_an_info_of_none_is_an_empty_one(num_envs):
    infos = []
    lengths = evaluate_policy(
        two,
        WithoutInfo,
        4,
        num_envs=num_envs,
        return_episode_rewards=True,
        callback=lambda view, _: infos.append(view["info"]),
    )[1]
    assert lengths == lengths_of(4)
    assert infos == [{}] * sum(lengths)
