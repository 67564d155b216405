"""How much is collected: ends, lengths, random beginnings, drawing again."""

import pytest
import torch
from collector_toys import WithValue, collector


@pytest.mark.parametrize(("total", "batches"), [(0, 0), (1, 1), (10, 1), (11, 2), (30, 3)])
def test_total_frames_is_a_lower_bound_and_no_batch_is_cut(total, batches):
    with collector(total_frames=total) as made:
        assert len(made) == batches
        assert bool(made)
        assert made.total_frames == total
        got = list(made)
        assert [batch.numel() for batch in got] == [10] * batches
        stats = made.stats()
    assert stats["frames"] == 10 * batches
    assert stats["total_frames"] == total
    assert stats["completed"] is True


@pytest.mark.parametrize("total", [None, -1, -5])
def test_none_and_negative_totals_mean_no_end(total):
    with collector(total_frames=total) as made:
        assert made.total_frames == -1
        assert len([made.next() for _ in range(20)]) == 20
        assert "total_frames" not in made.stats()
        assert "completed" not in made.stats()
        with pytest.raises(TypeError, match=r"no len\(\)"):
            len(made)


def test_leaving_a_loop_loses_nothing_and_a_second_loop_goes_on():
    with collector(total_frames=40, seed=1) as made:
        whole = torch.cat(list(made), -1)
    with collector(total_frames=40, seed=1) as made:
        parts = []
        for batch in made:
            parts.append(batch)
            break
        parts.append(made.next())
        parts += list(made.iterator())
    assert len(parts) == 4
    assert torch.equal(torch.cat(parts, -1)["observation"], whole["observation"])


@pytest.mark.parametrize(("frames", "batches"), [(None, 0), (0, 0), (-3, 0), (1, 1), (10, 1), (11, 2), (20, 2)])
def test_exactly_the_first_batches_are_random(frames, batches):
    with collector(policy=WithValue(), init_random_frames=frames, total_frames=40) as made:
        got = list(made)
    for i, batch in enumerate(got):
        if i < batches:
            assert not batch["action_log_prob"].any()
            assert not batch["state_value"].any()
        else:
            assert bool((batch["action_log_prob"] == -1).all())
        assert set(batch.keys()) == set(got[0].keys())
