"""Evaluations in the calling thread: which episodes, from which seeds, with which numbers."""

import random

import gymnasium as gym
import numpy as np
import pytest
import torch
from evaluation_toys import LONG, SHORT, CoinEnv, EndlessEnv, FaultyEnv, evaluate_once, expected, integer_policy
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics as RecordVectorStatistics
from tensordict import TensorDict
from tensordict.nn import ProbabilisticTensorDictModule, TensorDictModule, TensorDictSequential
from tensordict.nn.probabilistic import interaction_type
from torch import nn

from swath import seeds
from swath.errors import NoEffectWarning, WorkerLate
from swath.evaluate.local import LocalEvaluation, Slots
from swath.evaluate.request import EvalLimits, EvalRequest
from swath.evaluate.stopping import StopRule
from swath.rollout.policies.exploration import ExplorationType

N = 23


def asked(n=N, **options):
    return EvalRequest(stop=StopRule(n), **options)


def coins(num_envs, request=None, env=CoinEnv, policy=integer_policy):
    return evaluate_once(policy, env, request or asked(), Slots(num_envs))


def root_with_as_many_long_as_short(n):
    """A root seed under which exactly half of the first n episodes are long."""
    for root in range(500):
        lengths = [expected(seeds.derive(root, "evaluation", 0, i))[1] for i in range(n)]
        if lengths.count(LONG) * 2 == n:
            return root
    raise AssertionError("no such root seed")


@pytest.mark.parametrize("num_envs", [None, 1, 4, 7, 40])
def test_the_numbers_are_those_of_the_seeds_whatever_the_number_of_envs(num_envs):
    result = coins(num_envs)
    assert result.seeds.tolist() == [seeds.derive(0, "evaluation", 0, i) for i in range(N)]
    truth = [expected(seed) for seed in result.seeds]
    assert result.returns.tolist() == [total for total, _ in truth]
    assert result.lengths.tolist() == [length for _, length in truth]
    assert result.terminated.all()
    assert not result.truncated.any()
    assert result.seeding == "episode"


@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.name)
@pytest.mark.parametrize("num_envs", [1, 4])
def test_vector_envs_in_every_autoreset_mode_give_the_same_episodes(mode, num_envs):
    vector = SyncVectorEnv([CoinEnv] * num_envs, autoreset_mode=mode)
    result = evaluate_once(integer_policy, vector, asked())
    reference = coins(1)
    np.testing.assert_array_equal(result.returns, reference.returns)
    np.testing.assert_array_equal(result.lengths, reference.lengths)
    np.testing.assert_array_equal(result.seeds, reference.seeds)


def test_short_episodes_do_not_crowd_out_long_ones():
    root = root_with_as_many_long_as_short(20)
    result = coins(8, asked(20, seed=root))
    assert result["eval/episode_length"] == (SHORT + LONG) / 2 == 22
    assert result["eval/frames"] == 20 * 22


def test_two_policies_meet_the_same_episodes_and_another_root_gives_others():
    first, second = coins(3), coins(5, policy=lambda observation: observation[..., 0] % 7)
    np.testing.assert_array_equal(first.seeds, second.seeds)
    np.testing.assert_array_equal(first.lengths, second.lengths)
    assert not set(coins(3, asked(seed=1)).seeds.tolist()) & set(first.seeds.tolist())


def test_no_env_is_stepped_or_reset_beyond_what_its_episodes_need():
    envs = []

    def make():
        envs.append(CoinEnv())
        return envs[-1]

    result = coins(4, asked(10), make)
    by_slot = [result.lengths[slot::4].sum() for slot in range(4)]
    assert [env.steps for env in envs] == by_slot
    assert [env.resets for env in envs] == [result.seeds[slot::4].tolist() for slot in range(4)]
    assert all(env.closed for env in envs)


def test_slots_without_an_episode_are_not_stepped_but_stay_in_the_batch():
    envs, sizes = [], set()

    def make():
        envs.append(CoinEnv())
        return envs[-1]

    def policy(observation):
        sizes.add(len(observation))
        return integer_policy(observation)

    coins(5, asked(2), make, policy)
    assert [env.steps > 0 for env in envs] == [True, True, False, False, False]
    assert sizes == {5}


@pytest.mark.parametrize("num_envs", [1, 3])
def test_max_steps_cuts_episodes_that_never_end_and_counts_as_truncation(num_envs):
    result = coins(num_envs, asked(10, limits=EvalLimits(max_steps=10)), EndlessEnv)
    assert result.lengths.tolist() == [10] * 10
    assert result.truncated.all()
    assert not result.terminated.any()
    assert result["eval/frames"] == 100


def test_max_steps_cuts_beside_the_env_s_own_counter_and_leaves_shorter_episodes_alone():
    def make():
        return gym.wrappers.TimeLimit(CoinEnv(), 20)

    result = coins(2, asked(limits=EvalLimits(max_steps=12)), make)
    assert set(result.lengths.tolist()) == {SHORT, 12}
    np.testing.assert_array_equal(result.truncated, result.lengths == 12)
    np.testing.assert_array_equal(result.terminated, result.lengths == SHORT)


def test_an_episode_that_ends_by_itself_at_the_limit_is_terminated_and_truncated():
    result = coins(1, asked(limits=EvalLimits(max_steps=SHORT)))
    assert result.truncated.all()
    assert result.terminated.any()


@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.name)
def test_max_steps_cuts_in_vector_envs_too(mode):
    vector = SyncVectorEnv([CoinEnv] * 3, autoreset_mode=mode)
    result = evaluate_once(integer_policy, vector, asked(limits=EvalLimits(max_steps=12)))
    reference = coins(1, asked(limits=EvalLimits(max_steps=12)))
    np.testing.assert_array_equal(result.returns, reference.returns)
    np.testing.assert_array_equal(result.truncated, reference.truncated)


def test_without_a_seed_nothing_is_seeded_and_no_episode_claims_a_seed():
    env = CoinEnv()
    result = evaluate_once(integer_policy, env, asked(4, seed=None))
    assert env.resets == [None] * 4
    assert result.seeds.tolist() == [-1] * 4
    assert result.seeding == "none"


def test_k_tasks_are_played_in_turn():
    makers = [lambda: gym.wrappers.TransformReward(CoinEnv(), lambda r: 0.0), CoinEnv]
    result = evaluate_once(integer_policy, makers, asked(9), Slots(4))
    assert result.returns[::2].tolist() == [0.0] * 5
    assert result.returns[1::2].tolist() == [expected(seed)[0] for seed in result.seeds[1::2]]


def test_rounds_are_played_until_the_interval_is_narrow_and_go_on_with_the_seeds():
    rule = StopRule(num_trajectories=6, until_ci_halfwidth=30.0)
    result = coins(4, EvalRequest(stop=rule))
    n = result["eval/num_episodes"]
    assert result.stopped == "ci"
    assert n % 6 == 0
    assert (result["eval/reward_ci_high"] - result["eval/reward_ci_low"]) / 2 <= 30.0
    np.testing.assert_array_equal(result.returns, coins(1, asked(n)).returns)


def test_rounds_end_at_the_bound():
    result = coins(4, EvalRequest(stop=StopRule(5, until_ci_halfwidth=1e-3, max_trajectories=17)))
    assert (result.stopped, result["eval/num_episodes"]) == ("max", 15)
    assert coins(4).stopped == "fixed"


def test_the_result_has_all_keys_of_the_contract_under_its_prefix_and_says_what_it_is_for():
    with LocalEvaluation(CoinEnv, log_prefix="valid") as evaluation:
        result = evaluation.run(integer_policy, asked(step=40_000, policy_version=7))
    assert {name.removeprefix("valid/") for name in result} == {
        *("reward", "reward_std", "reward_min", "reward_max", "reward_median", "reward_iqm"),
        *("reward_ci_low", "reward_ci_high", "num_episodes", "frames", "episode_length"),
        *("duration_s", "fps", "step", "policy_version"),
    }
    assert (result["valid/step"], result.step, result["valid/policy_version"]) == (40_000, 40_000, 7)
    assert result["valid/fps"] == result["valid/frames"] / result["valid/duration_s"]


def test_an_empty_prefix_is_refused():
    with pytest.raises(ValueError, match="log_prefix"):
        LocalEvaluation(CoinEnv, log_prefix="")


def test_the_same_envs_serve_several_evaluations_with_equal_numbers():
    with LocalEvaluation(CoinEnv, Slots(3)) as evaluation:
        first, second = evaluation.run(integer_policy, asked()), evaluation.run(integer_policy, asked())
    np.testing.assert_array_equal(first.returns, second.returns)


# ----------------------------------------------------------------------------------------------------------------------


class Sampling(nn.Module):
    """Draws inside itself."""

    def forward(self, observation, exploration_type=None):
        if exploration_type is ExplorationType.DETERMINISTIC:
            return integer_policy(observation)
        noise = torch.randint(0, 7, observation.shape[:-1])
        return (noise + int(np.random.randint(7)) + random.randrange(7)) % 7


@pytest.mark.parametrize("num_envs", [4, 7])
def test_sampled_actions_are_those_of_the_episode_whatever_the_number_of_envs(num_envs):
    request = asked(exploration_type=ExplorationType.RANDOM)
    alone, beside = coins(None, request, policy=Sampling()), coins(num_envs, request, policy=Sampling())
    np.testing.assert_array_equal(alone.returns, beside.returns)
    assert not np.array_equal(alone.returns, coins(None, policy=Sampling()).returns)
    again = asked(seed=0, exploration_type=ExplorationType.RANDOM)
    np.testing.assert_array_equal(alone.returns, coins(3, again, policy=Sampling()).returns)


def test_a_policy_that_draws_although_it_should_not_is_repeatable_at_the_same_layout():
    def restless(observation):
        return torch.randint(0, 7, observation.shape[:-1])

    torch.manual_seed(1)
    first = coins(3, policy=restless)
    torch.manual_seed(2)
    np.testing.assert_array_equal(first.returns, coins(3, policy=restless).returns)


def test_without_a_seed_sampled_actions_follow_the_process_s_own_generator():
    def drawn(seed):
        torch.manual_seed(seed)
        env = CoinEnv()
        env.reset(seed=1)
        request = asked(5, seed=None, exploration_type=ExplorationType.RANDOM)
        return evaluate_once(lambda obs: torch.randint(0, 7, obs.shape[:-1]), env, request).returns.tolist()

    assert drawn(1) == drawn(1) != drawn(2)


@pytest.mark.parametrize("seed", [0, None])
@pytest.mark.parametrize("exploration", [ExplorationType.RANDOM, ExplorationType.DETERMINISTIC])
def test_random_states_of_the_process_are_the_same_after_as_before(seed, exploration):
    def states():
        return torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate()

    before = states()
    coins(2, asked(seed=seed, exploration_type=exploration), policy=Sampling())
    assert states() == before


class Normed(nn.Module):
    """Acts differently in training mode, and notes how it was called."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.calls = []

    def forward(self, observation):
        self.calls.append((self.training, torch.is_grad_enabled()))
        return integer_policy(observation) if not self.training else torch.zeros_like(observation[..., 0])


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


def test_weights_are_those_of_the_moment_of_each_run():
    policy = nn.Linear(2, 7).double()

    class Greedy(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = policy

        def forward(self, observation):
            return self.linear(observation.double()).argmax(-1)

    greedy = Greedy()
    with LocalEvaluation(CoinEnv, Slots(2)) as evaluation:
        first = evaluation.run(greedy, asked())
        with torch.no_grad():
            policy.weight.copy_(-policy.weight)
            policy.bias.copy_(-policy.bias)
        second = evaluation.run(greedy, asked())
    assert not np.array_equal(first.returns, second.returns)


def test_a_policy_that_cannot_be_copied_is_refused_with_the_way_out():
    class Stuck(Normed):
        def __deepcopy__(self, memo):
            raise RuntimeError("no")

    with pytest.raises(TypeError, match=r"Stuck cannot be copied \(no\).*private copy"):
        coins(1, policy=Stuck())


def test_tensordict_modules_sample_by_the_type_asked_for_and_leave_the_process_s_type_alone():
    net = TensorDictModule(
        lambda obs: torch.stack([obs[..., 0] % 5, obs[..., 1] % 3], -1).float(), ["observation"], ["logits"]
    )
    head = ProbabilisticTensorDictModule(["logits"], ["action"], distribution_class=torch.distributions.Categorical)
    policy = TensorDictSequential(net, head)
    before = interaction_type()
    greedy = coins(3, policy=policy)
    drawn = coins(3, asked(exploration_type=ExplorationType.RANDOM), policy=policy)
    assert interaction_type() is before
    by_hand = coins(
        1, policy=lambda obs: policy[0](TensorDict({"observation": obs}, obs.shape[:-1]))["logits"].argmax(-1)
    )
    np.testing.assert_array_equal(greedy.returns, by_hand.returns)
    assert not np.array_equal(greedy.returns, drawn.returns)
    alone = coins(1, asked(exploration_type=ExplorationType.RANDOM), policy=policy)
    np.testing.assert_array_equal(alone.returns, drawn.returns)


class Memory(nn.Module):
    """Counts the steps of an episode in a recurrent state."""

    in_keys = ["observation", "count"]
    out_keys = ["action", ("next", "count")]

    def forward(self, observation, count):
        count = torch.zeros_like(observation[..., :1]) if count is None else count
        return (count[..., 0] + observation[..., 0]) % 7, count + 1


@pytest.mark.parametrize("exploration", [ExplorationType.RANDOM, ExplorationType.DETERMINISTIC])
@pytest.mark.parametrize("num_envs", [None, 4])
def test_recurrent_state_starts_anew_with_each_episode(num_envs, exploration):
    result = coins(num_envs, asked(exploration_type=exploration), policy=Memory())
    np.testing.assert_array_equal(result.returns, coins(1).returns)  # the state is the env's own step counter


# ----------------------------------------------------------------------------------------------------------------------


def test_an_env_that_raises_reaches_the_caller_as_its_own_type_with_a_note_and_the_next_run_is_fine():
    env = FaultyEnv(at_step=30)
    with LocalEvaluation([env, CoinEnv()]) as evaluation:
        with pytest.raises(KeyError, match="simulator is gone") as caught:
            evaluation.run(integer_policy, asked())
        (note,) = caught.value.__notes__
        assert "slot 0 in episode" in note
        assert f"seed of its reset: {env.resets[-1]}" in note
        assert "of 23 episodes complete" in note
        np.testing.assert_array_equal(evaluation.run(integer_policy, asked()).returns, coins(1).returns)


@pytest.mark.parametrize("at_reset", [0, 2])
def test_an_env_that_raises_in_a_reset_does_too(at_reset):
    with pytest.raises(KeyError, match="simulator is gone") as caught:
        coins(1, env=lambda: FaultyEnv(at_reset=at_reset))
    assert f"slot 0 in episode {at_reset}" in caught.value.__notes__[0]
    assert caught.value.__cause__ is None


def test_a_vector_env_that_raises_does_too():
    vector = SyncVectorEnv([lambda: FaultyEnv(at_step=5), CoinEnv], autoreset_mode=AutoresetMode.SAME_STEP)
    with pytest.raises(KeyError, match="simulator is gone"):
        evaluate_once(integer_policy, vector, asked())


def test_a_policy_that_raises_gets_a_note_too():
    def moody(observation):
        if int(observation[..., 1].max()) > 1:
            raise ArithmeticError("lost my mind")
        return integer_policy(observation)

    with pytest.raises(ArithmeticError, match="lost my mind") as caught:
        coins(2, policy=moody)
    assert "in an evaluation with seed=0, 0 of 23 episodes complete" in caught.value.__notes__[0]


def test_what_was_built_is_closed_after_a_failure_and_instances_are_left_open():
    built = []

    def make():
        built.append(FaultyEnv(at_step=1))
        return built[-1]

    with pytest.raises(KeyError):
        coins(2, env=make)
    assert all(env.closed for env in built)
    mine = CoinEnv()
    evaluate_once(integer_policy, mine, asked(1))
    assert not mine.closed


def test_past_its_deadline_an_evaluation_says_who_is_late(monkeypatch):
    ticks = iter(range(10**6))
    monkeypatch.setattr("swath.evaluate.local.monotonic", lambda: next(ticks))
    with pytest.raises(WorkerLate, match=r"timeout_s=200.*of 23 episodes complete.*max_steps") as caught:
        coins(2, asked(limits=EvalLimits(timeout_s=200)), EndlessEnv)
    assert (caught.value.workers, caught.value.deadline) == ((0,), 200)
    assert isinstance(caught.value, TimeoutError)


def test_nan_rewards_give_nan_statistics():
    def make():
        return gym.wrappers.TransformReward(CoinEnv(), lambda reward: float("nan"))

    result = coins(2, env=make)
    assert np.isnan(result["eval/reward"])
    assert np.isnan(result["eval/reward_iqm"])


@pytest.mark.filterwarnings("ignore:.*precision lowered")  # gymnasium's, about EnvPool's spaces
def test_envs_that_cannot_be_seeded_say_so_once_and_everything_else_holds():
    envpool = pytest.importorskip("envpool")
    env = envpool.make("CartPole-v1", env_type="gymnasium", num_envs=3)

    def policy(observation):
        return (observation[..., 2] > 0).int()

    with pytest.warns(NoEffectWarning, match="the seed of an evaluation has no effect"):
        result = evaluate_once(policy, env, asked(8))
    assert result.seeding == "none"
    assert result["eval/num_episodes"] == 8
    np.testing.assert_array_equal(result.returns, result.lengths)


class OneSeedForAll(SyncVectorEnv):
    """A vector env of a stranger: it resets only as a whole and takes one seed."""

    @property
    def unwrapped(self):
        return object()


@pytest.mark.parametrize("limits", [EvalLimits(), EvalLimits(max_steps=12)])
@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP], ids=lambda mode: mode.name)
def test_vector_envs_that_take_one_seed_for_all_are_repeatable_as_a_whole(mode, limits):
    def play(seed):
        return evaluate_once(
            integer_policy, OneSeedForAll([CoinEnv] * 4, autoreset_mode=mode), asked(9, seed=seed, limits=limits)
        )

    first, second = play(0), play(0)
    np.testing.assert_array_equal(first.returns, second.returns)
    assert first.seeding == "layout"
    assert first.seeds.tolist() == [-1] * 9
    assert not np.array_equal(first.returns, play(1).returns)
    longest = limits.max_steps or LONG
    assert set(first.lengths.tolist()) == {SHORT, longest}


@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.name)
def test_vector_statistics_of_a_wrapper_survive_our_resets_of_single_envs(mode):
    vector = RecordVectorStatistics(SyncVectorEnv([CoinEnv] * 4, autoreset_mode=mode))
    result = evaluate_once(integer_policy, vector, asked(), Slots(trust_monitors=True))
    reference = coins(1)
    np.testing.assert_array_equal(result.returns, reference.returns)
    np.testing.assert_array_equal(result.lengths, reference.lengths)
