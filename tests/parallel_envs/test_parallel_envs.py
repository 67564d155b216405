"""PettingZoo's parallel envs in collectors."""

import os
import signal

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn

from swath import Collector, MultiSyncCollector
from swath.errors import BadAnswer
from swath.rollout.hosts.pettingzoo import agent_groups
from swath.testing import same_data

pytest.importorskip("pettingzoo")

from herd import LENGTH, LIVES, Herd, MaskedHerd

pytestmark = pytest.mark.usefixtures("fork_server")

COW, DOG = [LIVES["cow_0"], LIVES["cow_1"]], [LIVES["dog"]]


def collected(env=Herd, policy=None, *, frames=LENGTH, seed=None, **options):
    collector = Collector(env, policy, frames_per_batch=frames, total_frames=frames, **options)
    try:
        if seed is not None:
            collector.set_seed(seed)
        return collector.next()
    finally:
        collector.shutdown()


def test_agents_with_a_number_and_equal_spaces_are_a_group_and_every_other_is_one():
    batch = collected()
    assert batch.batch_size == (LENGTH,)
    assert batch.names == ["time"]
    assert batch["cow", "observation"].shape == (LENGTH, 2, 4)
    assert batch["cow", "action"].shape == (LENGTH, 2)
    assert batch["next", "cow", "reward"].shape == (LENGTH, 2, 1)
    assert batch["cow", "mask"].dtype == torch.bool
    assert batch["dog", "observation"].shape == (LENGTH, 1, 4)
    for flag in ("done", "terminated", "truncated"):
        assert batch["next", "cow", flag].shape == (LENGTH, 2, 1)
        assert batch["next", flag].shape == (LENGTH, 1)
        assert batch[flag].shape == (LENGTH, 1)
    assert ("next", "reward") not in batch.keys(include_nested=True)


def test_observations_of_float64_are_kept_if_that_is_asked_for():
    class Clocks(Herd):
        def observation_space(self, agent):
            return Box(0, np.inf, (1,), np.float64)

        def _seen(self, agents):
            return {agent: np.array([1.7e9 + self.step_number]) for agent in agents}

    observations = collected(Clocks, frames=2, keep_float64=True)["next", "cow", "observation"]
    assert (observations[..., 0] - 1.7e9).tolist() == [[1, 1], [2, 2]]
    with pytest.warns(UserWarning, match=r"the env returned 1700000000\.0 for 'observation', which becomes float32"):
        assert collected(Clocks, frames=2)["cow", "observation"].dtype == torch.float32


def test_a_reward_that_float32_cannot_hold_is_an_error_that_names_the_agent():
    class Generous(Herd):
        def step(self, actions):
            observations, rewards, *rest = super().step(actions)
            return observations, rewards | {"dog": 1e39}, *rest

    with pytest.raises(BadAnswer, match=r"the reward 1e\+39 of agent 'dog', which float32 cannot hold"):
        collected(Generous)


def test_absent_agents_have_zeros_and_no_mask():
    batch = collected(frames=2 * LENGTH)
    for group, lives, numbers in (("cow", COW, [0, 1]), ("dog", DOG, [2])):
        for row, (life, number) in enumerate(zip(lives, numbers, strict=True)):
            for t in range(2 * LENGTH):
                episode, step = divmod(t, LENGTH)
                observations = [number, -1, episode, step] if step < life else [0, 0, 0, 0]
                assert batch[group, "mask"][t, row] == (step < life)
                assert batch[group, "observation"][t, row].tolist() == observations
                led_to = [number, -1, episode, step + 1] if step < life else [0, 0, 0, 0]
                assert batch["next", group, "observation"][t, row].tolist() == led_to
                reward = 100 * number + 10 * (step + 1) + batch[group, "action"][t, row] if step < life else 0
                assert batch["next", group, "reward"][t, row] == reward
                assert batch["next", group, "mask"][t, row] == (step + 1 < life)


def test_an_agent_that_has_ended_stays_ended_and_the_env_is_done_when_none_is_left():
    batch = collected(frames=2 * LENGTH)
    steps = np.arange(2 * LENGTH) % LENGTH
    for row, life in enumerate(COW):
        assert batch["next", "cow", "terminated"][:, row, 0].tolist() == (steps + 1 >= life).tolist()
        assert batch["cow", "done"][:, row, 0].tolist() == (steps >= life).tolist()
    assert batch["next", "dog", "truncated"].flatten().tolist() == (steps + 1 >= DOG[0]).tolist()
    assert not batch["next", "dog", "terminated"].any()
    over = (steps + 1 == LENGTH).tolist()
    assert batch["next", "done"].flatten().tolist() == over
    assert batch["next", "truncated"].flatten().tolist() == over  # the dog was truncated
    assert not batch["next", "terminated"].any()
    assert not batch["done"].any()
    assert batch["collector", "traj_ids"].tolist() == [0] * LENGTH + [1] * LENGTH


def policy():
    cows = nn.Sequential(nn.Linear(4, 3, bias=False))
    return TensorDictSequential(
        TensorDictModule(cows, in_keys=[("cow", "observation")], out_keys=[("cow", "logits")]),
        TensorDictModule(lambda x: x.argmax(-1), in_keys=[("cow", "logits")], out_keys=[("cow", "action")]),
        TensorDictModule(
            lambda x: x[..., 3].long() % 5, in_keys=[("dog", "observation")], out_keys=[("dog", "action")]
        ),
    )


def test_a_tensordict_policy_with_nested_keys_acts():
    acting = policy()
    for copies in (None, 3):
        batch = collected(policy=acting, frames=LENGTH * (copies or 1), envs_per_worker=copies)
        again = acting(batch.select(("cow", "observation"), ("dog", "observation")))
        torch.testing.assert_close(batch["cow", "logits"], again["cow", "logits"])
        assert torch.equal(batch["cow", "action"], again["cow", "action"])
        assert batch["dog", "action"].shape == (*batch.batch_size, 1)


@pytest.mark.parametrize("copies", [None, 2])
def test_equal_seeds_give_equal_data_here_and_in_processes(copies):
    frames = 2 * LENGTH * (copies or 1)
    expected = collected(frames=frames, seed=7, envs_per_worker=copies)
    same_data(collected(frames=frames, seed=7, envs_per_worker=copies), expected)
    fleet = MultiSyncCollector([Herd], None, frames_per_batch=frames, total_frames=frames, envs_per_worker=copies)
    try:
        fleet.set_seed(7)
        fleet_batch = fleet.next()
    finally:
        fleet.shutdown()
    for key in (("cow", "observation"), ("cow", "action"), ("next", "dog", "reward")):
        assert torch.equal(fleet_batch.reshape(expected.batch_size)[key], expected[key])


def test_a_limit_of_steps_truncates_who_is_there():
    batch = collected(frames=6, max_frames_per_traj=3)
    assert batch["next", "truncated"].flatten().tolist() == [False, False, True] * 2
    assert not batch["next", "terminated"].any()
    assert batch["step_count"].flatten().tolist() == [0, 1, 2] * 2
    assert batch["next", "step_count"].flatten().tolist() == [1, 2, 3] * 2
    assert batch["next", "cow", "terminated"][2].flatten().tolist() == [True, False]
    assert batch["next", "cow", "truncated"][2].flatten().tolist() == [False, True]
    assert batch["collector", "traj_ids"].tolist() == [0] * 3 + [1] * 3


def test_random_actions_cover_each_agents_space_and_obey_its_mask():
    batch = collected(frames=400)
    assert set(batch["cow", "action"].unique().tolist()) == {0, 1, 2}
    assert set(batch["dog", "action"].unique().tolist()) == {0, 1, 2, 3, 4}
    batch = collected(MaskedHerd, frames=2 * LENGTH)
    assert batch["cow", "action_mask"].shape == (2 * LENGTH, 2, 3)
    present, steps = batch["cow", "mask"], torch.arange(2 * LENGTH) % LENGTH
    assert torch.equal(batch["cow", "action"][present], (steps[:, None] % 3).expand(-1, 2)[present])


class Stumbling(Herd):
    """Raises in the second step of its second episode, once."""

    stumbled = False

    def step(self, actions):
        if self.episode == 1 and self.step_number == 1 and not self.stumbled:
            self.stumbled = True
            raise OSError("stumbled")
        return super().step(actions)


@pytest.mark.parametrize("copies", [None, 2])
def test_an_env_that_raised_may_begin_another_episode(copies):
    batch = collected(Stumbling, frames=4 * LENGTH * (copies or 1), envs_per_worker=copies, on_env_error="reset")
    rows = batch.reshape(copies or 1, -1)
    for env in range(copies or 1):
        ends = rows[env]["next", "done"].flatten()
        ids = rows[env]["collector", "traj_ids"]
        assert ends[LENGTH - 1]
        assert ends[LENGTH]  # one step, then it stumbled
        assert rows[env]["next", "cow", "truncated"][LENGTH].all()
        assert ids[LENGTH] != ids[LENGTH + 1]
        assert rows[env]["cow", "observation"][LENGTH + 1, 1, 3] == 0


def one_hot(td):
    td["cow", "action"] = torch.zeros(*td.batch_size, 2, 3)
    td["dog", "action"] = torch.zeros(*td.batch_size, 1)
    return td


def none(td: TensorDict):
    return td


def test_actions_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match=r"'cow', 'action'.*\(2, 3\).*2 agents"):
        collected(policy=one_hot, trust_policy=True)
    with pytest.raises(KeyError, match="must answer with the action"):
        collected(policy=none)


def test_an_env_in_turn_is_refused_with_the_way_out():
    from mpe2 import simple_v3

    for source in (simple_v3.env, simple_v3.env()):
        with pytest.raises(TypeError, match="aec_to_parallel"):
            Collector(source, None, frames_per_batch=4, total_frames=4)


def groups(*agents, wide=()):
    class Named(Herd):
        def __init__(self):
            super().__init__()
            self.possible_agents = [*agents]

        def action_space(self, agent):
            return Discrete(4 if agent in wide else 3)

    return {group.name: group.agents for group in agent_groups(Named())}


def test_groups_are_by_name_and_by_space():
    assert groups("a_0", "b", "a_1", "a_x_10") == {"a": ("a_0", "a_1"), "b": ("b",), "a_x": ("a_x_10",)}
    assert groups("a_0", "a_1", "a_2", wide=["a_2"]) == {"a_0": ("a_0",), "a_1": ("a_1",), "a_2": ("a_2",)}
    assert groups("a", "a_0", "a_1") == {"a": ("a",), "a_0": ("a_0",), "a_1": ("a_1",)}


def in_this_process_and_in_two(env, **options):
    """Return a batch of four envs in this process, and one of the same envs in two processes."""
    options = {"policy": policy(), "frames": 8 * LENGTH, "seed": 7, "envs_per_worker": 4, **options}
    return collected(env, **options), collected(env, **options, env_processes=2)


@pytest.mark.parametrize(
    ("env", "options"),
    [
        (Herd, {}),
        (MaskedHerd, {"policy": None}),
        (Herd, {"max_frames_per_traj": 3}),
        (Stumbling, {"on_env_error": "reset"}),
    ],
    ids=["policy", "masked random actions", "limit of steps", "env that raises"],
)
def test_env_processes_give_the_batches_of_one_process(env, options):
    expected, batch = in_this_process_and_in_two(env, **options)
    same_data(batch, expected)
    assert batch["cow"].batch_size == expected["cow"].batch_size


class Dying(Herd):
    """Kills its process in the second step of its second episode, if its seed is even."""

    def step(self, actions):
        if self.episode == 1 and self.step_number == 1 and self.seed % 2 == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(actions)


def test_a_process_that_dies_fails_its_envs_and_another_takes_its_place():
    with Collector(
        Dying, policy(), frames_per_batch=8 * LENGTH, envs_per_worker=4, env_processes=4, on_env_error="reset", seed=3
    ) as collector:
        seeds = collector.env.get_attr("seed")
        batch = collector.next()
    cut = batch["next", "truncated"].squeeze(-1) & (batch["next", "cow", "mask"].any(-1))
    assert {seed % 2 for seed in seeds} == {0, 1}
    assert cut.any(-1).tolist() == [seed % 2 == 0 for seed in seeds]


@pytest.mark.parametrize(
    ("policy", "options", "error", "message"),
    [
        (None, {"envs_per_worker": None, "env_processes": 1}, ValueError, "a single ParallelEnv; say with envs_per"),
        (None, {"overlap": True}, ValueError, "these are others; leave it out"),
        (none, {}, KeyError, "must answer with the action"),
        (one_hot, {"trust_policy": True}, ValueError, r"'cow', 'action'.*\(2, 2, 3\); 2 agents want \(2, 2\)"),
    ],
    ids=["single env", "overlap", "no action", "other shape"],
)
def test_env_processes_refuse_what_they_do_not_serve(policy, options, error, message):
    with pytest.raises(error, match=message):
        collected(policy=policy, **{"frames": 2 * LENGTH, "envs_per_worker": 2, "env_processes": 2, **options})
