"""What is saved, and how a collector goes on from it."""

import copy
import pickle
from collections import OrderedDict

import pytest
import torch
from collector_toys import Always, WithValue, counting, make_collector

from swath.testing import CountingEnvs

IDS = ("collector", "traj_ids")
ALL = [
    "policy_state_dict",
    "env_state_dict",
    "frames",
    "iter",
    "traj_pool",
    "policy_version",
    "seed",
    "static_seed",
    "life",
]


def test_the_state_has_these_parts():
    policy = Always(2)
    with make_collector(policy=policy, seed=9) as collector:
        fresh = collector.state_dict()
        assert list(fresh) == ALL
        assert (fresh["frames"], fresh["iter"], fresh["policy_version"]) == (0, -1, 0)
        collector.next(), collector.next()
        collector.increment_version()
        state = collector.state_dict()
    assert isinstance(state, OrderedDict)
    assert isinstance(state["policy_state_dict"], OrderedDict)
    assert list(state["policy_state_dict"]) == ["weight", "seen"]
    assert state["env_state_dict"] == {}
    assert (state["frames"], state["iter"], state["policy_version"], state["seed"], state["life"]) == (20, 1, 1, 9, 0)
    assert state["traj_pool"]["traj_id"].dtype == torch.int64
    assert state["traj_pool"]["traj_id"].shape == ()
    assert state["traj_pool"]["traj_id"] == 7, "above every used id"
    assert pickle.loads(pickle.dumps(state)).keys() == state.keys()


def test_a_collector_keeps_a_static_seed():
    with make_collector(policy=Always(2), envs_per_worker=2) as collector:
        collector.set_seed(11, static_seed=True)
        state = collector.state_dict()
    with make_collector(policy=Always(2), envs_per_worker=2, seed=4) as collector:
        collector.load_state_dict(state)
        assert {collector.get_distant_attr(f"env[{env}].seeds[-1]") for env in (0, 1)} == {11}
        assert collector.state_dict()["static_seed"]
        collector.load_state_dict({name: part for name, part in state.items() if name != "static_seed"})
        assert not collector.state_dict()["static_seed"], "as saved before version 0.3"


@pytest.mark.parametrize("policy", [None, lambda observation: torch.zeros(2, dtype=torch.int64)])
def test_a_policy_without_weights_has_no_such_part(policy):
    with make_collector(policy=policy) as collector:
        state = collector.state_dict()
        assert list(state) == ALL[1:]
        collector.load_state_dict(state)


def test_the_state_is_a_copy_and_shows_updates():
    policy = Always(1)
    with make_collector(policy=policy) as collector:
        state = collector.state_dict()
        collector.update_policy_weights_({"weight": torch.tensor(2.0)})
        assert state["policy_state_dict"]["weight"] == 1
        assert collector.state_dict()["policy_state_dict"]["weight"] == 2
        assert collector.state_dict()["policy_version"] == 1


def test_a_collector_goes_on_from_what_was_saved():
    with make_collector(policy=Always(2), seed=9, total_frames=40) as collector:
        first = [collector.next(), collector.next()]
        collector.update_policy_weights_()
        state = copy.deepcopy(collector.state_dict())
        rest = list(collector)
    policy = Always(0)
    with make_collector(policy=policy, total_frames=40) as other:
        assert other.load_state_dict(state) is None
        assert policy.weight == 2
        assert other.policy_version == 1
        assert other.stats()["frames"] == 20
        batches = list(other)
        assert other.state_dict()["iter"] == 3
        assert other.state_dict()["life"] == 1
        assert other.state_dict()["seed"] == 9
    assert len(batches) == len(rest) == 2
    assert batches[0]["observation"][:, 0, 2].tolist() == [0, 0]
    assert batches[0]["collector", "policy_version"].unique().tolist() == [1]
    ids = torch.cat([*first, *rest], -1)[IDS]
    assert torch.cat(batches, -1)[IDS].min() > ids.max()


@pytest.mark.parametrize("part", [part for part in ALL if part != "static_seed"])
def test_a_missing_part_is_named(part):
    with make_collector(policy=Always()) as collector:
        state = collector.state_dict()
        del state[part]
        with pytest.raises(KeyError, match=rf"lacks \['{part}'\]; pass strict=False"):
            collector.load_state_dict(state)
        collector.load_state_dict(state, strict=False)
        assert collector.next().numel() == 10


def test_loading_a_state_drops_and_counts_pending_frames():
    with make_collector(CountingEnvs(counting(4)), frames_per_batch=10, trajs_per_batch=1) as collector:
        collector.next()  # of 10 frames 4 are delivered
        state = collector.state_dict()
        collector.load_state_dict(state)
        assert collector.stats()["frames_discarded"] == 6
        assert collector.next()[IDS][0, 0] == 1 << 32


@pytest.mark.parametrize(("total", "batches"), [(0, 0), (1, 1), (10, 1), (11, 2), (30, 3)])
def test_total_frames_is_a_lower_bound_and_no_batch_is_cut(total, batches):
    with make_collector(total_frames=total) as collector:
        assert len(collector) == batches
        assert bool(collector)
        assert collector.total_frames == total
        got = list(collector)
        assert [batch.numel() for batch in got] == [10] * batches
        stats = collector.stats()
    assert stats["frames"] == 10 * batches
    assert stats["total_frames"] == total
    assert stats["completed"] is True


@pytest.mark.parametrize("total", [None, -1, -5])
def test_none_and_negative_totals_mean_no_end(total):
    with make_collector(total_frames=total) as collector:
        assert collector.total_frames == -1
        assert len([collector.next() for _ in range(20)]) == 20
        assert "total_frames" not in collector.stats()
        assert "completed" not in collector.stats()
        with pytest.raises(TypeError, match=r"no len\(\)"):
            len(collector)


def test_leaving_a_loop_loses_nothing_and_a_second_loop_goes_on():
    with make_collector(total_frames=40, seed=1) as collector:
        expected = torch.cat(list(collector), -1)
    with make_collector(total_frames=40, seed=1) as collector:
        parts = []
        for batch in collector:
            parts.append(batch)
            break
        parts.append(collector.next())
        parts += list(collector.iterator())
    assert len(parts) == 4
    assert torch.equal(torch.cat(parts, -1)["observation"], expected["observation"])


@pytest.mark.parametrize(("frames", "batches"), [(None, 0), (0, 0), (-3, 0), (1, 1), (10, 1), (11, 2), (20, 2)])
def test_exactly_the_first_batches_are_random(frames, batches):
    with make_collector(policy=WithValue(), init_random_frames=frames, total_frames=40, check_finite=True) as collector:
        got = list(collector)
    for i, batch in enumerate(got):
        if i < batches:
            assert batch["action_log_prob"].isnan().all()  # 0 would say that the policy was sure of them
            assert batch["state_value"].isnan().all()
        else:
            assert bool((batch["action_log_prob"] == -1).all())
        assert set(batch.keys()) == set(got[0].keys())
