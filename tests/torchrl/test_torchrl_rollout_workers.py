"""Rollout workers over TorchRL's envs: one of no batch size is a sub-env, one with a batch size has its own."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torchrl.data import Binary, Bounded, Categorical, Composite, MultiCategorical, MultiOneHot, OneHot, Unbounded
from torchrl.envs import EnvBase, GymEnv, SerialEnv, StepCounter, TransformedEnv
from torchrl_toys import Agents, Counting, Growing, Heterogeneous, Images, NestedKeys, Talking

from swath.rollout_workers import AlgorithmConfig, DefaultCallbacks, Policy, PPOTorchPolicy, RandomPolicy, RolloutWorker

FLAG = Categorical(2, dtype=torch.bool, shape=(1,))
F = 6


class Still(Policy):
    """Does the same always, and remembers what it saw."""

    def compute_actions(self, obs_batch, state_batches=None, **_):
        n = len(next(iter(obs_batch.values())) if isinstance(obs_batch, dict) else obs_batch)
        self.action_space.seed(3)
        action = self.action_space.sample()
        if isinstance(action, dict):
            return {name: np.stack([part] * n) for name, part in action.items()}, [], {}
        return [action] * n, [], {}


def worker_of(make, policy=RandomPolicy, **settings):
    config = AlgorithmConfig().update_from_dict(
        {"rollout_fragment_length": F, "delay_between_sub_environment_restarts_s": 0.0, **settings}
    )
    return RolloutWorker(env_creator=lambda _: make(), default_policy_class=policy, config=config)


def plain(batch):
    """All columns but random numbers."""
    return {name: batch[name].tolist() for name in ("obs", "new_obs", "rewards", "terminateds", "truncateds", "t")}


@pytest.mark.parametrize("batch_size", [(3,), (1, 3)])
def test_an_env_with_sub_envs_of_its_own_gives_the_rows_of_as_many_single_ones(batch_size):
    own = worker_of(lambda: Counting(batch_size), num_envs_per_env_runner=3)
    with own, worker_of(Counting, num_envs_per_env_runner=3) as single:
        assert (own.async_env.num_envs, single.async_env.num_envs) == (3, 3)
        assert ([type(env) for env in single.async_env.get_sub_environments()], type(own.env)) == (
            [Counting] * 3,
            Counting,
        )
        for _ in range(3):
            batch = own.sample()
            assert plain(batch) == plain(single.sample())
            np.testing.assert_array_equal(batch["obs"][:, 0], batch["t"])
            np.testing.assert_array_equal(batch["new_obs"][:, 0], batch["t"] + 1)
            np.testing.assert_array_equal(batch["rewards"], batch["t"] + 1)
            lengths = batch["new_obs"][batch["terminateds"], 0]
            assert set(lengths.tolist()) <= set(Counting.lengths)
            assert not batch["truncateds"].any()


def test_an_env_that_begins_episodes_in_a_way_of_its_own_shows_their_true_ends():
    class OwnWay(Counting):
        def step_and_maybe_reset(self, tensordict):
            return super().step_and_maybe_reset(tensordict)

    with (
        worker_of(lambda: OwnWay((2,)), num_envs_per_env_runner=2) as own,
        worker_of(lambda: Counting((2,)), num_envs_per_env_runner=2) as usual,
    ):
        for _ in range(3):
            assert plain(own.sample()) == plain(usual.sample())


@pytest.mark.parametrize("batch_size", [(), (2,)])
def test_nested_entries_are_dicts_in_their_own_dtypes_and_rewards_are_summed(batch_size):
    settings = {"num_envs_per_env_runner": 2, "_disable_preprocessor_api": True}
    with worker_of(lambda: NestedKeys(batch_size), **settings) as worker:
        batch = worker.sample()
        observed, acted = worker.get_spaces()["__env__"]
    sensors = observed["sensors"]
    assert sensors["camera"]["left"] == gym.spaces.Box(0, 255, (2, 3), np.uint8)
    assert sensors["clock"] == gym.spaces.Box(-np.inf, np.inf, (1,), np.float64)
    assert acted == gym.spaces.Box(-1, 1, (2,), np.float32)
    seen = batch["obs"]["sensors"]
    assert (seen["camera"]["left"].dtype, seen["clock"].dtype) == (np.uint8, np.float64)
    np.testing.assert_array_equal(seen["clock"][:, 0], batch["t"] / 4)
    np.testing.assert_array_equal(seen["camera"]["left"][:, 1, 2], batch["t"] + 5)
    paid = 2 * batch["actions"].sum(1) + batch["t"] + 1  # two entries: the sum of the action, and that beside the step
    np.testing.assert_allclose(batch["rewards"], paid, rtol=1e-5)


@pytest.mark.parametrize("batch_size", [(), (2,)])
def test_several_entries_become_one_vector_for_networks(batch_size):
    with worker_of(lambda: Images(batch_size), num_envs_per_env_runner=2) as worker:
        batch = worker.sample()
        space = worker.get_policy().observation_space
    assert (space.shape, batch["obs"].shape, batch["obs"].dtype) == ((770,), (2 * F, 770), np.float32)
    np.testing.assert_array_equal(batch["obs"][:, 0], batch["t"])  # "observation" comes first
    np.testing.assert_array_equal(batch["obs"][:, 2], batch["t"])  # the first pixel
    assert (batch["actions"].shape, batch["actions"].dtype) == ((2 * F, 4), np.int8)


class Echo(EnvBase):
    """Observes the last action as it came."""

    def __init__(self, spec, batch_size=()):
        super().__init__(batch_size=torch.Size(batch_size))
        b = self.batch_size
        self.action_spec = Composite(deep=Composite(action=spec.expand(*b, *spec.shape), shape=b), shape=b)
        size = int(np.prod(spec.shape))
        self.observation_spec = Composite(seen=Unbounded((*b, size)), shape=b)
        self.reward_spec = Unbounded((*b, 1))
        self.done_spec = Composite({name: FLAG.expand(*b, 1).clone() for name in ("done", "terminated")}, shape=b)
        self.size = size

    def _set_seed(self, seed):
        """There is no randomness."""

    def _reset(self, tensordict=None, **_):
        return TensorDict({"seen": torch.zeros(*self.batch_size, self.size)}, self.batch_size)

    def _step(self, tensordict):
        action = tensordict["deep", "action"]
        assert self.action_spec["deep", "action"].is_in(action), action
        over = torch.zeros(*self.batch_size, 1, dtype=torch.bool)
        seen = action.reshape(*self.batch_size, self.size).float()
        entries = {"seen": seen, "reward": seen.sum(-1, keepdim=True), "done": over, "terminated": over.clone()}
        return TensorDict(entries, self.batch_size)


def hot(*pairs):
    """One-hot vectors behind one another, of (choice, size)."""
    return np.concatenate([np.eye(size, dtype=np.float32)[choice] for choice, size in pairs], axis=-1)


ACTIONS = {
    "categorical": (Categorical(5), gym.spaces.Discrete(5), lambda a: a[:, None]),
    "categoricals": (Categorical(5, (2,)), gym.spaces.MultiDiscrete([5, 5]), lambda a: a),
    "one-hot": (OneHot(4), gym.spaces.Discrete(4), lambda a: hot((a, 4))),
    "one-hots": (OneHot(4, (2, 4)), gym.spaces.MultiDiscrete([4, 4]), lambda a: hot((a[:, 0], 4), (a[:, 1], 4))),
    "kinds of choices": (MultiCategorical([2, 3]), gym.spaces.MultiDiscrete([2, 3]), lambda a: a),
    "one-hot kinds": (
        MultiOneHot([2, 3]),
        gym.spaces.MultiDiscrete([2, 3]),
        lambda a: hot((a[:, 0], 2), (a[:, 1], 3)),
    ),
    "binary": (Binary(3), gym.spaces.MultiBinary((3,)), lambda a: a),
    "bounded": (Bounded(-2, 3, (2, 2)), gym.spaces.Box(-2, 3, (2, 2)), lambda a: a.reshape(-1, 4)),
    "whole numbers": (Bounded(-2, 3, (2,), dtype=torch.int32), gym.spaces.Box(-2, 3, (2,), np.int32), lambda a: a),
    "unbounded": (Unbounded((2,), dtype=torch.float64), gym.spaces.Box(-np.inf, np.inf, (2,), np.float64), lambda a: a),
}


@pytest.mark.parametrize("batch_size", [(), (2,)])
@pytest.mark.parametrize("kind", ACTIONS)
def test_actions_of_any_kind_come_to_the_env_in_its_own_form(kind, batch_size):
    spec, space, expected = ACTIONS[kind]
    settings = {"num_envs_per_env_runner": 2, "normalize_actions": False}
    with worker_of(lambda: Echo(spec, batch_size), **settings) as worker:
        batch = worker.sample()
        assert worker.get_spaces()["default_policy"][1] == space
    np.testing.assert_allclose(batch["new_obs"], expected(batch["actions"]).astype(np.float32))


def test_agents_of_a_group_are_one_agent_here():
    with worker_of(lambda: Agents((2,)), num_envs_per_env_runner=2) as worker:
        batch = worker.sample()
        observed, acted = worker.get_spaces()["__env__"]
    assert (observed["agents"]["observation"].shape, acted) == ((3, 2), gym.spaces.MultiDiscrete([3, 3, 3]))
    np.testing.assert_array_equal(batch["rewards"], batch["actions"].sum(1) + 3 * (batch["t"] + 1))


@pytest.mark.parametrize("kind", [Talking, Growing, Heterogeneous])
@pytest.mark.parametrize("batch_size", [(), (2,)])
def test_what_is_no_array_of_fixed_shape_is_refused_by_name_and_the_env_closed(kind, batch_size):
    made = []

    def make():
        made.append(kind(batch_size))
        return made[-1]

    with pytest.raises(
        TypeError, match=r"the observation .* of a TorchRL env is .*rollout workers cannot make arrays of"
    ):
        worker_of(make)
    assert [env.is_closed for env in made] == [True]


def test_envs_of_one_worker_must_be_alike():
    sizes = iter([1, 2])
    with pytest.raises(ValueError, match="env 1 has observation_space"):
        worker_of(lambda: Echo(Unbounded((next(sizes),))), num_envs_per_env_runner=2)
    kinds = iter([Counting(), gym.make("CartPole-v1")])
    with pytest.raises(TypeError, match="make envs of one kind"):
        worker_of(lambda: next(kinds), num_envs_per_env_runner=2)


class Breaking(Counting):
    """Raises in a step, and in a reset."""

    def __init__(self, batch_size=(), at_step=0, at_reset=0):
        self.left, self.resets_left = at_step, at_reset
        super().__init__(batch_size)

    def _step(self, tensordict):
        self.left -= 1
        if self.left == 0:
            raise ArithmeticError("the step broke")
        return super()._step(tensordict)

    def _reset(self, tensordict=None, **kwargs):
        self.resets_left -= 1
        if self.resets_left == 0:
            raise ArithmeticError("the reset broke")
        return super()._reset(tensordict, **kwargs)


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("batch_size", [(), (3,)])
def test_a_step_that_raises_ends_the_episode_of_that_env_or_of_the_batch(batch_size, restart):
    made = []

    def make():
        made.append(Breaking(batch_size, at_step=3 if len(made) == (0 if batch_size else 1) else 0))
        return made[-1]

    settings = {"num_envs_per_env_runner": 3, "restart_failed_sub_environments": restart}
    with worker_of(make, **settings) as worker:
        if not restart:
            with pytest.raises(ArithmeticError, match="the step broke") as caught:
                worker.sample()
            assert any("sub-env" in note for note in caught.value.__notes__)
        batch = worker.sample()
    assert len(batch) == 3 * F
    t = batch["t"].reshape(3, F).tolist()
    whole, broken = [0, 1, 2, 3, 0, 1], [0, 1, 0, 1, 2, 3]
    if batch_size or not restart:  # one that is made anew counts its episodes anew
        assert t[1][:4] == broken[:4]
    assert t[0] == (broken if batch_size else whole)
    assert len(made) - (1 if batch_size else 3) == restart
    assert all(env.is_closed for env in made)


@pytest.mark.parametrize("batch_size", [(), (3,)])
def test_a_reset_that_raises_is_raised_and_the_next_call_goes_on(batch_size):
    broken = iter([2] * (1 if batch_size else 3))
    make = lambda: Breaking(batch_size, at_reset=next(broken, 0))
    with worker_of(make, num_envs_per_env_runner=3) as worker:
        for _ in range(1 if batch_size else 3):
            with pytest.raises(ArithmeticError, match="the reset broke"):
                worker.sample()
        assert len(worker.sample()) == 3 * F


def test_seeds_go_to_each_env_and_to_a_batch_the_first():
    class Seeded(Counting):
        def _set_seed(self, seed):
            self.seeds = [*getattr(self, "seeds", ()), seed]

    settings = {"num_envs_per_env_runner": 2, "seed": 7}
    with worker_of(Seeded, **settings) as worker:
        worker.sample()
        worker.sample()
        assert worker.foreach_env(lambda env: env.seeds) == [[7], [8]]
    with worker_of(lambda: Seeded((2,)), **settings) as worker:
        worker.sample()
        assert worker.foreach_env(lambda env: env.seeds) == [[7]]


def test_users_see_the_envs_as_they_made_them():
    seen = []

    class Listening(DefaultCallbacks):
        def on_sub_environment_created(self, *, sub_environment, **_):
            seen.append(type(sub_environment))

        def on_episode_start(self, *, env, **_):
            seen.append(type(env))

    config = AlgorithmConfig().callbacks(Listening).env_runners(num_envs_per_env_runner=2, rollout_fragment_length=F)
    validate = lambda env, context: seen.append(type(env))
    with RolloutWorker(
        env_creator=lambda _: Counting(), validate_env=validate, default_policy_class=RandomPolicy, config=config
    ) as worker:
        worker.sample()
        assert (type(worker.env), worker.foreach_env(type)) == (Counting, [Counting] * 2)
    assert set(seen) == {Counting}
    assert len(seen) >= 6


def test_envs_may_live_in_processes_of_their_own():
    settings = {"num_envs_per_env_runner": 2, "remote_worker_envs": True}
    with worker_of(Counting, **settings) as elsewhere, worker_of(Counting, num_envs_per_env_runner=2) as here:
        assert plain(elsewhere.sample()) == plain(here.sample())
        assert elsewhere.foreach_env(type) == [Counting] * 2


@pytest.mark.parametrize(
    "make",
    [
        lambda: GymEnv("CartPole-v1"),
        lambda: TransformedEnv(GymEnv("CartPole-v1"), StepCounter()),
        lambda: SerialEnv(2, lambda: GymEnv("CartPole-v1")),
    ],
)
def test_a_policy_learns_from_torchrls_own_envs(make):
    with worker_of(make, PPOTorchPolicy, num_envs_per_env_runner=2, rollout_fragment_length=50, seed=1) as worker:
        batch = worker.sample()
        _, steps = worker.sample_and_learn(100, 2, 50)
    assert steps == 100
    goes_on = (batch["eps_id"][1:] == batch["eps_id"][:-1]) & (batch["unroll_id"][1:] == batch["unroll_id"][:-1])
    np.testing.assert_array_equal(batch["obs"][1:][goes_on], batch["new_obs"][:-1][goes_on])
    assert 0 < goes_on.sum() < 99


@pytest.mark.parametrize("batch_size", [(), (2,)])
def test_frames_are_those_that_the_env_renders(batch_size):
    class Drawn(Counting):
        def render(self):
            return np.full((2, 2, 3), 7, np.uint8)

    with worker_of(lambda: Drawn(batch_size)) as worker:
        frame = worker.envs.host.render(0)
    assert frame.tolist() == np.full((2, 2, 3), 7).tolist()
    with worker_of(lambda: Counting(batch_size)) as worker:
        assert worker.envs.host.render(0) is None
