"""What Swath no longer has is refused by name: what is tried, the error, and the way out that its message names."""

import pytest

import swath

COLLECTORS: list = [
    pytest.param(lambda: swath.RayReplayBuffer, AttributeError, "torchrl.data.RayReplayBuffer", id="RayReplayBuffer"),
]
WEIGHTS: list = []
EVALUATION: list = []
BATCHES: list = []
SAMPLING: list = []
COMMANDS: list = []
ROLLOUT: list = []
WORKERS: list = []


@pytest.mark.parametrize(
    ("attempt", "error", "way_out"),
    [*COLLECTORS, *WEIGHTS, *EVALUATION, *BATCHES, *SAMPLING, *COMMANDS, *ROLLOUT, *WORKERS],
)
def test_what_was_taken_out_is_refused_with_the_way_out(attempt, error, way_out):
    with pytest.raises(error, match=way_out):
        attempt()
