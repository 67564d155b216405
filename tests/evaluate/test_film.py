"""Films of the first episodes."""

import numpy as np
import pytest
from evaluation_toys import CoinEnv, integer_policy

from swath.evaluate.film import Film, as_frame
from swath.evaluate.local import LocalEvaluation, Slots
from swath.evaluate.request import EvalRequest
from swath.evaluate.stopping import StopRule


def filmed(film, make=lambda: CoinEnv("rgb_array"), num_envs=2):
    with LocalEvaluation(make, Slots(num_envs)) as evaluation:
        return evaluation.run(integer_policy, EvalRequest(stop=StopRule(5)), [film])


@pytest.mark.parametrize("num_envs", [1, 2, 4])
def test_the_first_episodes_are_filmed_one_frame_a_step(num_envs):
    film = Film(3)
    result = filmed(film, num_envs=num_envs)
    assert film.lengths == tuple(result.lengths[:3])
    for take, length in zip(film.takes().values(), result.lengths[:3], strict=True):
        assert take.shape == (length, 4, 6, 3)
        assert take.dtype == np.uint8
        np.testing.assert_array_equal(take[:, 0, 0, 0], np.arange(1, length + 1))
    assert not film.truncated


def test_frames_beyond_the_memory_allowed_are_left_out_and_the_evaluation_goes_on():
    film = Film(5, max_bytes=4 * 72)
    result = filmed(film)
    assert film.truncated
    assert sum(film.lengths) == 4
    assert result["eval/num_episodes"] == 5
    assert len(film.takes()) == sum(length > 0 for length in film.lengths)


def test_an_env_that_does_not_render_says_how_to_build_it():
    with pytest.raises(ValueError, match="render_mode='rgb_array'"):
        filmed(Film(), CoinEnv)


@pytest.mark.parametrize(
    ("shape", "channels"),
    [((2, 5), 3), ((2, 5, 1), 3), ((2, 5, 3), 3), ((2, 5, 4), 3)],
    ids=["grey", "1", "3", "alpha"],
)
def test_pictures_of_any_kind_become_three_channels(shape, channels):
    frame = as_frame(np.arange(np.prod(shape)).reshape(shape), None)
    assert frame.shape == (2, 5, channels)
    assert frame.dtype == np.uint8


@pytest.mark.parametrize("shape", [(2,), (2, 5, 2), (1, 2, 5, 3)])
def test_what_is_no_picture_is_refused(shape):
    with pytest.raises(ValueError, match="renders arrays of shape"):
        as_frame(np.zeros(shape), "the env")


def test_at_least_one_episode_is_filmed():
    with pytest.raises(ValueError, match="episodes=0"):
        Film(0)
