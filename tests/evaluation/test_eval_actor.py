"""What lives in the actor of a `RayEvalWorker`, without an actor."""

import asyncio
from concurrent.futures import Future

import cloudpickle
import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import SyncVectorEnv

from swath.errors import Closed, Superseded
from swath.evaluation.eval_actor import Ask, EvalActor
from swath.evaluation.newest import Newest, Token
from swath.seeds import derive
from swath.weights.channel import Update
from swath.weights.manifest import snapshot_of
from swath.weights.snapshot import POLICY

LENGTHS = (3, 9)
NUMBERS = {
    *("reward", "reward_std", "reward_min", "reward_max", "reward_median", "reward_iqm"),
    *("reward_ci_low", "reward_ci_high", "num_episodes", "num_frames", "episode_length", "fps", "duration_s"),
    *("policy_version", "episode_rewards", "episode_lengths", "truncated", "frames_truncated"),
}


class Count(gym.Env):
    """Ends after so many steps; earns what the action is."""

    observation_space = gym.spaces.Box(-1, 1, (1,))
    action_space = gym.spaces.Discrete(5)
    metadata = {"render_modes": ["rgb_array"]}

    def __init__(self, length=3, render_mode=None, fails=()):
        self.length, self.render_mode, self.fails = length, render_mode, list(fails)
        self.seeds = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.made = 0
        self.seeds.append(seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.made += 1
        if self.fails:
            raise self.fails.pop()
        return np.zeros(1, np.float32), float(action), self.made >= self.length, False, {}

    def render(self):
        return np.full((4, 6, 3), self.made, np.uint8)


class Constant(torch.nn.Module):
    def __init__(self, action=1):
        super().__init__()
        self.action = torch.nn.Parameter(torch.tensor(float(action)))

    def forward(self, observation):
        return torch.full(observation.shape[:-1], round(self.action.item()))


class Lent:
    def __init__(self, policy):
        self._snapshot = snapshot_of(policy)

    def open(self):
        return self._snapshot


def actor(env_maker=Count, policy_maker=Constant, **options):
    return EvalActor(cloudpickle.dumps((env_maker, policy_maker)), **options)


def ask(number=1, asker="a", **manner):
    return Ask(Token(asker, number), **manner)


def sent(policy, version=1):
    return Update(version, {POLICY: Lent(policy)})


def two(render_mode=None):
    return SyncVectorEnv([lambda length=length: Count(length, render_mode) for length in LENGTHS])


def test_the_reward_is_the_return_of_one_whole_episode():
    numbers = actor().rollout(ask())
    assert numbers.keys() == {*NUMBERS, "frames"}
    assert (numbers["reward"], numbers["episode_length"], numbers["num_frames"]) == (3.0, 3.0, 3)
    assert numbers["frames"] is None
    assert not numbers["truncated"].any()


def test_a_batch_stops_with_the_first_that_is_done():
    numbers = actor(two).rollout(ask())
    assert numbers["episode_lengths"].tolist() == [3, 3]
    assert numbers["truncated"].tolist() == [False, True]
    assert numbers["reward"] == 3.0


def test_a_batch_can_go_on_until_all_are_done():
    numbers = actor(two).rollout(ask(until_any_done=False))
    assert numbers["episode_lengths"].tolist() == list(LENGTHS)
    assert numbers["reward"] == 6.0
    assert numbers["num_frames"] == sum(LENGTHS)
    assert not numbers["truncated"].any()


def test_each_sub_env_begins_with_the_seed_of_its_episode_every_time():
    envs = two()
    one_actor = actor(lambda: envs, seed=7)
    for number in (1, 2):
        one_actor.rollout(ask(number))
    built = one_actor._setting.host.env.envs
    for episode, env in enumerate(built):
        assert [seed for seed in env.seeds if seed is not None] == [derive(7, "evaluation", 0, episode)] * 2


@pytest.mark.parametrize("maker", [lambda: Count(3, "rgb_array"), lambda: two("rgb_array")])
def test_frames_are_those_of_sub_env_0_after_each_step(maker):
    parcel = actor(maker).rollout(ask())
    assert parcel.head.keys() == NUMBERS
    assert parcel.body.shape == (3, 4, 6, 3)
    assert parcel.body.dtype == np.uint8
    assert parcel.body[:, 0, 0, 0].tolist() == [1, 2, 3]


def test_frames_are_bounded():
    parcel = actor(lambda: Count(5, "rgb_array"), film_bytes=2 * 4 * 6 * 3).rollout(ask())
    assert len(parcel.body) == 2
    assert parcel.head["frames_truncated"]
    assert parcel.head["episode_length"] == 5.0


def test_weights_are_those_that_were_sent_last_and_are_counted():
    one_actor = actor()
    assert one_actor.rollout(ask(1))["policy_version"] == 0
    newer = one_actor.rollout(ask(2), sent(Constant(2)))
    assert (newer["reward"], newer["policy_version"]) == (6.0, 1)
    kept = one_actor.rollout(ask(3))
    assert (kept["reward"], kept["policy_version"]) == (6.0, 1)
    assert one_actor.rollout(ask(1, asker="b"), sent(Constant(3)))["policy_version"] == 2


def test_a_policy_without_weights_plays_and_takes_none():
    one_actor = actor(policy_maker=lambda: lambda observation: torch.ones(observation.shape[:-1], dtype=torch.long))
    assert one_actor.rollout(ask(1))["reward"] == 3.0
    with pytest.raises(TypeError, match="has none; submit None"):
        one_actor.rollout(ask(2), sent(Constant()))


class Superseding(Count):
    """At its second step another rollout is asked for."""

    newest, made_then = Future(), 0

    def step(self, action):
        if self.made == 1 and not Superseding.newest.done():
            Superseding.newest.set_result(Token("b", 1))
        Superseding.made_then = self.made + 1
        return super().step(action)


def test_a_rollout_stops_at_its_next_step_when_another_is_asked_for():
    newest = {Token("a", 1): Superseding.newest, Token("b", 1): Future()}
    one_actor = actor(lambda: Superseding(50), superseded=newest.get)
    with pytest.raises(Superseded, match="another handle"):
        one_actor.rollout(ask())
    assert Superseding.made_then == 2
    assert one_actor.rollout(ask(1, asker="b"))["episode_length"] == 50.0


@pytest.mark.parametrize(("newest", "error"), [(Token("b", 1), Superseded), (None, Closed)])
def test_what_was_superseded_before_it_began_is_not_played(newest, error):
    superseded = Future()
    superseded.set_result(newest)
    with pytest.raises(error, match="another handle"):
        actor(superseded=lambda _: superseded).rollout(ask(1))


def test_the_newest_rollout_is_that_which_was_asked_for_last():
    async def asked():
        newest, first, second = Newest(), Token("a", 1), Token("b", 1)
        await newest.announce(first)
        waiting = asyncio.create_task(newest.other_than(first))
        await newest.announce(second)
        assert await waiting == second
        await newest.announce(first)
        assert await newest.other_than(first) == second
        waiting = asyncio.create_task(newest.other_than(second))
        await newest.announce(None)
        assert await waiting is None

    asyncio.run(asked())


def broken_at_first():
    made.append(Count(3, fails=[] if made else [OSError("broken")]))
    return made[-1]


made = []


def test_after_an_exception_the_next_rollout_has_an_env_made_anew():
    one_actor = actor(broken_at_first)
    with pytest.raises(OSError, match="broken") as caught:
        one_actor.rollout(ask(1))
    assert any("RayEvalWorker" in note for note in caught.value.__notes__)
    assert one_actor.rollout(ask(2))["reward"] == 3.0
    assert len(made) == 2
