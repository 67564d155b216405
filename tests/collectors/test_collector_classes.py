"""`collector_class` of `RayCollector`: whole collectors in actors. Most tests have other places than actors: the same
code runs there, and is up at once."""

import gymnasium as gym
import pytest
import torch
from collector_toys import Memory
from fleet_toys import AT_ONCE, IDS, MASK, VERSION, Level, Notebook, drawn, level, made_by
from gymnasium import spaces

import ray_cluster
from swath import (
    Collector,
    MultiAsyncCollector,
    MultiSyncCollector,
    RayCollector,
    Restarts,
)
from swath.errors import FleetFailed
from swath.seeds import derive
from swath.testing import (
    ENDLESS,
    Counting,
    CountingEnvs,
    EnvBroke,
    Fault,
    Lives,
    Script,
    check_lives,
    same_data,
)
from traces import children


class Plain(Collector):
    """Changes nothing."""


class Marked(Collector):
    """Says of its batches that they have come through its own `next`."""

    def __init__(self, *args, mark=1, **keywords):
        super().__init__(*args, **keywords)
        self._mark = mark

    def next(self):
        batch = super().next()
        batch["mark"] = torch.full(batch.shape, self._mark)
        return batch


class MarkedPair(MultiSyncCollector):
    """The same of several."""

    def next(self):
        batch = super().next()
        batch["mark"] = torch.ones(batch.shape)
        return batch


WIDE = Counting(action_space=spaces.Discrete(1000), script=Script(lengths=(ENDLESS,)))
"""Endless episodes, in which every level is an action."""

INSIDE = {"one": Plain, "sync": "sync", "async": "async"}
MANY = ["sync", "async"]
ORDERS = {"sync": True, "async": False}
HERE = {"backend": "inline"}


@pytest.fixture
def build(off_ray):
    """Builds a collector of two actors, which are no actors, with two workers each where the class has some."""
    made = []

    def build(inside="sync", *, place="inline", sources=None, policy=None, **options):
        off_ray(place)
        kind = INSIDE.get(inside, inside)
        many = kind in MANY or (isinstance(kind, type) and not issubclass(kind, Collector))
        if many:
            options.setdefault("num_workers_per_collector", 2)
            options["collector_kwargs"] = {**HERE, **options.get("collector_kwargs", {})}
        options.setdefault("sync", True)
        options.setdefault("frames_per_batch", 40 if options["sync"] else 20)
        options.setdefault("envs_per_worker", 2)
        options.setdefault("restarts", AT_ONCE)
        sources = envs() if sources is None else sources
        made.append(RayCollector(sources, policy, collector_class=kind, **options))
        return made[-1]

    yield build
    for collector in made:
        collector.shutdown()


def envs(counting=WIDE):
    """For two actors with four envs each."""
    return [CountingEnvs(counting, first=first) for first in (0, 4)]


def rows(batch):
    """The same with all envs in one dimension."""
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
    assert shapes == {
        "one": ((2, 2, 10), (2, 10)),
        "sync": ((2, 2, 2, 5), (2, 2, 5)),
        "async": ((2, 2, 10), (2, 10)),
    }


@pytest.mark.parametrize("inside", INSIDE)
def test_inner_worker_j_of_actor_i_has_the_id_i_n_plus_j(build, inside):
    collector = build(inside)
    seen = {worker for batch in drawn(collector, 4) for worker in made_by(batch)}
    assert seen == ({0, 1} if inside == "one" else {0, 1, 2, 3})
    collector.worker_idx = 3
    assert {worker for batch in drawn(collector, 4) for worker in made_by(batch)} == (
        {6, 7} if inside == "one" else {12, 13, 14, 15}
    )


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("inside", INSIDE)
def test_every_frame_is_there_once_in_order(build, inside, order):
    short = Counting(script=Script(lengths=(3, 7)))
    collector = build(inside, sync=ORDERS[order], sources=envs(short))
    batches = drawn(collector, 8)
    check_lives(batches, short)
    stats = collector.stats()
    ended = sum(int(batch["next", "done"].sum()) for batch in batches)
    assert stats["frames"] == sum(batch.numel() for batch in batches) <= stats["worker_frames"]
    assert stats["episodes"] == ended > 0
    assert 3 <= stats["episode_length"] <= 7


@pytest.mark.parametrize("inside", INSIDE)
def test_episodes_of_batches_that_are_given_to_others_do_not_count(build, inside):
    collector = build(inside, sources=envs(Counting(script=Script(lengths=(3, 7)))))
    batches = []
    for _ in range(3):
        collector.map_fn("next")
        batches += drawn(collector, 1)
    assert collector.stats()["episodes"] == sum(int(batch["next", "done"].sum()) for batch in batches) > 0


class Answers42(Collector):
    def next(self):
        return 42


class Raising(Collector):
    def next(self):
        raise LookupError("nothing today")


def test_what_a_derived_next_raises_leaves_the_draw_as_its_own_type(build):
    collector = build(Raising)
    for _ in range(2):
        with pytest.raises(LookupError, match="nothing today"):
            collector.next()


def test_what_is_no_batch_is_named(build):
    with pytest.raises(TypeError, match=r"next\(\) of Answers42 gave int; it must give a TensorDict"):
        build(Answers42).next()


class Forgetting:
    """Loses every third batch that it is given."""

    drawn = 0

    def next(self):
        batch = super().next()
        self.drawn += 1
        if self.drawn % 3 == 0:
            raise LookupError("where is it?")
        return batch


class Forgetful(Forgetting, Collector):
    """Of one worker."""


class ForgetfulPair(Forgetting, MultiSyncCollector):
    """Of several."""


@pytest.mark.parametrize("kind", [Forgetful, ForgetfulPair])
def test_what_a_derived_next_loses_is_counted_and_no_episode_is_delivered_without_it(build, kind):
    counting = Counting(script=Script(lengths=(7, 12)))
    collector = build(kind, sync=False, sources=envs(counting), trajs_per_batch=3)
    batches, raised = [], 0
    while len(batches) < 6:
        try:
            batches += drawn(collector, 1)
        except LookupError:
            raised += 1
    stats = collector.stats()
    check_lengths(batches)
    assert raised == stats["fragments_lost"] > 0
    assert stats["frames_discarded"] >= 20 * raised


class Grudging:
    """A hook that raises at every third batch."""

    seen = 0

    def __call__(self, batch):
        self.seen += 1
        if self.seen % 3 == 0:
            raise LookupError("not this one")


def check_lengths(batches):
    """Their episodes lack nothing."""
    assert {len(row[row[MASK]]) for batch in batches for row in batch} <= {7, 12}


@pytest.mark.parametrize("inside", INSIDE)
def test_episodes_that_lack_a_batch_over_which_a_hook_raised_are_not_delivered(build, inside):
    sources = envs(Counting(script=Script(lengths=(7, 12))))
    collector = build(inside, sync=False, sources=sources, trajs_per_batch=3, post_collect_hook=Grudging())
    batches, raised = [], 0
    while len(batches) < 6:
        try:
            batches += drawn(collector, 1)
        except LookupError:
            raised += 1
    check_lengths(batches)
    assert raised > 0


@pytest.mark.parametrize("inside", MANY)
def test_episodes_that_lack_what_was_collected_ahead_inside_and_dropped_are_not_delivered(build, inside):
    counting = Counting(script=Script(lengths=(7, 12)))
    ahead = {"frames_per_batch": 80, "collector_kwargs": {"prefetch": 2}}
    collector = build(inside, sources=envs(counting), trajs_per_batch=3, **ahead)
    batches = drawn(collector, 4)
    collector.add_collectors([CountingEnvs(counting, first=first) for first in (8, 12)])
    check_lengths([*batches, *drawn(collector, 4)])


# ---- seeds


def test_the_same_seed_gives_the_same_batches_however_workers_are_nested(build):
    options = {"seed": 5, "frames_per_batch": 40, "policy": Sampler()}
    flat = build("one", sources=["CartPole-v1"] * 4, **options)
    plain = build(Collector, sources=["CartPole-v1"] * 4, **options)
    nested = build("sync", sources=["CartPole-v1"] * 2, **options)
    for _ in range(2):
        for _ in range(3):
            one, two, three = flat.next(), plain.next(), nested.next()
            same_data(one, two)
            same_data(rows(one), rows(three))
        assert flat.set_seed(9) == nested.set_seed(9) == plain.set_seed(9) == derive(9, "next")


@pytest.mark.parametrize("inside", MANY)
def test_inner_envs_have_seeds_of_their_own_and_a_static_one_has_none(build, inside):
    collector = build(inside, sources=["CartPole-v1"] * 2, envs_per_worker=None, frames_per_batch=4, seed=1)
    firsts = torch.cat([rows(batch)["observation"][:, 0] for batch in drawn(collector, 2)])
    assert len(firsts.unique(dim=0)) == len(firsts)
    assert collector.set_seed(4, static_seed=True) == 4
    firsts = rows(collector.next())["observation"][:, 0]
    assert len(firsts.unique(dim=0)) == 1


@pytest.mark.parametrize("inside", INSIDE)
def test_copies_of_one_env_do_not_share_a_random_state(build, inside):
    collector = build(inside, sources=[gym.make("CartPole-v1")] * 2, envs_per_worker=None, frames_per_batch=4)
    firsts = rows(collector.next())["observation"][:, 0]
    assert len(firsts.unique(dim=0)) == len(firsts)


# ---- weights


@pytest.mark.parametrize("inside", INSIDE)
def test_weights_reach_the_innermost_workers_under_their_version(build, inside):
    collector = build(inside, policy=Level(1))
    assert collector.next()["action"].unique().tolist() == [1]
    collector.update_policy_weights_(level(2))
    collector.update_policy_weights_(level(3), worker_ids=1)
    batches = drawn(collector, 6)
    assert [batches[-1][row]["action"].unique().tolist() for row in range(2)] == [[2], [3]]
    assert [batches[-1][row][VERSION].unique().tolist() for row in range(2)] == [[1], [2]]
    for batch in batches:
        for row in rows(batch):
            assert len(row["action"].unique()) == len(row[VERSION].unique()) == 1
    assert (collector.policy_version, collector.stats()["policy_version_min"]) == (2, 1)
    assert collector.get_model("policy").weight.item() == 2


@pytest.mark.parametrize("inside", ["one", "sync"])
def test_weights_set_on_one_worker_directly_have_a_negative_version(build, inside):
    collector = build(inside, policy=Level(1))
    collector._assembled.collection.calls.control("update_policy_weights_", (level(5),), workers=[1])
    batch = collector.next()
    assert [batch[row]["action"].unique().tolist() for row in range(2)] == [[1], [5]]
    assert [batch[row][VERSION].unique().tolist() for row in range(2)] == [[0], [-1]]
    collector.update_policy_weights_(level(2))
    batch = collector.next()
    assert (batch["action"].unique().tolist(), batch[VERSION].unique().tolist()) == ([2], [1])


def test_a_factory_is_called_in_the_innermost_worker_and_weights_reach_it(build, tmp_path):
    note = Notebook(tmp_path / "built")

    def factory():
        note("built")
        return Level(4)

    collector = build("sync", policy_factory=factory)
    assert collector.next()["action"].unique().tolist() == [4]
    collector.update_policy_weights_(level(6))
    assert collector.next()["action"].unique().tolist() == [6]
    assert len(note.lines) == 4


# ---- counts


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("inside", INSIDE)
def test_exactly_the_first_batches_are_random(build, inside, order):
    collector = build(inside, sync=ORDERS[order], policy=Level(7), init_random_frames=90)
    size = collector.requested_frames_per_batch
    n_random = -(-90 // size)
    batches = drawn(collector, n_random + 4)
    kinds = ["policy" if (batch["action"] == 7).all() else "random" for batch in batches]
    if order == "sync":
        assert kinds == ["random"] * n_random + ["policy"] * 4
    assert kinds.count("random") == n_random


@pytest.mark.parametrize("inside", INSIDE)
def test_episodes_are_truncated_by_env_across_batches(build, inside):
    collector = build(inside, max_frames_per_traj=7)
    batches = drawn(collector, 8)
    for batch in batches:
        flat = rows(batch)
        ended = flat["next", "truncated"].squeeze(-1)
        assert (flat["next", "step_count"].squeeze(-1)[ended] == 7).all()
    assert any(batch["next", "truncated"].any() for batch in batches)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("inside", INSIDE)
def test_whole_episodes_are_put_together_by_who_made_them(build, inside, order):
    counting = Counting(script=Script(lengths=(7, 12)))
    collector = build(inside, sync=ORDERS[order], sources=envs(counting), trajs_per_batch=5)
    for batch in drawn(collector, 6):
        assert batch.shape[0] == 5
        for row in batch:
            episode = row[row[MASK]]
            assert len(episode) in (7, 12), "an episode is whole"
            assert len(episode[IDS].unique()) == 1
            assert episode["next", "done"].squeeze(-1).tolist() == [False] * (len(episode) - 1) + [True]


@pytest.mark.parametrize("inside", INSIDE)
def test_whole_episodes_are_told_apart_and_counted_also_where_nobody_wants_ids(build, inside):
    counting = Counting(script=Script(lengths=(7, 12)))
    collector = build(inside, sources=envs(counting), trajs_per_batch=5, collector_kwargs={"track_traj_ids": False})
    batches = drawn(collector, 3)
    collector.reset()
    batches += drawn(collector, 3)
    assert {len(row[row[MASK]]) for batch in batches for row in batch} == {7, 12}
    assert collector.stats()["episodes"] == 5 * len(batches)
    assert IDS not in batches[0].keys(include_nested=True)


def test_a_dropped_fragment_of_one_inner_worker_breaks_no_episode_of_another(build):
    counting = Counting(action_space=spaces.Discrete(100), script=Script(lengths=(7, 12)))
    sources = envs(counting)
    collector = build("sync", sync=False, sources=sources, policy=Level(), trajs_per_batch=2, max_staleness=0)
    lengths = []
    for version in range(12):
        batch = collector.next()
        lengths += batch[MASK].sum(-1).tolist()
        if version % 3 == 0:
            collector.update_policy_weights_(level(version))
    stats = collector.stats()
    assert set(lengths) == {7, 12}
    assert stats["batches_dropped"] > 0
    assert stats["frames"] + stats["frames_dropped"] + stats["frames_discarded"] <= stats["worker_frames"]


def test_the_run_ends_where_the_whole_says_so(build):
    collector = build("async", sync=False, total_frames=60)
    assert len(list(collector)) == len(collector) == 3
    assert collector.next() is None
    assert collector.stats()["completed"] is True


def test_shares_are_rounded_up_and_said_once(build):
    with pytest.warns(UserWarning, match="batches have 48 frames") as said:
        collector = build("sync", frames_per_batch=42)
    assert len(said) == 1
    assert collector.next().numel() == collector.requested_frames_per_batch == 48


@pytest.mark.parametrize("inside", INSIDE)
def test_another_actor_divides_the_batch_anew(build, inside):
    collector = build(inside, frames_per_batch=24, policy=Level(1), seed=1)
    collector.next()
    collector.add_collectors(CountingEnvs(WIDE, first=90), 2)
    batch = collector.next()
    assert (batch.shape[0], batch.numel()) == (3, 24)
    assert set(made_by(batch)) <= ({0, 1, 2} if inside == "one" else {0, 1, 2, 3, 4, 5})
    collector.update_policy_weights_(level(3))
    assert drawn(collector, 4)[-1]["action"].unique().tolist() == [3]


def test_other_numbers_of_inner_workers_cannot_be_added(build):
    collector = build("sync")
    with pytest.raises(ValueError, match=r"num_envs=3: actors here have 2 workers each"):
        collector.add_collectors(CountingEnvs(WIDE), 3)


# ---- control calls, hooks, state


@pytest.mark.parametrize("inside", INSIDE)
def test_reset_begins_fresh_episodes_in_all_inner_envs(build, inside):
    collector = build(inside)
    before = max(int(batch[IDS].max()) for batch in drawn(collector, 3))
    collector.reset([True, False])
    batch = collector.next()
    ids = [rows(batch[row])[IDS][:, 0] for row in range(2)]
    fresh = [bool((rows(batch[row])["observation"][:, 0, -1] == 0).all()) for row in range(2)]
    assert fresh == [True, False]
    assert before >= ids[1].min()


@pytest.mark.parametrize("inside", INSIDE)
def test_hooks_run_around_the_fragments_of_the_innermost_workers(build, inside, tmp_path):
    note = Notebook(tmp_path / "hooks")
    collector = build(
        inside, pre_collect_hook=lambda: note("before"), post_collect_hook=lambda td: note("after", *td.shape)
    )
    collector.next()
    inner = [2, 10] if inside in ("one", "async") else [2, 5]
    assert note.lines.count("after " + " ".join(map(str, inner))) == note.lines.count("before") >= 2
    collector.pre_collect_hook = lambda: note("other")
    drawn(collector, 3)
    assert "other" in note.lines


def _fails():
    raise ArithmeticError("a hook")


@pytest.mark.parametrize("inside", INSIDE)
def test_a_hook_that_raises_leaves_the_draw_as_itself_and_the_next_goes_on(build, inside):
    collector = build(inside)
    collector.pre_collect_hook = _fails
    with pytest.raises(ArithmeticError, match="a hook"):
        collector.next()
    collector.pre_collect_hook = None
    failures = 0
    while failures is not None:
        try:
            check_whole(collector.next())
            failures = None
        except ArithmeticError:  # what other workers have raised by then
            failures += 1
            assert failures < 4
    assert collector.stats()["restarts"] == 0


def check_whole(batch):
    assert batch.numel() == 40
    assert MASK not in batch.keys(include_nested=True)


@pytest.mark.parametrize("inside", INSIDE)
def test_what_is_saved_is_restored_in_lives_of_its_own(build, inside):
    collector = build(inside, policy=Level(1), seed=3)
    collector.update_policy_weights_(level(4))
    batches = drawn(collector, 4)
    saved = collector.state_dict()
    assert [one["coordinator"]["frames"] for one in saved] == [160, 160]
    other = build(inside, policy=Level(0))
    other.load_state_dict(saved)
    batches += drawn(other, 4)
    assert (batches[-1]["action"].unique().tolist(), batches[-1][VERSION].unique().tolist()) == ([4], [1])
    lives = [rows(batch)[IDS] >> 32 & 0x7FFF for batch in batches]
    assert [one.unique().tolist() for one in lives] == [[0]] * 4 + [[1]] * 4
    assert other.stats()["frames"] == 320
    other.load_state_dict(other.state_dict())
    assert (other.next()[IDS] >> 32 & 0x7FFF).unique().tolist() == [2]


def test_a_list_of_plain_workers_is_loaded_into_nested_ones(build):
    plain = build("one", policy=Level(6), seed=3)
    drawn(plain, 2)
    nested = build("sync", policy=Level(0))
    nested.load_state_dict(plain.state_dict())
    batch = nested.next()
    assert batch["action"].unique().tolist() == [6]
    assert (batch[IDS] >> 32 & 0x7FFF).unique().tolist() == [1]


@pytest.mark.parametrize("inside", INSIDE)
def test_paths_begin_at_the_inner_collector(build, inside):
    collector = build(inside, policy=Level(1))
    assert collector.get_distant_attr("requested_frames_per_batch") == [20, 20]
    assert collector.map_fn("getattr_policy", [("weight",), ("weight",)])[1].item() == 1
    assert [one["env_errors"] for one in collector.map_fn("stats")] == [0, 0]
    assert collector.getattr_policy("weight").item() == 1
    collector.getattr_env("observation_space")


def test_batches_are_written_to_a_buffer(build):
    buffer = Memory()
    collector = build("sync", replay_buffer=buffer)
    assert drawn(collector, 2) == [None, None]
    assert [one.shape for one in buffer.written] == [(2, 2, 5)] * 4


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
    assert (stats["restarts"], stats["workers_lost"], collector._assembled.fleet.restarts) == (2, 0, 0)
    assert stats["fragments_lost"] == 2
    assert stats["worker_0/life"] == 1, "the highest of its workers"
    check_lives(batches, WIDE)


@pytest.mark.parametrize("inside", MANY)
def test_what_is_not_healed_inside_is_the_death_of_the_actor(build, inside, tmp_path):
    script = lives(tmp_path, {1: [[Fault("exit", step=4)], [], [], []]})
    options = {"collector_kwargs": {"restarts": Restarts(0)}, "sources": script.sources(2), "policy": Level(2)}
    collector = build(inside, **options)
    collector.update_policy_weights_(level(3))
    batches = drawn(collector, 4)
    stats = collector.stats("both")
    assert stats["restarts"] == collector._assembled.fleet.restarts == 1
    assert stats["worker_1/life"] == 1
    assert {tuple((rows(batch[1])[IDS] >> 32 & 0x7FFF).unique().tolist()) for batch in batches} == {(1,)}
    assert batches[-1]["action"].unique().tolist() == [3], "the newest weights reach the next life"


def test_a_life_of_an_actor_begins_behind_all_lives_of_its_workers(build, tmp_path):
    inner = [[Fault("exit", step=4)], [], [Fault("exit", step=13)], [], []]
    script = lives(tmp_path, {1: inner})
    collector = build("sync", sources=script.sources(2), collector_kwargs={"restarts": Restarts(1)})
    batches = drawn(collector, 6)
    while collector._assembled.fleet.restarts == 0:
        batches.append(collector.next())
    batches += drawn(collector, 2)
    check_lives(batches, WIDE)
    assert collector.stats("both")["worker_1/life"] == 2


def test_an_actor_that_cannot_go_on_ends_the_run_with_the_inner_cause(build, tmp_path):
    script = lives(tmp_path, {1: [[Fault("exit", step=4)]] * 9})
    collector = build("sync", sources=script.sources(2), restarts=Restarts(0))
    with pytest.raises(FleetFailed) as failed:
        collector.next()
    assert "FleetFailed" in str(failed.value) or any("FleetFailed" in repr(one) for one in failed.value.causes)


@pytest.mark.parametrize("inside", INSIDE)
def test_an_env_that_raises_does_so_as_itself_with_its_whereabouts(build, inside, tmp_path):
    script = lives(tmp_path, {1: [[Fault("raise", step=4)], []]})
    collector = build(inside, sources=script.sources(2))
    with pytest.raises(EnvBroke) as raised:
        drawn(collector, 2)
    notes = "\n".join(raised.value.__notes__)
    assert "env 0" in notes
    assert "remote traceback" in notes
    check_whole(collector.next())
    assert (collector.stats()["env_errors"], collector.stats()["restarts"]) == (1, 0)


@pytest.mark.parametrize("how", ["reset", "restart"])
@pytest.mark.parametrize("inside", INSIDE)
def test_an_env_that_raises_is_reset_or_its_worker_replaced(build, inside, how, tmp_path):
    script = lives(tmp_path, {1: [[Fault("raise", step=4)], []]})
    collector = build(inside, sources=script.sources(2), on_env_error=how)
    batches = drawn(collector, 3)
    stats = collector.stats()
    for batch in batches:
        check_whole(batch)
    assert (stats["env_errors"], stats["restarts"]) == (1, how == "restart")
    assert collector._assembled.fleet.restarts == (how == "restart" and inside == "one")


def test_preemption_works_inside(build):
    collector = build("sync", collector_kwargs={"preemptive_threshold": 0.5})
    batch = collector.next()
    assert batch.shape == (2, 2, 2, 5)
    assert int(batch[MASK].sum()) == collector.stats()["frames"] < 40
    assert (batch[IDS][~batch[MASK]] == -1).all()


# ---- arguments


class TheirCollector:
    """Stands for a class of another library."""


TheirCollector.__name__ = "MultiSyncCollector"


@pytest.mark.parametrize("given", ["many", 3, None, dict, RayCollector, TheirCollector, Collector.__mro__[-2]])
def test_other_classes_are_refused_with_ours_named(build, given):
    with pytest.raises(TypeError, match=r"must be Collector \('single'\), MultiSyncCollector \('sync'\)") as refused:
        RayCollector(envs(), collector_class=given, frames_per_batch=40)
    assert ("use swath.MultiSyncCollector" in str(refused.value)) == (given is TheirCollector)


@pytest.mark.parametrize(
    ("inside", "keyword", "error", "said"),
    [
        ("sync", {"num_workers": 3}, ValueError, "num_workers_per_collector says how many"),
        ("sync", {"cat_results": 0}, ValueError, "is the actor's share"),
        ("async", {"update_at_each_batch": True}, ValueError, "update_after_each_batch"),
        ("sync", {"collector_class": Collector}, ValueError, "run Collector"),
        ("async", {"preemptive_threshold": 0.5}, ValueError, "synchronous"),
        ("sync", {"worker_idx": 3}, ValueError, "RayCollector decides"),
        ("sync", {"mark": 3}, TypeError, "no keyword of MultiSyncCollector"),
        (Plain, {"mark": 3}, TypeError, "no keyword of Plain"),
        (Plain, {"backend": "direct"}, ValueError, "cannot follow"),
        (Collector, {"prefetch": 3}, TypeError, "no keyword of Collector"),
    ],
)
def test_keywords_that_mean_nothing_in_an_actor_are_refused(build, inside, keyword, error, said):
    with pytest.raises(error, match=said):
        build(inside, collector_kwargs=keyword)


def test_words_and_classes_mean_the_same(build):
    kinds = {"single": Collector, "sync": MultiSyncCollector, "async": MultiAsyncCollector}
    for word, kind in kinds.items():
        shapes = {build(given).next().shape for given in (word, kind)}
        assert len(shapes) == 1


# ---- in other places


def test_processes_in_processes_leave_nothing_behind_and_give_the_batches_of_flat_ones(build, nursery):
    options = {"policy": Sampler(), "seed": 5, "frames_per_batch": 20}
    before = set(children())
    nested = build("sync", place="process", sources=["CartPole-v1"], collector_kwargs={"backend": "process"}, **options)
    flat = build("one", sources=["CartPole-v1"] * 2, **options)
    for _ in range(2):
        same_data(rows(nested.next()), rows(flat.next()))
    assert len(set(children()) - before) >= 1 + 2, "an actor and its workers"
    nested.shutdown()
    assert not set(children()) - before


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
        ray.get(actor.update_policy_weights_.remote(policy_weights={}))
        assert nested.next()[VERSION].unique().tolist() == [-1]
    off_ray("inline")
    with RayCollector(["CartPole-v1"] * 2, **options) as flat:
        for one, other in zip(batches, drawn(flat, 2), strict=True):
            same_data(rows(one.exclude("mark")), rows(other))
