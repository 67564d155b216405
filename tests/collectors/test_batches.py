"""What a batch is: names, shapes, dtypes, entries, devices, memory."""

import pytest
import torch
from collector_toys import Always, Counts, counting, first_batch, make_collector
from gymnasium.vector import AutoresetMode
from tensordict.nn import TensorDictModule

from counting_vector import CountingVectorEnv
from plain import plain
from swath import Collector
from swath.testing import Counting, CountingEnv, CountingEnvs

PLAIN = {
    "observation": ((3,), torch.float32),
    "action": ((), torch.int64),
    "done": ((1,), torch.bool),
    "terminated": ((1,), torch.bool),
    "truncated": ((1,), torch.bool),
    ("next", "observation"): ((3,), torch.float32),
    ("next", "reward"): ((1,), torch.float32),
    ("next", "done"): ((1,), torch.bool),
    ("next", "terminated"): ((1,), torch.bool),
    ("next", "truncated"): ((1,), torch.bool),
    ("collector", "traj_ids"): ((), torch.int64),
    ("collector", "policy_version"): ((), torch.int64),
}
STEP_COUNT = {"step_count": ((1,), torch.int64), ("next", "step_count"): ((1,), torch.int64)}
TRACKED = {"policy_version": ((), torch.int64), ("next", "policy_version"): ((), torch.int64)}
MASK = {("collector", "mask"): ((), torch.bool)}


def entries(batch):
    keys = batch.keys(include_nested=True, leaves_only=True)
    return {key: (tuple(batch[key].shape[batch.ndim :]), batch[key].dtype) for key in keys}


def without(entries, *keys):
    return {key: value for key, value in entries.items() if key not in keys}


ENTRIES = [
    ({}, PLAIN),
    ({"max_frames_per_traj": 4}, PLAIN | STEP_COUNT),
    ({"track_policy_version": True}, PLAIN | TRACKED),
    ({"track_policy_version": object()}, PLAIN | TRACKED),
    ({"track_traj_ids": False}, without(PLAIN, ("collector", "traj_ids"))),
    ({"compact_obs": True}, without(PLAIN, ("next", "observation"))),
    ({"split_trajs": True}, PLAIN | MASK),
    ({"trajs_per_batch": 2}, PLAIN | MASK),
    ({"trajs_per_batch": 2, "traj_format": "cat"}, PLAIN),
    ({"trajs_per_batch": 2, "track_traj_ids": False}, without(PLAIN, ("collector", "traj_ids")) | MASK),
    ({"set_truncated": True}, PLAIN),
]


@pytest.mark.parametrize(("options", "wanted"), ENTRIES, ids=[plain(options) for options, _ in ENTRIES])
def test_a_batch_has_these_entries_and_no_others(options, wanted):
    assert entries(first_batch(**options)) == wanted


@pytest.mark.parametrize("options", [options for options, _ in ENTRIES[:6]], ids=plain)
def test_fake_tensordict_is_a_real_batch_of_zeros(options):
    with make_collector(**options) as collector:
        fake, real = collector.fake_tensordict(), collector.next()
    assert entries(fake) == entries(real)
    assert fake.batch_size == real.batch_size
    assert fake.names == real.names
    assert all(not fake[key].any() for key in fake.keys(include_nested=True, leaves_only=True))


SHAPES = [
    ({"env": CountingEnv, "frames_per_batch": 7}, (7,)),
    ({"env": CountingEnv, "frames_per_batch": 7, "envs_per_worker": 1}, (1, 7)),
    ({"env": CountingEnv, "frames_per_batch": 12, "envs_per_worker": 3}, (3, 4)),
    ({"env": lambda: CountingVectorEnv(2), "frames_per_batch": 12}, (2, 6)),
    ({"env": lambda: CountingVectorEnv(1), "frames_per_batch": 12}, (1, 12)),
    ({"env": "CartPole-v1", "frames_per_batch": 3}, (3,)),
    ({"env": [CountingEnv], "frames_per_batch": 2}, (2,)),
]


@pytest.mark.parametrize(("options", "shape"), SHAPES, ids=[str(shape) for _, shape in SHAPES])
def test_time_is_the_last_dimension(options, shape):
    batch = first_batch(**options)
    assert batch.batch_size == shape
    assert batch.names == [None] * (len(shape) - 1) + ["time"]
    assert batch["next"].names == batch.names
    assert batch.device is None


def test_a_batch_is_rounded_up_to_whole_steps_with_one_warning():
    with pytest.warns(UserWarning, match="frames_per_batch=10 is not shared evenly .* batches have 12") as caught:
        collector = Collector(CountingEnv, envs_per_worker=3, frames_per_batch=10, total_frames=30)
    assert len(caught) == 1
    assert collector.frames_per_batch == 10
    assert collector.requested_frames_per_batch == collector.frames_per_batch_worker() == 12
    assert len(collector) == 3
    assert [batch.shape for batch in collector] == [(3, 4)] * 3
    assert collector.stats()["frames"] == 36


@pytest.mark.parametrize(
    ("space", "wanted"),
    [
        ("float64", {"observation": torch.float32}),
        ("image", {"observation": torch.uint8}),
        ("discrete", {"observation": torch.int64}),
        ("multi_binary", {"observation": torch.int8}),
        ("dict", {"image": torch.uint8, "place": torch.float32}),
        ("tuple", {"observation_0": torch.float32, "observation_1": torch.int64}),
        (
            "nested",
            {
                ("camera", "left"): torch.uint8,
                ("camera", "right"): torch.uint8,
                "state_0": torch.float32,
                ("state_1", "bits"): torch.int8,
            },
        ),
    ],
)
def test_observations_go_to_these_keys_in_these_dtypes(space, wanted):
    batch = first_batch(CountingEnvs(Counting(observation=space)), envs_per_worker=2)
    got = {key: dtype for key, (_, dtype) in entries(batch).items()}
    assert {key: got[key] for key in wanted} == wanted
    assert all(got["next", *key] == got[key] for key in wanted if isinstance(key, tuple))
    assert len(got) == 2 * len(wanted) + 10


def test_all_that_a_policy_answers_is_kept_but_private_entries():
    def policy(tensordict):
        tensordict["action"] = torch.zeros(2, dtype=torch.int64)
        tensordict["action_log_prob"] = torch.full((2,), -1.5)
        tensordict["_scratch"] = torch.ones(2)
        tensordict["deep", "_hidden"] = torch.ones(2)
        tensordict["deep", "logits"] = torch.ones(2, 3, dtype=torch.bfloat16)

    batch = first_batch(policy=policy)
    added = entries(batch).keys() - PLAIN.keys()
    assert added == {"action_log_prob", ("deep", "logits")}
    assert batch["deep", "logits"].dtype == torch.bfloat16


DEVICES = [
    ({}, None),
    ({"storing_device": "cpu"}, "cpu"),
    ({"env_device": "cpu"}, None),
    ({"policy_device": "cpu"}, None),
    ({"env_device": "cpu", "policy_device": "cpu"}, "cpu"),
    ({"device": torch.device("cpu")}, "cpu"),
    ({"storing_device": "meta"}, "meta"),
]


@pytest.mark.parametrize(("options", "device"), DEVICES)
def test_a_batch_has_a_device_if_it_is_asked_for_or_common(options, device):
    batch = first_batch(policy=Always(), **options)
    assert batch.device == (None if device is None else torch.device(device))
    assert batch["observation"].is_meta == (device == "meta")


def test_version_entries_say_which_weights_acted():
    with make_collector(policy=Always(), track_policy_version=True, init_random_frames=10) as collector:
        for version in range(3):
            batch = collector.next()
            for key in (("collector", "policy_version"), "policy_version", ("next", "policy_version")):
                assert bool((batch[key] == version).all())
            collector.update_policy_weights_()


def test_masks_are_there_in_every_batch_of_a_next_step_vector_env():
    env = CountingVectorEnv(2, counting(7), autoreset_mode=AutoresetMode.NEXT_STEP)
    with make_collector(env, total_frames=60) as collector:
        batches = list(collector)
        assert entries(collector.fake_tensordict()) == entries(batches[0]) == PLAIN | MASK
    masks = torch.cat([batch["collector", "mask"] for batch in batches], -1)
    assert bool(masks[:, :7].all())
    assert masks[:, 7].tolist() == [False, False]
    assert bool(masks[:, 8:15].all())
    frames = int(masks.sum())
    assert frames >= 60
    assert frames == sum(int(batch["collector", "mask"].sum()) for batch in batches)
    ids = torch.cat([batch["collector", "traj_ids"] for batch in batches], -1)
    assert bool((ids[~masks] == -1).all())


def as_module():
    return TensorDictModule(Counts(), in_keys=[*Counts.in_keys], out_keys=[*Counts.out_keys])


@pytest.mark.parametrize("envs", [None, 2])
@pytest.mark.parametrize("policy", [Counts, as_module])
def test_recurrent_state_is_fed_back_and_zero_where_an_episode_begins(policy, envs):
    like = counting(3, 4)
    with make_collector(CountingEnvs(like), policy(), envs_per_worker=envs, init_random_frames=10) as collector:
        assert not collector.next()["hidden"].any()
        collector.reset()
        td = torch.cat([collector.next() for _ in range(4)], -1)
    step = td["observation"][..., 2:]
    assert torch.equal(td["hidden"], step)
    assert torch.equal(td["next", "hidden"], step + 1)
    assert torch.equal(td["is_init"], step == 0)
    assert td["is_init"].dtype == torch.bool


def test_gradients_are_off_while_acting():
    def policy(observation):
        assert not torch.is_grad_enabled()
        return torch.zeros(observation.shape[:-1], dtype=torch.int64)

    assert first_batch(policy=policy).shape == (2, 5)
