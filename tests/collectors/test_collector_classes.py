"""`collector_class` of `RayCollector`: whole collectors in actors. Most tests have other places than actors: the same
code runs there, and is up at once."""

import pytest
import torch
from collector_toys import IDS, VERSION, WIDE, Always, drawn, made_by, weights

import ray_cluster
from swath import Collector, MultiSyncCollector, RayCollector, Restarts
from swath.seeds import derive
from swath.testing import CountingEnvs, Fault, Lives, check_lives, same_data


class Plain(Collector):
    """Changes nothing."""


class Marked(Collector):
    """Marks the batches of its own `next`."""

    def __init__(self, *args, mark=1, **keywords):
        super().__init__(*args, **keywords)
        self._mark = mark

    def next(self):
        batch = super().next()
        batch["mark"] = torch.full(batch.shape, self._mark)
        return batch


class MarkedPair(MultiSyncCollector):
    """Marks the batches of its own `next`, of several workers."""

    def next(self):
        batch = super().next()
        batch["mark"] = torch.ones(batch.shape)
        return batch


INSIDE = {"one": Plain, "sync": "sync", "async": "async"}
MANY = ["sync", "async"]
ORDERS = {"sync": True, "async": False}


@pytest.fixture
def build(build):
    """Return a function that builds a collector of two workers that are no actors, with two inner workers each."""

    def nested(inside="sync", *, sources=None, sync=True, **options):
        kind = INSIDE.get(inside, inside)
        if kind in MANY or (isinstance(kind, type) and not issubclass(kind, Collector)):
            options = {"num_workers_per_collector": 2, **options}
            options["collector_kwargs"] = {"backend": "inline", **options.get("collector_kwargs", {})}
        options.setdefault("frames_per_batch", 40 if sync else 20)
        return build(sources=envs() if sources is None else sources, collector_class=kind, sync=sync, **options)

    return nested


def envs(counting=WIDE):
    """Return env sources for two actors with four envs each."""
    return [CountingEnvs(counting, first=first) for first in (0, 4)]


def rows(batch):
    """Return the batch with all envs in one dimension."""
    return batch.reshape(-1, batch.shape[-1])


class Sampler(torch.nn.Module):
    """Draws actions."""

    def forward(self, observation):
        return torch.rand(observation.shape[:-1]).lt(0.5).long()


# ---- what is built, and asked


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("kind", "keyword"), [(Marked, {"mark": 7}), (MarkedPair, {})])
def test_a_derived_class_is_asked_through_its_own_next_and_takes_keywords_of_its_own(build, kind, keyword, order):
    collector = build(kind, sync=ORDERS[order], collector_kwargs=keyword)
    for batch in drawn(collector, 3):
        assert (batch["mark"] == keyword.get("mark", 1)).all()


def test_a_share_is_the_inner_batch(build):
    shapes = {
        inside: (build(inside).next().shape, build(inside, sync=False).next().shape)
        for inside in ("one", "sync", "async")
    }
    assert shapes == {"one": ((2, 2, 10), (2, 10)), "sync": ((2, 2, 2, 5), (2, 2, 5)), "async": ((2, 2, 10), (2, 10))}


@pytest.mark.parametrize("inside", INSIDE)
def test_inner_worker_j_of_actor_i_has_the_id_i_n_plus_j(build, inside):
    collector = build(inside)
    workers = {worker for batch in drawn(collector, 4) for worker in made_by(batch)}
    assert workers == ({0, 1} if inside == "one" else {0, 1, 2, 3})
    collector.worker_idx = 3
    assert {worker for batch in drawn(collector, 4) for worker in made_by(batch)} == (
        {6, 7} if inside == "one" else {12, 13, 14, 15}
    )


# ---- seeds


def test_the_same_seed_gives_the_same_batches_however_workers_are_nested(build):
    options = {"seed": 5, "frames_per_batch": 40, "policy": Sampler()}
    flat = build("one", sources=["CartPole-v1"] * 4, **options)
    nested = build("sync", sources=["CartPole-v1"] * 2, **options)
    for _ in range(2):
        for _ in range(3):
            same_data(rows(flat.next()), rows(nested.next()))
        assert flat.set_seed(9) == nested.set_seed(9) == derive(9, "next")


# ---- weights


@pytest.mark.parametrize("inside", INSIDE)
def test_weights_reach_the_innermost_workers_under_their_version(build, inside):
    collector = build(inside, policy=Always(1))
    assert collector.next()["action"].unique().tolist() == [1]
    collector.update_policy_weights_(weights(2))
    collector.update_policy_weights_(weights(3), worker_ids=1)
    batches = drawn(collector, 6)
    assert [batches[-1][row]["action"].unique().tolist() for row in range(2)] == [[2], [3]]
    assert [batches[-1][row][VERSION].unique().tolist() for row in range(2)] == [[1], [2]]
    for batch in batches:
        for row in rows(batch):
            assert len(row["action"].unique()) == len(row[VERSION].unique()) == 1
    assert (collector.policy_version, collector.stats()["policy_version_min"]) == (2, 1)
    assert collector.get_model("policy").weight.item() == 2


# ---- control calls, hooks, state


@pytest.mark.parametrize("inside", INSIDE)
def test_what_is_saved_is_restored_in_lives_of_its_own(build, inside):
    collector = build(inside, policy=Always(1), seed=3)
    collector.update_policy_weights_(weights(4))
    batches = drawn(collector, 4)
    saved = collector.state_dict()
    assert [entry["coordinator"]["frames"] for entry in saved] == [160, 160]
    other = build(inside, policy=Always(0))
    other.load_state_dict(saved)
    batches += drawn(other, 4)
    assert (batches[-1]["action"].unique().tolist(), batches[-1][VERSION].unique().tolist()) == ([4], [1])
    lives = [rows(batch)[IDS] >> 32 & 0x7FFF for batch in batches]
    assert [entry.unique().tolist() for entry in lives] == [[0]] * 4 + [[1]] * 4
    assert other.stats()["frames"] == 320
    other.load_state_dict(other.state_dict())
    assert (other.next()[IDS] >> 32 & 0x7FFF).unique().tolist() == [2]


# ---- faults


def lives(path, script, num_envs=2):
    return Lives(path, script, num_envs, WIDE)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("inside", MANY)
def test_inner_deaths_are_healed_inside(build, inside, order, tmp_path):
    script = lives(tmp_path, {0: [[Fault("exit", step=4)], {1: [Fault("exit", step=13)]}, [], []]})
    collector = build(inside, sync=ORDERS[order], sources=script.sources(2))
    batches = drawn(collector, 6)
    while collector.stats()["restarts"] < 2:
        batches.append(collector.next())
    batches += drawn(collector, 3)
    stats = collector.stats("both")
    assert len({batch.shape for batch in batches}) == 1
    assert (stats["restarts"], stats["workers_lost"], collector.collection.group.fleet.restarts) == (2, 0, 0)
    assert stats["fragments_lost"] == 2
    assert stats["worker_0/life"] == 1, "the highest of its workers"
    check_lives(batches, WIDE)


@pytest.mark.parametrize("inside", MANY)
def test_an_inner_failure_that_is_not_healed_ends_the_actor(build, inside, tmp_path):
    script = lives(tmp_path, {1: [[Fault("exit", step=4)], [], [], []]})
    options = {"collector_kwargs": {"restarts": Restarts(0)}, "sources": script.sources(2), "policy": Always(2)}
    collector = build(inside, **options)
    collector.update_policy_weights_(weights(3))
    batches = drawn(collector, 4)
    stats = collector.stats("both")
    assert stats["restarts"] == collector.collection.group.fleet.restarts == 1
    assert stats["worker_1/life"] == 1
    assert {tuple((rows(batch[1])[IDS] >> 32 & 0x7FFF).unique().tolist()) for batch in batches} == {(1,)}
    assert batches[-1]["action"].unique().tolist() == [3], "the newest weights reach the next life"


# ---- arguments


@pytest.mark.parametrize("kind", ["many", 3, None, dict, RayCollector])
def test_other_classes_are_refused_with_ours_named(kind):
    with pytest.raises(TypeError, match=r"must be Collector \('single'\), MultiSyncCollector \('sync'\)"):
        RayCollector(envs(), collector_class=kind, frames_per_batch=40)


@pytest.mark.parametrize(
    ("inside", "keyword", "error", "message"),
    [
        ("sync", {"num_workers": 3}, ValueError, "RayCollector decides"),
        ("async", {"preemptive_threshold": 0.5}, ValueError, "synchronous"),
        (Plain, {"mark": 3}, TypeError, "unexpected keyword argument 'mark'"),
        (Plain, {"backend": "direct"}, ValueError, "cannot follow"),
        (Collector, {"prefetch": 3}, TypeError, "no keyword of Collector"),
    ],
)
def test_keywords_that_mean_nothing_in_an_actor_are_refused(build, inside, keyword, error, message):
    with pytest.raises(error, match=message):
        build(inside, collector_kwargs=keyword)


def test_what_does_not_pass_through_is_refused(build):
    with pytest.raises(TypeError, match=r"add_collectors\(\) does not pass through .* leave collector_class out"):
        build("sync").add_collectors(CountingEnvs(WIDE))


# ---- in other places


def test_on_ray_an_actor_has_processes_and_a_derived_class_is_asked_through_its_next(off_ray):
    ray = ray_cluster.up()
    options = {"policy": Sampler(), "seed": 5, "frames_per_batch": 20, "sync": True, "envs_per_worker": 2}
    nested = RayCollector("CartPole-v1", collector_class=MarkedPair, num_workers_per_collector=2, **options)
    with nested:
        batches = drawn(nested, 2)
        assert all((batch["mark"] == 1).all() for batch in batches)
        nested.increment_version()
        assert nested.next()[VERSION].unique().tolist() == [1]
        (actor,) = nested.remote_collectors
        assert ray.get(actor.next.remote()).shape == (2, 2, 5)
        assert ray.get(actor.stats.remote())["workers_alive"] == 2
        assert ray.get(actor.cascade_execute.remote("num_workers")) == 2
    off_ray("inline")
    with RayCollector(["CartPole-v1"] * 2, **options) as flat:
        for nested, other in zip(batches, drawn(flat, 2), strict=True):
            same_data(rows(nested.exclude("mark")), rows(other))
