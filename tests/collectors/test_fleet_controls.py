"""How collectors with many workers are steered while they live, and what they say of themselves."""

from collections import OrderedDict

import pytest
import torch
from collector_toys import (
    IDS,
    KINDS,
    LONG,
    PLACES,
    VERSION,
    Always,
    Memory,
    Notebook,
    Signalling,
    drawn,
    drawn_until,
    fleet,
    made_by,
    weights,
)

from swath.rollout.episodes.statistics import worker_and_life
from swath.testing import CountingEnv, check_lives

pytestmark = pytest.mark.usefixtures("fork_server")


def episodes(batch):
    """Return the episode of each env row's first frame."""
    return batch["observation"].reshape(-1, batch.shape[-1], 3)[:, 0, 1].int().tolist()


# ---- reset, seeds


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", KINDS)
def test_after_reset_all_data_are_of_new_episodes(kind, place):
    with fleet(kind, backend=place, prefetch=2) as collector:
        first = drawn(collector, 3)
        collector.reset()
        later = drawn(collector, 5)
        stats = collector.stats()
    check_lives(first + later, LONG, gaps=True)
    assert {episode for batch in first for episode in episodes(batch)} == {0}
    assert {episode for batch in later for episode in episodes(batch)} == {1}
    assert stats["frames"] == sum(batch.numel() for batch in first + later)
    assert stats["frames_discarded"] > 0


@pytest.mark.parametrize("kind", KINDS)
def test_single_workers_can_be_reset(kind):
    with fleet(kind, prefetch=1) as collector:
        drawn(collector, 2)
        collector.reset([False, True])
        collector.reset([False, False])  # of none
        batches = drawn_until(collector, lambda batch: 1 in made_by(batch)) + drawn(collector, 2)
    found = {
        (worker, episode) for batch in batches for worker, episode in zip(made_by(batch), episodes(batch), strict=True)
    }
    assert found <= {(0, 0), (1, 1)}
    assert (1, 1) in found


def test_reset_takes_one_bool_per_worker():
    with fleet(backend="inline") as collector:
        for wrong in ([True], [0, 1], "all"):
            with pytest.raises(ValueError, match=r"must be one bool per worker \(2\)"):
                collector.reset(wrong)
        collector.reset(torch.tensor([True, False]))


# ---- reaching into workers


@pytest.mark.parametrize("place", ["inline", "process"])
def test_workers_can_be_reached(place):
    with fleet(policy=Always(2), backend=place, worker_idx=2) as collector:
        collector.next()
        assert collector.get_distant_attr("worker_idx") == [4, 5]
        assert collector.get_distant_attr("env[1].mark.step") == [5, 5]
        assert collector.map_fn("get_distant_attr", [("env[0].mark.env",), ("env[1].mark.env",)]) == [0, 3]
        assert collector.map_fn("cascade_execute", None, [{"attr_path": "life"}] * 2) == [0, 0]
        assert collector.getattr_env("mark").env == 0
        assert collector.getattr_policy("weight").item() == 2
        assert collector.get_model("policy").weight.item() == 2
        assert collector.cascade_execute("stats", "per_worker")["worker_1/frames"] == 10
        assert collector.cascade_execute("num_workers") == 2
        with pytest.raises(ValueError, match="Expected 2 argument entries"):
            collector.map_fn("weights_version", [()])
        with pytest.raises(ValueError, match="same length"):
            collector.map_fn("weights_version", [(), ()], [{}])
        with pytest.raises(AttributeError, match="nothing_like_it"):
            collector.get_distant_attr("env[0].nothing_like_it")
        with pytest.raises(AttributeError, match="nothing_like_it"):
            collector.cascade_execute("nothing_like_it")
        with pytest.raises(NotImplementedError, match="use Collector"):
            collector.fake_tensordict()
        assert collector.next().shape == (2, 2, 5)


def test_as_part_of_a_larger_collector_ids_and_seeds_are_its_own():
    def run(**options):
        with fleet(backend="inline", seed=1, **options) as collector:
            return collector.next(), collector.get_distant_attr("env[0].seeds[-1]")

    plain, seeds = run()
    batch, other_seeds = run(worker_idx=3)
    assert [worker_and_life(int(ids.min())) for ids in batch[IDS]] == [(6, 0), (7, 0)]
    assert [worker_and_life(int(ids.min())) for ids in plain[IDS]] == [(0, 0), (1, 0)]
    assert not set(seeds) & set(other_seeds)
    with fleet(seed=1) as collector:
        with pytest.raises(RuntimeError, match="never set"):
            _ = collector.worker_idx
        drawn(collector, 1)
        collector.worker_idx = 3
        assert collector.worker_idx == 3
        batch = collector.next()
    assert [worker_and_life(int(ids.min())) for ids in batch[IDS]] == [(6, 1), (7, 1)]
    with pytest.raises(ValueError, match="so that trajectory ids stay unique"):
        fleet(backend="inline", worker_idx=2**16 - 1)


# ---- hooks


@pytest.mark.parametrize("place", ["inline", "process"])
def test_hooks_run_in_the_workers_and_can_be_changed(place, tmp_path):
    book = Notebook(tmp_path / "book")

    def mark(batch):
        batch["observation"][..., 0] = 7.0
        book("after", tuple(batch.shape))

    with fleet(backend=place, pre_collect_hook=lambda: book("before")) as collector:
        collector.next()
        assert book.lines == ["before"] * 2
        collector.pre_collect_hook = None
        collector.set_post_collect_hook(mark)
        assert collector.post_collect_hook is mark
        batch = collector.next()
        assert collector.pre_collect_hook is None
    assert book.lines[2:] == ["after (2, 5)"] * 2
    assert batch["observation"][..., 0].unique().tolist() == [7.0]
    assert batch.shape == (2, 2, 5)
    assert batch.names[-1] == "time"


# ---- state


@pytest.mark.parametrize("kind", KINDS)
def test_state_can_be_saved_and_loaded_into_another_collector(kind):
    with fleet(kind, policy=Always(1), seed=3, total_frames=1000) as collector:
        collector.update_policy_weights_(weights(2))
        before = drawn(collector, 4)
        saved = collector.state_dict()
    assert isinstance(saved, OrderedDict)
    assert list(saved) == ["worker0", "worker1", "frames", "iter", "traj_pool", "policy_version", "seed", "static_seed"]
    parts = ["policy_state_dict", "env_state_dict", "frames", "iter", "policy_version", "seed", "static_seed", "life"]
    assert list(saved["worker0"]) == parts
    assert (saved["frames"], saved["iter"], saved["policy_version"], saved["seed"]) == (
        sum(b.numel() for b in before),
        3,
        1,
        3,
    )
    assert int(saved["traj_pool"]["traj_id"]) > max(int(batch[IDS].max()) for batch in before)
    with fleet(kind, policy=Always(0), total_frames=1000) as other:
        drawn(other, 1)
        other.load_state_dict(saved)
        after = drawn(other, 3)
        stats = other.stats("both")
        again = other.state_dict()
    assert {action for batch in after for action in batch["action"].unique().tolist()} == {2}
    assert {version for batch in after for version in batch[VERSION].unique().tolist()} == {1}
    assert {worker_and_life(int(ids)) for batch in after for ids in batch[IDS].unique()} <= {(0, 1), (1, 1)}
    assert stats["frames"] == saved["frames"] + sum(batch.numel() for batch in after)
    assert (again["iter"], again["seed"], stats["policy_version"]) == (6, 3, 1)


def test_state_that_does_not_fit_changes_nothing():
    with fleet(policy=Always(1), backend="inline") as collector:
        collector.next()
        good = collector.state_dict()
        small = OrderedDict(good, worker0=OrderedDict(good["worker0"], policy_state_dict={"weight": torch.zeros(2)}))
        wrong = {
            "lacks \\['worker1'\\]": (KeyError, {name: part for name, part in good.items() if name != "worker1"}),
            "lacks \\['seed'\\]": (KeyError, {name: part for name, part in good.items() if name != "seed"}),
            "lacks \\['life'\\]": (
                KeyError,
                OrderedDict(good, worker0={k: v for k, v in good["worker0"].items() if k != "life"}),
            ),
            "has \\['worker2'\\], too; this collector has 2 workers": (
                ValueError,
                OrderedDict(good, worker2=good["worker0"]),
            ),
            "weight weight has shape": (ValueError, small),
            "is of type list": (TypeError, [good]),
        }
        for message, (error, state) in wrong.items():
            with pytest.raises(error, match=message):
                collector.load_state_dict(state)
        assert (collector.stats()["frames"], collector.stats()["frames_discarded"]) == (20, 0)
        assert worker_and_life(int(collector.next()[IDS].max())) == (1, 0)
        collector.load_state_dict({"frames": 5}, strict=False)
        assert collector.stats()["frames"] == 5


# ---- replay buffers, background


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", KINDS)
def test_each_fragment_is_one_write_in_worker_order(kind, place):
    buffer = Memory()
    with fleet(kind, replay_buffer=buffer, backend=place, total_frames=80) as collector:
        assert list(collector) == [None] * (4 if kind == "sync" else 8)
        assert collector.stats()["frames"] == buffer.frames == 80
    assert {tuple(td.shape) for td in buffer.written} == {(2, 5)}
    check_lives(buffer.written, LONG)
    if kind == "sync":
        assert [made_by(td)[0] for td in buffer.written] == [0, 1] * 4


@pytest.mark.parametrize("place", ["thread", "process"])
@pytest.mark.parametrize("kind", KINDS)
def test_collection_in_the_background_can_be_paused(kind, place):
    buffer = Signalling()
    with fleet(kind, replay_buffer=buffer, backend=place, policy=Always(1), prefetch=2) as collector:
        collector.start()
        collector.start()
        assert collector.is_running()
        buffer.wait_for(4)
        with pytest.raises(RuntimeError, match="in the background"):
            collector.next()
        with collector.pause():
            stats = collector.stats()
            written = len(buffer.written)
            assert stats["frames"] == stats["worker_frames"] == buffer.frames, "something is in flight"
            collector.update_policy_weights_(weights(2))
            saved = collector.state_dict()
            assert saved["frames"] == buffer.frames
            assert collector.is_running()
        buffer.wait_for(written + 4)
        with collector.pause(resume=False):
            written = len(buffer.written)
        assert not collector.is_running()
        assert len(buffer.written) == written
        assert collector.next() is None
        collector.start()
        buffer.wait_for(written + 4)
    check_lives(buffer.written, LONG)
    actions = [td["action"].unique().tolist() for td in buffer.written]
    assert actions == sorted(actions)


# ---- stats, repr, properties


def test_properties_say_what_was_asked_for():
    options = {"frames_per_batch": 18, "total_frames": 100, "device": ["cpu", None], "backend": "inline"}
    with pytest.warns(UserWarning, match="frames_per_batch=18 is not shared evenly"):
        collector = fleet(**options)
    with collector:
        assert (collector.num_workers, collector.num_collectors, collector.total_frames) == (2, 2, 100)
        assert (collector.frames_per_batch, collector.requested_frames_per_batch) == (18, 20)
        assert [collector.frames_per_batch_worker(worker) for worker in (None, 0, 1)] == [10, 10, 10]
        assert collector.device == [torch.device("cpu"), None]
        assert collector.storing_device == [torch.device("cpu"), None]
        assert collector.env_device == [torch.device("cpu")] * 2
        assert len(collector) == 5
        with pytest.raises(ValueError, match="is unknown; workers are"):
            collector.frames_per_batch_worker(2)
        assert collector


def test_close_env_false_is_refused_with_many_workers():
    with fleet(backend="inline") as collector, pytest.raises(RuntimeError, match="the envs live in the workers"):
        collector.shutdown(close_env=False)


class Stuck(CountingEnv):
    def close(self):
        raise OSError("it will not close")


def test_shutdown_raises_once_what_closing_envs_raised():
    collector = fleet(sources=[Stuck, Stuck], envs_per_worker=1)
    with pytest.raises(OSError, match="it will not close") as caught:
        collector.shutdown()
    assert any("another worker raised, too" in note for note in caught.value.__notes__)
    collector.shutdown()
    fleet(sources=[Stuck, Stuck], envs_per_worker=1).shutdown(raise_on_error=False)


def test_a_worker_runs_init_fn_then_builds_env_then_policy(tmp_path):
    book = Notebook(tmp_path / "book")

    def env():
        book("env", torch.get_num_threads())
        return CountingEnv(0, LONG)

    def policy():
        book("policy")
        return Always()

    options = {"policy_factory": policy, "init_fn": lambda: book("init"), "num_sub_threads": 2}
    with fleet(sources=[env], envs_per_worker=None, frames_per_batch=5, **options):
        assert book.lines == ["init", "env 2", "policy"]
