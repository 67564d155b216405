"""Episodes as callbacks and policies see them while they run."""

import gc
import weakref
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from rw_toys import Foreseen, counting_worker, made_of

from mock_envs import MockEnv3, VectorizedMockEnv
from swath.rollout_workers import Episode
from swath.rollout_workers.policies.ppo import PPOTorchPolicy
from swath.rollout_workers.policy import RandomPolicy
from swath.testing.counting import Counting, Script

ONE = {"num_envs_per_env_runner": 1, "rollout_fragment_length": 5}


def test_callbacks_are_called_in_order_with_sums_of_the_moment() -> None:
    notes: list[Any] = []

    def note(event: str, *, episode: Any, env_index: int, **given: Any) -> None:
        notes.append((event, env_index, episode.length, episode.total_reward))
        assert given["worker"] is given["env_runner"]
        assert given["env"] is given["base_env"].get_sub_environments()[env_index]
        assert set(given["policies"]) == {"default_policy"}
        if event == "step":
            assert episode.active_env_steps == episode.length
            episode.hist_data.setdefault("seen", []).append(episode.last_info_for()["timestep"])
        elif event == "end":
            assert episode.is_truncated()
            assert episode.agent_rewards == {("agent0", "default_policy"): episode.total_reward}
            episode.custom_metrics["steps"], episode.media["film"] = episode.length, "none"

    functions = {f"on_episode_{event}": partial(note, event) for event in ("created", "start", "step", "end")}
    with made_of(lambda: MockEnv3(3), RandomPolicy, callback_functions=functions, **ONE) as worker:
        worker.sample()
        (metrics,) = worker.get_metrics()
    first = [
        ("created", 0, -1, 0.0),
        ("start", 0, 0, 0.0),
        ("step", 0, 1, 1.0),
        ("step", 0, 2, 3.0),
        ("step", 0, 3, 6.0),
    ]
    assert notes == [*first, ("end", 0, 3, 6.0), *first[:4]]
    assert (metrics.custom_metrics, metrics.hist_data, metrics.media) == (
        {"steps": 3},
        {"seen": [1, 2, 3]},
        {"film": "none"},
    )


def test_episodes_are_forgotten_once_their_last_row_is_handed_out():
    made: weakref.WeakSet[Any] = weakref.WeakSet()
    listening = {"on_episode_created": lambda *, episode, **_: made.add(episode)}
    settings = {"num_envs_per_env_runner": 1, "rollout_fragment_length": 10, "callback_functions": listening}
    with made_of(lambda: VectorizedMockEnv(4, 3), RandomPolicy, **settings) as worker:
        for _ in range(6):
            worker.sample()
            gc.collect()
            assert len(made) <= 3 * (10 // 4 + 2)


class Curious(Foreseen):
    """Is shown episodes."""

    looks_at_episodes = True
    ids: list[int]

    def compute_actions(self, obs_batch: Any, state_batches: Any = None, **kwargs: Any) -> Any:
        assert {type(episode) for episode in kwargs["episodes"]} == {Episode}
        assert [episode.length for episode in kwargs["episodes"]] == obs_batch[:, 2].tolist()
        self.ids = [episode.episode_id for episode in kwargs["episodes"]]
        return super().compute_actions(obs_batch, state_batches, **kwargs)


def test_a_policy_that_looks_at_episodes_is_shown_one_per_row():
    worker, _ = counting_worker(Counting(script=Script((3, 5, 1, 4))), policy=Curious)
    with worker:
        batch = worker.sample()
    assert worker.get_policy().ids == batch["eps_id"].reshape(3, -1)[:, -1].tolist()


class Remembering(Foreseen):
    """Counts the steps of its episodes in a nested state."""

    def get_initial_state(self) -> Any:
        return [{"steps": np.zeros(2, np.float32)}]

    def is_recurrent(self) -> bool:
        return True

    def compute_actions(self, obs_batch: Any, state_batches: Any = None, **kwargs: Any) -> Any:
        (state,) = state_batches
        np.testing.assert_array_equal(state["steps"][:, 0], obs_batch[:, 2])
        actions, _, extra = super().compute_actions(obs_batch, **kwargs)
        return actions, [{"steps": state["steps"] + 1}], extra


def test_states_are_kept_per_sub_env_and_rows_are_put_into_sequences():
    worker, _ = counting_worker(
        Counting(script=Script((7, 5, 9))),
        policy=Remembering,
        rollout_fragment_length=12,
        model={"max_seq_len": 4},
    )
    with worker:
        batches = [worker.sample(), worker.sample()]
    for batch in batches:
        batch.check_lengths()
        lengths = batch["seq_lens"]
        assert lengths.sum() == 36
        assert lengths.max() == 4
        starts = np.cumsum([0, *lengths[:-1]])
        np.testing.assert_array_equal(batch["state_in_0"]["steps"][:, 0], batch["t"][starts])
        np.testing.assert_array_equal(batch["state_out_0"]["steps"][:, 0], batch["t"] + 1)
        chunks = [set(batch["unroll_id"][start : start + n].tolist()) for start, n in zip(starts, lengths, strict=True)]
        assert all(len(chunk) == 1 for chunk in chunks)


@pytest.mark.parametrize("mode", ["truncate_episodes", "complete_episodes"])
def test_what_is_noted_of_chunks_is_there_when_their_episode_ends(mode: str) -> None:
    def count(*, episode: Any, postprocessed_batch: Any, **_: Any) -> None:
        episode.custom_metrics["rows"] = episode.custom_metrics.get("rows", 0) + postprocessed_batch.count

    def end(*, episode: Any, **_: Any) -> None:
        episode.hist_data["at_end"] = [episode.custom_metrics["rows"]]

    functions = {"on_postprocess_trajectory": count, "on_episode_end": end}
    with made_of(lambda: MockEnv3(7), RandomPolicy, callback_functions=functions, batch_mode=mode, **ONE) as worker:
        for _ in range(5):
            worker.sample()
        told = worker.get_metrics()
    assert len(told) > 2
    assert [metrics.hist_data["at_end"] for metrics in told] == [[7]] * len(told)


def test_advantages_of_a_whole_batch_are_those_of_its_chunks():
    def batches(**settings: Any) -> Any:
        settings = {"seed": 5, "model": {"fcnet_hiddens": [8]}, "lambda_": 0.9, "gamma": 0.95, **settings}
        settings |= {"num_envs_per_env_runner": 3, "rollout_fragment_length": 40}
        with made_of(lambda: gym.make("CartPole-v1", max_episode_steps=15), PPOTorchPolicy, **settings) as worker:
            return [worker.sample() for _ in range(3)]

    for at_once, by_chunk in zip(
        batches(), batches(callback_functions={"on_postprocess_trajectory": lambda **_: None}), strict=True
    ):
        assert set(at_once) == set(by_chunk)
        assert at_once["truncateds"].any()
        for name in at_once:
            np.testing.assert_allclose(at_once[name], by_chunk[name], rtol=1e-5, atol=1e-5, err_msg=name)
