"""When episodes begin and end: limits, resets, cuts, whole episodes, ids over it all."""

import gymnasium as gym
import pytest
import torch
from collector_toys import LONG, counting, make_collector
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from swath.testing import Counting, CountingEnv, CountingEnvs, Script, check_counted, check_ids, joined

IDS, MASK = ("collector", "traj_ids"), ("collector", "mask")


def drawn(collector, n):
    return torch.cat([collector.next() for _ in range(n)], -1)


TO_LIMIT = Counting(script=Script(lengths=(2, 9, 4), endings=("terminated",)))


def vector(mode):
    return lambda: SyncVectorEnv([lambda i=i: CountingEnv(i, TO_LIMIT) for i in range(2)], autoreset_mode=mode)


@pytest.mark.parametrize("limit", [1, 3, 7])
@pytest.mark.parametrize("mode", [None, *AutoresetMode], ids=str)
def test_the_nth_step_of_an_episode_is_truncated_across_batches(mode, limit):
    env, options = (CountingEnvs(TO_LIMIT), {"envs_per_worker": 2}) if mode is None else (vector(mode), {})
    with make_collector(env, max_frames_per_traj=limit, **options) as collector:
        td = drawn(collector, 6)
    check_counted(joined([td]), TO_LIMIT, max_frames=limit)
    check_ids(td)
    td = td if MASK not in td.keys(include_nested=True) else td[td[MASK]]
    step = td["observation"][..., 2:].long()
    assert torch.equal(td["step_count"], step)
    assert torch.equal(td["next", "step_count"], step + 1)
    assert torch.equal(td["next", "truncated"], td["next", "step_count"] == limit)
    assert td["step_count"].dtype == torch.int64


def test_reset_at_each_iter_begins_episodes_with_every_batch():
    with make_collector(CountingEnvs(LONG), envs_per_worker=2, reset_at_each_iter=True) as collector:
        batches = [collector.next() for _ in range(3)]
        assert collector.stats()["episodes"] == 0
    for i, batch in enumerate(batches):
        assert batch["observation"][:, 0, 2].tolist() == [0, 0]
        assert batch[IDS].tolist() == [[2 * i] * 5, [2 * i + 1] * 5]
        assert not batch["next", "done"].any()


def test_unfinished_episodes_are_dropped_and_counted_when_all_are_reset():
    env = CountingEnvs(counting(3))
    with make_collector(env, frames_per_batch=5, reset_at_each_iter=True, trajs_per_batch=2) as collector:
        batch = collector.next()
        assert collector.stats()["frames_discarded"] == 2
    assert batch["collector", "mask"].sum() == 6
    assert batch[IDS][:, 0].tolist() == [0, 2]


def test_set_truncated_marks_the_last_step_and_the_episode_goes_on():
    with make_collector(CountingEnvs(LONG), envs_per_worker=2, set_truncated=True, max_frames_per_traj=12) as collector:
        td = drawn(collector, 3)
        assert collector.stats()["episodes"] == 2
    wanted = torch.zeros(2, 15, 1, dtype=torch.bool)
    wanted[:, [4, 9, 11, 14]] = True
    assert torch.equal(td["next", "truncated"], wanted)
    assert torch.equal(td["next", "done"], wanted)
    assert not td["next", "terminated"].any()
    assert td[IDS].unique(dim=1).tolist() == [[0, 2], [1, 3]]
    assert td["step_count"][0, :, 0].tolist() == [*range(12), 0, 1, 2]


def test_no_episode_in_a_hundred_polls_is_warned_of_once():
    with make_collector(
        CountingEnvs(Counting(script=Script(lengths=(450,)))), frames_per_batch=2, trajs_per_batch=1
    ) as collector:
        with pytest.warns(
            UserWarning, match="no episode has ended in 100 fragments.*set max_frames_per_traj"
        ) as caught:
            assert collector.next().shape == (1, 450)
        assert len(caught) == 1
        assert collector.next().shape == (1, 450)


@pytest.mark.parametrize("index", [[False, True], torch.tensor([False, True]), [1], 1, [-1], torch.tensor([1])])
def test_reset_of_some_envs_lets_the_others_go_on(index):
    with make_collector(CountingEnvs(LONG), envs_per_worker=2) as collector:
        collector.next()
        collector.reset(index)
        batch = collector.next()
    assert batch["observation"][:, 0].tolist() == [[0, 0, 5], [1, 1, 0]]
    assert batch[IDS][:, 0].tolist() == [0, 2]


class Stop:
    def __init__(self, after):
        self.left = after

    def collection_stopped(self):
        self.left -= 1
        return self.left <= 0


def test_an_interruptor_ends_a_fragment_early_and_masks_the_rest():
    with make_collector(
        CountingEnvs(LONG), envs_per_worker=2, interruptor=Stop(3), max_frames_per_traj=100
    ) as collector:
        batch = collector.next()
        assert collector.stats()["frames"] == 6
    mask = batch["collector", "mask"]
    assert batch.shape == (2, 5)
    assert mask.tolist() == [[True, True, True, False, False]] * 2
    assert batch[IDS].tolist() == [[0, 0, 0, -1, -1], [1, 1, 1, -1, -1]]
    assert not batch["observation"][~mask].any()
    assert not batch["next", "reward"][~mask].any()


def test_worker_idx_is_in_the_ids_and_another_one_begins_episodes():
    with make_collector(CountingEnvs(LONG), worker_idx=3) as collector:
        for worker, life in ((3, 0), (3, 0), (5, 1), (3, 2)):
            collector.worker_idx = worker
            assert collector.worker_idx == worker
            assert collector.next()[IDS].unique().tolist() == [(worker << 47) + (life << 32)]
        assert [collector.frames_per_batch_worker(worker) for worker in (None, 0, 3)] == [10] * 3
        with pytest.raises(ValueError, match="this collector has worker 3 only"):
            collector.frames_per_batch_worker(1)


def test_episodes_begin_with_the_reset_of_construction():
    envs = CountingEnvs(LONG)
    with make_collector(envs, envs_per_worker=2) as collector:
        assert [env.seeds for env in envs.made] == [[None], [None]]
        collector.next()
        assert [env.seeds for env in envs.made] == [[None], [None]]


def pendulum(limit):
    """Build a Pendulum whose time limit was changed after its spec was read."""
    env = gym.make("Pendulum-v1")
    assert env.spec.max_episode_steps == 200
    env.set_wrapper_attr("_max_episode_steps", limit)
    return env


def ends_of(batch):
    return batch["next", "truncated"][..., 0].nonzero().tolist()


def test_a_time_limit_that_was_changed_counts_and_a_later_change_from_the_next_episode_on():
    env = pendulum(5)
    with make_collector(env, frames_per_batch=12) as collector:
        assert ends_of(collector.next()) == [[4], [9]]
        env.set_wrapper_attr("_max_episode_steps", 3)  # the third episode has begun, 2 steps ago
        assert ends_of(collector.next()) == [[2], [5], [8], [11]]
        env.set_wrapper_attr("_max_episode_steps", 100)
        collector.reset()
        assert ends_of(collector.next()) == []


@pytest.mark.parametrize("shorter", [None, 3])
def test_each_env_of_a_list_has_its_own_changed_limit(shorter):
    limits = iter([2, 4])
    with make_collector(lambda: pendulum(next(limits)), envs_per_worker=2, max_frames_per_traj=shorter) as collector:
        assert ends_of(collector.next()) == [[0, 1], [0, 3], [1, (shorter or 4) - 1]]
