"""Recorders among the transforms of TorchRL's envs: written once per evaluation, by the first slot's env."""

import functools

import pytest
import torch
from torchrl.data import Bounded
from torchrl.envs import Compose, GymEnv, SerialEnv, StepCounter, TransformedEnv
from torchrl.record import VideoRecorder
from torchrl_toys import Answer, Counting

from swath.evaluators import Evaluator

pytestmark = pytest.mark.usefixtures("fork_server")

PLACES = ("thread", "process")


class Files:
    """A logger that writes its calls to a file."""

    def __init__(self, folder):
        self.folder = folder

    def log_video(self, name, video, step=None, **kwargs):
        (self.folder / f"{name}-{step}-{len(list(self.folder.iterdir()))}").write_text(str(video.shape[1]))


class Broken:
    """A logger that raises."""

    def log_video(self, name, video, step=None, **kwargs):
        raise OSError("the disk is full")


class Pixels(Counting):
    """An env that observes its step number and an image."""

    def _make_specs(self):
        super()._make_specs()
        self.observation_spec["pixels"] = Bounded(0, 255, (6, 8, 3), dtype=torch.uint8)

    def _seen(self):
        return {**super()._seen(), "pixels": torch.full((6, 8, 3), int(self._step_nr), dtype=torch.uint8)}


def recorded(logger, *, nested=False):
    recorder = VideoRecorder(logger, tag="film", make_grid=False, skip=1)
    return TransformedEnv(Pixels(), Compose(StepCounter(), recorder) if nested else recorder)


def still(env=None):
    return Answer(lambda observation: torch.zeros_like(observation[..., :1]))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("nested", [False, True], ids=["single", "composition"])
def test_a_recorder_writes_what_the_first_slot_played_once_per_evaluation(place, nested, tmp_path):
    make = functools.partial(recorded, Files(tmp_path), nested=nested)
    layout = {"num_envs": 2, "num_workers": 1 if place == "thread" else 2}
    with Evaluator(make, policy_factory=still, backend=place, num_trajectories=4, **layout) as evaluator:
        for step in (10, 20):
            evaluator.evaluate(step=step)
        assert evaluator.stats()["write_errors"] == 0
    written = sorted(path.name for path in tmp_path.iterdir())
    assert written == ["film-10-0", "film-20-1"]


@pytest.mark.parametrize("place", PLACES)
def test_a_dump_that_fails_is_logged_and_counted_and_the_result_stands(place, caplog):
    make = functools.partial(recorded, Broken())
    with Evaluator(make, policy_factory=still, backend=place, num_trajectories=2) as evaluator:
        for _ in range(2):
            assert evaluator.evaluate()["eval/num_episodes"] == 2
        assert evaluator.stats()["write_errors"] == 2
    assert "the disk is full" in caplog.text


def cartpole():
    return GymEnv("CartPole-v1", render_mode="rgb_array", categorical_action_encoding=True)


@pytest.mark.parametrize(
    ("make", "longest"),
    [(cartpole, 12), (lambda: TransformedEnv(cartpole(), StepCounter(5)), 5), (lambda: SerialEnv(2, cartpole), 12)],
    ids=["one", "counted", "a batch"],
)
def test_envs_that_render_are_filmed(make, longest):
    pytest.importorskip("pygame", reason="CartPole renders with it")
    upright = Answer(lambda observation: (observation[..., 1:].sum(-1) > 0).long())
    with Evaluator(make, upright, num_trajectories=2, max_steps=12, record_video=1) as evaluator:
        result = evaluator.evaluate()
    assert [*result.lengths] == [*result.returns] == [longest] * 2
    film = result["eval/video"]
    assert film.shape == (longest, 400, 600, 3)
    assert film.float().std() > 0
