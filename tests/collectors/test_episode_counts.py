"""Episodes are told as frames are: those whose ends were delivered, and no others."""

import pytest
import torch
from collector_toys import counting
from fleet_toys import IDS, KINDS, MASK, drawn, fleet, numbered
from writing_toys import FileBuffer

pytestmark = pytest.mark.usefixtures("fork_server")

SHORT = counting(3, 5, 1, 4)
"""Some episodes end in each fragment."""


def rows_of(batches):
    """Env rows `[T]` of frames, in order."""
    for batch in batches:
        for row in batch.reshape(-1, batch.shape[-1]) if batch.ndim > 1 else [batch]:
            yield row if MASK not in row.keys(include_nested=True) else row[row[MASK]]


def ended_in(batches):
    """Return and length, as delivered, of each episode whose end was."""
    sums, ended = {}, {}
    for row in rows_of(batches):
        columns = row[IDS], row["next", "reward"][:, 0], row["next", "done"][:, 0]
        for trajectory, reward, done in zip(*map(torch.Tensor.tolist, columns), strict=True):
            value, length = sums.get(trajectory, (0.0, 0))
            sums[trajectory] = value + reward, length + 1
            if done:
                ended[trajectory] = sums[trajectory]
    assert len(ended) < 100, "means are told of the last hundred only"
    return list(ended.values())


def check_told(stats, batches):
    """The numbers are those of these batches; no more episodes, and no fewer."""
    returns, lengths = zip(*ended_in(batches), strict=True)
    assert stats["episodes"] == len(returns) > 0
    assert stats["episode_return"] == pytest.approx(sum(returns) / len(returns))
    assert stats["episode_length"] == pytest.approx(sum(lengths) / len(lengths))


def reset(collector):
    collector.reset()


def reset_one(collector):
    collector.reset([True, False])


def load(collector):
    collector.load_state_dict(collector.state_dict())


@pytest.mark.parametrize("begin_anew", [reset, reset_one, load])
@pytest.mark.parametrize("kind", KINDS)
def test_episodes_that_ended_in_what_was_collected_ahead_and_dropped_do_not_count(kind, begin_anew):
    with fleet(kind, numbered(counting=SHORT), prefetch=2, backend="process") as made:
        batches = drawn(made, 3)
        made.get_distant_attr("worker_idx")  # is answered after what is collected ahead
        begin_anew(made)
        check_told(made.stats(), batches)
        batches += drawn(made, 3)
        check_told(made.stats(), batches)


# ---- workers that write for themselves


@pytest.mark.parametrize("begin_anew", [reset, reset_one, load])
@pytest.mark.parametrize("whole", [{}, {"trajs_per_batch": 1, "trajs_per_write": 2}], ids=["fragments", "episodes"])
@pytest.mark.parametrize("kind", KINDS)
def test_episodes_count_when_their_workers_have_written_them(kind, whole, begin_anew, tmp_path):
    buffer = FileBuffer(tmp_path)
    options = {"replay_buffer": buffer, "prefetch": 2, "backend": "process", **whole}
    with fleet(kind, numbered(counting=SHORT), **options) as made:
        drawn(made, 3)
        begin_anew(made)
        drawn(made, 3)
    check_told(made.stats(), buffer.written)
