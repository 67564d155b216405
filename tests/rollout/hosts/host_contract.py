"""The contract of hosts of envs, and a stricter one for counting envs."""

from contextlib import contextmanager
from itertools import islice

import numpy as np
import pytest
import torch

from swath.rollout.failures import Failures
from swath.rollout.hosts.base import TensorDictSpec
from swath.rollout.loop import LoopState, Rules, StepLimit, restart_all, steps
from swath.rollout.memory import as_array
from swath.rollout.random_policy import RandomPolicy
from swath.rollout.seeding import PrivateStreams
from swath.rollout.spaces import observation_leaves
from swath.testing.counting import Counting, Mark, Script, read, reward_of


class HostContract:
    """Shapes, ownership, resets, seeds. To override: the fixture `make_host`, a function that builds the host.

    Attributes:
        n_steps: number of steps to play; episodes should end within.
        seeds_tell: whether all data follow from the seeds.
    """

    n_steps = 40
    seeds_tell = True

    def test_resets_and_steps_return_one_row_per_env_of_every_leaf(self, make_host):
        with opened(make_host) as host:
            _require_fits(host, host.reset_all(), "the first reset")
            for step in play(host, self.n_steps):
                _require_fits(host, step.next_observation, "a step")
                assert np.shape(step.reward) == (host.spec.num_envs,), f"rewards have shape {np.shape(step.reward)}"
                ended = [env for env, _, _ in step.ends]
                assert ended == sorted(set(ended)), f"ends are not in env order: {ended}"
                assert all(terminated or truncated for _, terminated, truncated in step.ends), "an end without a flag"
                assert not set(step.void) & set(ended), f"rows that are no transitions have ended: {step.void}"

    def test_what_was_observed_is_never_written_again(self, make_host):
        with opened(make_host) as host:
            pairs = [(leaves := step.next_observation, _copies(host, leaves)) for step in play(host, self.n_steps)]
            for leaves, kept in pairs:
                assert all(map(_equal, _seen(host, leaves), kept)), (
                    "an observation was written again after it was handed out"
                )

    def test_a_reset_of_some_envs_leaves_the_rest_alone(self, make_host):
        with opened(make_host) as host:
            step = next((step for step in play(host, self.n_steps) if step.ends.envs.size), None)
            assert step is not None, f"no episode ended in {self.n_steps} steps; play longer"
            ended = [env for env, _, _ in step.ends]
            others = [env for env in range(host.spec.num_envs) if env not in ended]
            base, kept = step.next_observation, _copies(host, step.next_observation)
            fresh = host.reset(ended, base)
            assert all(map(_equal, _seen(host, base), kept)), "the reset wrote into the arrays it was given"
            for new, old in zip(_seen(host, fresh), kept, strict=True):
                assert _equal(new[others], old[others]), f"a reset of {ended} changed rows of {others}"

    def test_the_same_seeds_and_actions_give_the_same_episodes(self, make_host):
        with opened(make_host) as host, opened(make_host) as other:
            if not self.seeds_tell or host.spec.seeding == "none":
                pytest.skip("these envs cannot be seeded")
            seeds = [3 + 17 * env for env in range(host.spec.num_envs)]
            pairs = zip(play(host, self.n_steps, seeds), play(other, self.n_steps, seeds), strict=True)
            for t, pair in enumerate(pairs):
                a, b = (
                    [*_seen(host, step.observation), *_seen(host, step.next_observation), step.reward] for step in pair
                )
                assert all(map(_equal, a, b)), f"step {t} differs: {a} and {b}"
                assert list(pair[0].ends) == list(pair[1].ends), f"step {t} ends differently"


class CountedHostContract(HostContract):
    """For hosts of counting envs: nothing is lost, repeated or mixed."""

    @pytest.fixture
    def counting(self):
        return Counting()

    def test_steps_and_resets_follow_each_other(self, make_host, counting):
        n_ends = 0
        with opened(make_host) as host:
            expected = dict(enumerate(_marks(counting, host.reset_all())))
            expected = {env: mark._replace(episode=mark.episode + 1) for env, mark in expected.items()}
            for step in play(host, self.n_steps):
                before, after = _marks(counting, step.observation), _marks(counting, step.next_observation)
                for env, mark in expected.items():
                    if env in step.void:
                        assert mark.step == 0, f"env {env} is void within an episode, at {before[env]}"
                        assert after[env] == mark, f"env {env} began with {after[env]} instead of {mark}"
                    else:
                        assert before[env] == mark, f"env {env} goes on from {before[env]} instead of {mark}"
                        expected[env] = mark._replace(step=mark.step + 1)
                        assert after[env] == expected[env], f"env {env}: {mark} led to {after[env]}"
                for env, _, _ in step.ends:
                    expected[env] = Mark(env, after[env].episode + 1, 0)
                n_ends += len(step.ends.envs)
        assert n_ends >= host.spec.num_envs, f"only {n_ends} episodes ended in {self.n_steps} steps; play longer"

    def test_each_row_has_the_flags_of_its_episode_and_the_action_that_its_env_got(self, make_host, counting):
        assert isinstance(counting.script, Script)
        with opened(make_host) as host:
            for step in play(host, self.n_steps):
                after, flags = _marks(counting, step.next_observation), {env: flags for env, *flags in step.ends}
                for env in set(range(host.spec.num_envs)).difference(step.void):
                    plan = counting.script.plan(env, after[env].episode)
                    wanted = plan.flags if after[env].step == plan.length else (False, False)
                    assert tuple(flags.get(env, wanted)) == wanted, f"{after[env]} ends with {flags.get(env)}: {plan}"
                    assert any(wanted) == (env in flags), f"{after[env]} of {plan}: ends are {step.ends}"
                    rows = zip(host.spec.action, step.outputs, strict=True)
                    reward = reward_of(after[env], [as_array(row[env]).astype(leaf.dtype) for leaf, row in rows])
                    assert step.reward[env] == reward, f"env {env} got another action at {after[env]}"


class Dice:
    """An actor that draws the same random actions for every host of one action space."""

    has_state = False

    def __init__(self, host):
        self._streams = PrivateStreams(11)
        self._draw = _sampler(host)

    def __call__(self, observation):
        with self._streams.activate():
            return self._draw(observation)

    def begin(self, envs):
        pass

    def rewind(self):
        pass


def play(host, n_steps, seeds=None, actor=None):
    """Yield `n_steps` steps from a reset of all envs on; an exception of an env is raised.

    Args:
        host: the envs.
        n_steps: number of steps.
        seeds: of the reset, one per env.
        actor: the policy; random actions by default.
    """
    rules = Rules(StepLimit(host.spec), restart_all, Failures())
    source = steps(host, actor or Dice(host), LoopState(host.reset_all(seeds)), rules)
    for step in islice(source, n_steps):
        if step.device_ends is not None:
            step.ends, step.void = step.device_ends.read()
            step.next_observation = step.device_ends.true_observation(step.next_observation)
        is_read = step.reward is not None
        step.reward = as_array(step.reward) if is_read else host.reader.reward(step.outputs[0].get("next"))
        yield step


@contextmanager
def opened(make_host):
    """Build a host, and close it in the end, twice."""
    host = make_host()
    try:
        yield host
    finally:
        host.close()
        host.close()


def _sampler(host):
    spec = host.spec
    if isinstance(spec, TensorDictSpec):
        return lambda leaves: [host.draw(leaves[0].copy())]
    if not spec.observation:  # several agents
        return lambda leaves: [[dict.fromkeys(observations, 0) for observations in leaves[0]]]
    draw = RandomPolicy().sampler(spec.action_space, spec.num_envs, spec.tensor_device)
    return lambda _: draw(None)


def _require_fits(host, leaves, source):
    spec = host.spec
    if isinstance(spec, TensorDictSpec):
        assert leaves[0].batch_size == spec.batch_shape, f"{source} gave {leaves[0].batch_size}, not {spec.batch_shape}"
        missing = set(spec.observation_keys).difference(leaves[0].keys(include_nested=True))
        assert not missing, f"{source} gave no {missing}"
        return
    if not spec.observation:
        assert [*map(type, leaves[0])] == [dict] * spec.num_envs, f"{source} gave {leaves[0]}, not a dict each"
        return
    wanted = [((spec.num_envs, *leaf.shape), leaf.dtype) for leaf in spec.observation]
    assert all(isinstance(leaf, torch.Tensor) == spec.of_tensors for leaf in leaves)
    got = [(leaf.shape, leaf.dtype) for leaf in map(as_array, leaves)]
    assert got == wanted, f"{source} gave leaves {got}; the spec says {wanted}"


def _seen(host, leaves):
    """Return observations as arrays `[B, …]`; of several agents their representations."""
    spec = host.spec
    if isinstance(spec, TensorDictSpec):
        return [leaves[0].get(key).numpy().reshape(spec.num_envs, -1) for key in spec.observation_keys]
    return [*map(as_array, leaves)] if spec.observation else [np.array(list(map(repr, leaves[0])))]


def _copies(host, leaves):
    return [leaf.copy() for leaf in _seen(host, leaves)]


def _equal(first, other):
    return np.array_equal(first, other, equal_nan=first.dtype.kind == "f")


def _marks(counting, leaves):
    parts = zip(observation_leaves(counting.observation_space), map(as_array, leaves), strict=True)
    first, *others = [read(part.space, leaf) for part, leaf in parts]
    assert all((marks == first).all() for marks in others), "leaves of one observation have different marks"
    return [Mark(*row.tolist()) for row in first]
