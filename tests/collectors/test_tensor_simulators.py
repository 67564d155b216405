"""Simulators whose tensors live on a device: every row is right, and the device is not waited for within a fragment."""

from collections import Counter
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import SyncVectorEnv, VectorWrapper
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict.nn import TensorDictModule as Mod
from torch import nn
from torch.overrides import TorchFunctionMode

from swath import Collector, Evaluator, MultiAsyncCollector, MultiSyncCollector, evaluate_policy
from swath.errors import BadAnswer
from swath.rollout.episodes.statistics import DeviceTrajectoryIds, TrajectoryIds
from tensor_simulators import DISABLED, NEXT_STEP, SAME_STEP, BatchedSimulator, Simulator, require_lawful

pytestmark = pytest.mark.usefixtures("fork_server")

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
MODES = pytest.mark.parametrize("mode", [SAME_STEP, NEXT_STEP, DISABLED], ids=lambda mode: mode.name)


class Act(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(3, 2)

    def forward(self, observation):
        return self.net(observation).tanh()


class Counting(nn.Module):
    """A recurrent policy whose state is the number of steps of the episode."""

    in_keys = ["observation", "count", "is_init"]
    out_keys = ["action", "seen", ("next", "count")]

    def forward(self, observation, count, is_init):
        count = torch.zeros(len(observation), 1, device=observation.device) if count is None else count
        assert ((count == 0) | ~is_init).all()
        return torch.zeros(len(observation), 2, device=observation.device), count, count + 1


@MODES
@pytest.mark.parametrize("kind", [Simulator, BatchedSimulator])
@pytest.mark.parametrize("device", DEVICES)
def test_every_row_is_right(mode, kind, device):
    with Collector(partial(kind, 7, mode, device), Act().to(device), frames_per_batch=7 * 11, total_frames=-1) as c:
        batches = [c.next() for _ in range(4)]
    assert batches[0]["observation"].device.type == device
    frames = [require_lawful(batch) for batch in batches]
    assert all(count == 77 for count in frames) or mode is NEXT_STEP  # the rows of its resets are masked
    ids = torch.cat([batch["collector", "traj_ids"].reshape(-1) for batch in batches])
    episodes = torch.cat([batch["observation"][..., :2].reshape(-1, 2) for batch in batches])
    valid = ids >= 0
    pairs = torch.cat([ids[valid, None], episodes[valid].long()], 1)
    assert len(pairs.unique(dim=0)) == len(ids[valid].unique())  # an id goes on over batches, and is of one episode


@MODES
def test_batches_are_the_users(mode):
    with Collector(partial(Simulator, 4, mode), Act(), frames_per_batch=4 * 6) as c:
        first, copy = (batch := c.next()), batch.clone()
        c.next()
        assert (first == copy).all()
        first["observation"].fill_(-1)
        assert (first["next", "observation"] == copy["next", "observation"]).all()


@MODES
def test_statistics_are_those_of_whole_episodes(mode):
    with Collector(partial(Simulator, 6, mode), Act(), frames_per_batch=6 * 30) as c:
        c.next()
        stats = c.stats()
    lengths = 3 + np.arange(6) % 3
    assert stats["episode_length"] == pytest.approx(_mean_over_episodes(lengths, lengths, mode))
    assert stats["episode_return"] == pytest.approx(_mean_over_episodes(lengths, lengths * (lengths + 1) / 2, mode))


def _mean_over_episodes(lengths, values, mode):
    counts = 30 // (lengths + (mode is NEXT_STEP))
    return (counts * values).sum() / counts.sum()


@pytest.mark.parametrize("mode", [SAME_STEP, NEXT_STEP], ids=lambda mode: mode.name)
@pytest.mark.parametrize("device", DEVICES)
def test_a_fragment_waits_for_the_device_as_often_as_it_has_fragments(mode, device):
    counts = []
    for n_steps in (8, 64):
        with Collector(partial(Simulator, 5, mode, device), Act().to(device), frames_per_batch=5 * n_steps) as c:
            c.next()
            with CountingWaits() as waits:
                c.next()
        counts.append(waits.calls)
    assert counts[0] == counts[1]
    assert counts[0], "the ids of a fragment are made once it is complete"


class CountingWaits(TorchFunctionMode):
    """Counts the calls that wait for a device."""

    NAMES = frozenset(("item", "tolist", "numpy", "cpu", "nonzero", "__bool__", "__int__", "__float__", "argwhere"))

    def __init__(self):
        super().__init__()
        self.calls = Counter()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", "")
        masks = [arg for arg in args[1:2] if isinstance(arg, torch.Tensor) and arg.dtype is torch.bool]
        if name in self.NAMES or (name in ("__getitem__", "__setitem__") and masks):
            self.calls[name] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.gpu
def test_cuda_reports_no_wait_within_a_fragment(monkeypatch):
    with Collector(partial(Simulator, 64, SAME_STEP, "cuda"), Act().cuda(), frames_per_batch=64 * 16) as c:
        c.next()
        worker = c._worker
        seal = worker._seal

        def allowed(*args):
            torch.cuda.set_sync_debug_mode("default")
            return seal(*args)

        monkeypatch.setattr(worker, "_seal", allowed)
        torch.cuda.set_sync_debug_mode("error")
        try:
            require_lawful(c.next())
        finally:
            torch.cuda.set_sync_debug_mode("default")


def test_evaluations_give_no_trajectories_without_their_last_observations():
    def count_frames(batch):
        return {"rows": int(batch["collector", "mask"].sum())}

    options = {"num_trajectories": 5, "metrics_fn": count_frames}
    with Evaluator(partial(Simulator, 5, SAME_STEP), Act(), **options) as evaluator:
        assert evaluator.evaluate()["eval/rows"] == 3 + 4 + 5 + 3 + 4
    with (
        Evaluator(partial(Simulator, 5, SAME_STEP, sends_final=False), Act(), **options) as evaluator,
        pytest.raises(ValueError, match="the env sent no last observation of them"),
    ):
        evaluator.evaluate()


def test_missing_final_observations_are_refused_with_the_way_out():
    make = partial(Simulator, 4, SAME_STEP, sends_final=False)
    with (
        Collector(make, Act(), frames_per_batch=4 * 8) as c,
        pytest.raises(ValueError, match="final_observation='missing'"),
    ):
        c.next()


def test_rows_without_a_final_observation_are_marked():
    make = partial(Simulator, 4, SAME_STEP, sends_final=False)
    with Collector(make, Act(), frames_per_batch=4 * 8, final_observation="missing") as c:
        batch = c.next()
    missing = batch["next", "final_observation_missing"]
    assert (missing == batch["next", "done"]).all()
    assert missing.any()
    ended = missing[..., 0]
    assert (batch["next", "observation"][ended][:, 2] == 0).all()  # the first of another episode
    going_on = batch["next", "observation"][~ended] == batch["observation"][~ended] + torch.tensor([0, 0, 1])
    assert going_on.all()


def test_the_mark_is_never_set_where_final_observations_are_sent():
    with Collector(partial(Simulator, 4, SAME_STEP), Act(), frames_per_batch=32, final_observation="missing") as c:
        batch = c.next()
    assert not batch["next", "final_observation_missing"].any()
    require_lawful(batch)


class SendsSome(Simulator):
    """Sends last observations of the envs with an even number only, as a wrapper that truncates others leaves them."""

    def step(self, actions):
        *returned, infos = super().step(actions)
        infos["_final_obs"] = infos["_final_obs"] & (self.env % 2 == 0)
        infos["final_obs"][1::2] = -1
        return *returned, infos


def test_only_rows_of_envs_that_the_mask_leaves_out_are_marked():
    with Collector(partial(SendsSome, 4, SAME_STEP), Act(), frames_per_batch=32, final_observation="missing") as c:
        batch = c.next()
    ended, missing = batch["next", "done"][..., 0], batch["next", "final_observation_missing"][..., 0]
    assert not missing[::2].any()
    assert ended[::2].any()
    assert missing[1::2].equal(ended[1::2])
    assert (batch["next", "observation"][missing][:, 2] == 0).all()  # the first of another episode
    step = batch["next", "observation"] - batch["observation"]
    assert (step[~missing] == torch.tensor([0, 0, 1])).all()


def test_last_observations_of_another_shape_are_named():
    class SendsEnded(Simulator):
        def step(self, actions):
            *returned, infos = super().step(actions)
            return *returned, {"final_obs": infos["final_obs"][infos["_final_obs"]]}

    with (
        Collector(partial(SendsEnded, 4, SAME_STEP), Act(), frames_per_batch=4 * 8) as c,
        pytest.raises(ValueError, match=r"of the last observations in its infos: it returned shape \(0, 3\)"),
    ):
        c.next()


def test_a_mask_without_an_env_that_ended_is_refused():
    with (
        Collector(partial(SendsSome, 4, SAME_STEP), Act(), frames_per_batch=4 * 8) as c,
        pytest.raises(ValueError, match="final_observation='missing'"),
    ):
        c.next()


def test_a_wrong_value_of_the_option_is_refused():
    with pytest.raises(ValueError, match="final_observation='none' must be one of 'required', 'missing'"):
        Collector(partial(Simulator, 4, SAME_STEP), Act(), frames_per_batch=32, final_observation="none")


@MODES
def test_recurrent_state_begins_with_each_episode(mode):
    with Collector(partial(Simulator, 5, mode), Counting(), frames_per_batch=5 * 13) as c:
        batches = [c.next() for _ in range(3)]
    for batch in batches:
        valid = batch.get(("collector", "mask"), torch.ones(batch.shape, dtype=torch.bool))
        assert (batch["seen"][..., 0] == batch["observation"][..., 2])[valid].all()


def test_limits_of_steps_end_episodes_where_single_envs_can_be_reset():
    with Collector(partial(Simulator, 6, DISABLED), Act(), frames_per_batch=6 * 12, max_frames_per_traj=2) as c:
        batch = c.next()
    assert (batch["next", "truncated"][..., 0] == (batch["observation"][..., 2] == 1)).all()
    assert (batch["step_count"] == batch["observation"][..., 2:].long()).all()


def test_limits_of_steps_are_refused_where_the_simulator_resets_itself():
    with pytest.raises(ValueError, match="max_frames_per_traj=2 must reset single envs"):
        Collector(partial(Simulator, 6, SAME_STEP), Act(), frames_per_batch=72, max_frames_per_traj=2)


@MODES
@pytest.mark.parametrize("kind", [MultiSyncCollector, MultiAsyncCollector])
def test_several_workers_deliver_right_rows(mode, kind):
    frames = 2 * 5 * 9 if kind is MultiSyncCollector else 5 * 9
    with kind([partial(Simulator, 5, mode)] * 2, Act(), frames_per_batch=frames, total_frames=4 * frames) as collector:
        for batch in collector:
            for part in batch.unbind(0) if batch.dim() == 3 else [batch]:
                require_lawful(part)


def test_workers_elsewhere_make_the_same_batches():
    batches = []
    for backend in ("thread", "process"):
        source = [partial(Simulator, 5, SAME_STEP)] * 2
        with MultiSyncCollector(
            source, Act().requires_grad_(False).apply(_ones), frames_per_batch=90, backend=backend, seed=1
        ) as c:
            batches.append([next(iter(c)).clone() for _ in range(2)])
    for first, second in zip(*batches, strict=True):
        assert {*first.keys(include_nested=True)} == {*second.keys(include_nested=True)}
        assert (first == second).all()


def _ones(module):
    for parameter in module.parameters(recurse=False):
        nn.init.constant_(parameter, 0.1)


@MODES
def test_evaluations_play_whole_episodes(mode):
    lengths = 3 + np.arange(5) % 3
    expected = (lengths * (lengths + 1) / 2).mean()
    result = evaluate_policy(Act(), Simulator(5, mode), n_eval_episodes=5, return_episode_rewards=True)
    assert result[1] == lengths.tolist()
    with Evaluator(partial(Simulator, 5, mode, sends_final=False), Act(), num_trajectories=5) as evaluator:
        assert evaluator.evaluate()["eval/reward"] == expected


def test_a_step_that_raises_is_the_failure_of_the_simulator():
    with Collector(partial(Simulator, 3, SAME_STEP, breaks_at=5), Act(), frames_per_batch=3 * 8) as c:
        with pytest.raises(ArithmeticError, match="the simulator broke") as caught:
            c.next()
        assert "raised by env 0" in "".join(caught.value.__notes__)
        require_lawful(c.next())  # from a reset on


def test_a_source_that_raised_is_built_again():
    built = []

    def make():
        built.append(Simulator(3, SAME_STEP, breaks_at=5 if not built else None))
        return built[-1]

    with Collector(make, Act(), frames_per_batch=3 * 8, on_env_error="restart") as c:
        assert require_lawful(c.next()) == 24
        assert c.stats()["restarts"] == 1
    assert len(built) == 2


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda o, r, t, u, i: (o.numpy(), r, t, u, i), "its first reset returned tensors"),
        (lambda o, r, t, u, i: (o[:, :2], r, t, u, i), "its space says"),
        (lambda o, r, t, u, i: (o, r[:2], t, u, i), "one number per env"),
        (lambda o, r, t, u, i: (o, r, None, u, i), "one number per env"),
    ],
    ids=["array", "shape", "reward", "flag"],
)
def test_answers_of_another_form_are_named(change, error):
    class Wrong(Simulator):
        def step(self, actions):
            return change(*super().step(actions))

    with Collector(Wrong(3, SAME_STEP), Act(), frames_per_batch=24) as c, pytest.raises(ValueError, match=error):
        c.next()


@pytest.mark.parametrize("change", [lambda o, i: o, lambda o, i: (o,), lambda o, i: (o[:, :2], i)])
def test_resets_of_another_form_are_named(change):
    class Wrong(Simulator):
        def reset(self, **options):
            return change(*super().reset(**options))

    with pytest.raises(BadAnswer, match=r"vector env has reset\(seed=…, options=…\) -> observations, infos"):
        Collector(Wrong(3, SAME_STEP), Act(), frames_per_batch=24)


def test_a_simulator_that_does_not_say_when_it_resets_is_taken_to_do_it_within_the_step():
    class Silent(BatchedSimulator):
        def __init__(self):
            super().__init__(4, SAME_STEP)
            self.metadata = {}

    with pytest.warns(UserWarning, match="taken to reset its envs within the step"):
        collector = Collector(Silent, Act(), frames_per_batch=4 * 9)
    with collector:
        require_lawful(collector.next())


def test_wrappers_of_gymnasium_stay_around_the_simulator():
    class Doubled(gym.Wrapper):
        def step(self, action):
            observation, reward, *rest = self.env.step(action)
            return observation, 2 * reward, *rest

    def make():
        return gym.wrappers.OrderEnforcing(Doubled(BatchedSimulator(4, SAME_STEP)))

    with Collector(make, Act(), frames_per_batch=4 * 9) as c:
        batch = c.next()
    assert (batch["next", "reward"] == 2 * batch["next", "observation"][..., 2:]).all()


def test_random_actions_are_drawn_where_the_simulator_is():
    with Collector(partial(Simulator, 4, SAME_STEP), None, frames_per_batch=32) as c:
        action = c.next()["action"]
    assert action.abs().max() <= 1
    assert len(action.unique()) > 16
    with Collector(partial(Simulator, 4, SAME_STEP), Act(), frames_per_batch=32, init_random_frames=32) as c:
        require_lawful(c.next())


def test_tensordict_policies_act_on_simulators():
    policy = Mod(nn.Linear(3, 2), in_keys=["observation"], out_keys=["action"])
    with Collector(partial(Simulator, 4, SAME_STEP), policy, frames_per_batch=32) as c:
        batch = c.next()
    torch.testing.assert_close(batch["action"], policy.module(batch["observation"]).detach())


def test_compact_batches_have_no_next_observations():
    with Collector(partial(Simulator, 4, SAME_STEP), Act(), frames_per_batch=32, compact_obs=True) as c:
        batch = c.next()
    assert ("next", "observation") not in batch.keys(include_nested=True)


@given(
    data=st.data(),
    n_envs=st.integers(1, 4),
    n_steps=st.integers(1, 7),
    fragments=st.integers(1, 3),
    masked=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_ids_of_tensors_are_those_of_arrays(data, n_envs, n_steps, fragments, masked):
    arrays = TrajectoryIds(n_envs, worker=3, life=2, counts_steps=True)
    tensors = DeviceTrajectoryIds(n_envs, worker=3, life=2, counts_steps=True, device=torch.device("cpu"))
    flags = st.lists(st.booleans(), min_size=n_envs * n_steps, max_size=n_envs * n_steps)
    for _ in range(fragments):
        last = np.array(data.draw(flags)).reshape(n_envs, n_steps)
        valid = np.array(data.draw(flags)).reshape(n_envs, n_steps) if masked else None
        last = last if valid is None else last & valid
        reward = np.arange(last.size, dtype=np.float32).reshape(last.shape)
        expected = arrays.label(reward, last, valid)
        found = tensors.label(*(None if part is None else torch.from_numpy(part) for part in (reward, last, valid)))
        is_valid = np.ones_like(last) if valid is None else valid
        np.testing.assert_array_equal(found[0].numpy(), expected[0])
        np.testing.assert_array_equal(found[1].numpy()[is_valid], expected[1][is_valid])
        assert tensors.ended_episodes.tolist() == arrays.ended_episodes.tolist()
        assert tensors.next_id == arrays.next_id


def test_statistics_of_wrappers_count_no_reset_that_is_not_the_users():
    class Counted(VectorWrapper):
        resets = 0

        def reset(self, **kwargs):
            Counted.resets += 1
            return super().reset(**kwargs)

    with Collector(lambda: Counted(Simulator(4, SAME_STEP)), Act(), frames_per_batch=32) as c:
        require_lawful(c.next())
    assert Counted.resets == 1


def test_arrays_that_a_wrapper_turns_into_tensors_stay_tensors():
    def make():
        return NumpyToTorch(SyncVectorEnv([lambda: gym.make("CartPole-v1")] * 3, autoreset_mode=SAME_STEP))

    pytest.importorskip("array_api_compat")
    from gymnasium.wrappers.vector import NumpyToTorch

    def policy(observation):
        assert isinstance(observation, torch.Tensor)
        return (observation[:, 2] > 0).long()

    with Collector(make, policy, frames_per_batch=3 * 40) as c:
        batch = c.next()
    assert batch["next", "done"].any()


@MODES
def test_true_observations_stay_where_a_simulator_was_built_again_within_a_fragment(mode):
    built = []

    def make():
        built.append(Simulator(5, mode, breaks_at=9 if not built else None))
        return built[-1]

    with Collector(make, Act(), frames_per_batch=5 * 20, on_env_error="reset") as c:
        batch = c.next()
    valid = batch.get(("collector", "mask"), torch.ones(batch.shape, dtype=torch.bool))
    assert len(built) == 2
    expected = batch["observation"] + torch.tensor([0.0, 0.0, 1.0])
    assert (batch["next", "observation"] == expected)[valid].all()


@MODES
@pytest.mark.parametrize("n_steps", [6, 7])  # episodes end with the sixth step, none with the seventh
def test_a_fragment_that_is_ended_early_keeps_its_true_observations(mode, n_steps):
    class Stops:
        steps = 0

        def collection_stopped(self):
            Stops.steps += 1
            return Stops.steps == n_steps

    with Collector(partial(Simulator, 5, mode), Act(), frames_per_batch=5 * 20, interruptor=Stops()) as c:
        batch = c.next()
    valid = batch["collector", "mask"]
    assert valid.any()
    assert not valid[:, 7:].any()
    assert require_lawful(batch) == int(valid.sum())
