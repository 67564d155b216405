"""What every collection keeps, as a pytest class: derive from it and say how to make the env, or the collector.

```python
import pytest

from swath.testing import CollectionContract


class TestCollectingFromMyEnv(CollectionContract):
    @pytest.fixture
    def make_env(self):
        return MyEnv
```
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from tensordict import TensorDictBase

from swath.collectors.collector import Collector
from swath.keys import DONE, NEXT, VERSION
from swath.seeds import derive
from swath.testing.by_hand import check_by_hand
from swath.testing.checks import check_continuity, check_flags, check_ids, joined, per_frame, same_data, valid
from swath.testing.counted import check_counted
from swath.testing.counting_env import Counting, CountingEnv, CountingEnvs

MakeCollector = Callable[[int | None], Any]
MakeEnv = Callable[..., Any]
SEED = 1234


class CollectionContract:
    """Tests of what a collector delivers from an env, whatever the env.

    Fixtures to override: `make_env`, a function without arguments that builds the env (or vector env); `policy`, what
    acts; or `make_collector`, a function of a seed that builds a collector which ends after `n_batches` batches.

    Attributes:
        n_envs: envs stepped together; `None` takes what `make_env` builds as it is.
        n_steps: T, the steps of a batch; episodes should end within the run.
        n_batches: batches of a run.
        reproducible: whether the seed decides all that happens. False for envs that cannot be seeded.
        by_hand: whether to compare with stepping such an env by hand; needs single envs, reproducible.
    """

    n_envs: int | None = 3
    n_steps = 12
    n_batches = 3
    reproducible = True
    by_hand = True

    @pytest.fixture
    def make_env(self) -> MakeEnv:
        """Override: a function that builds the env."""
        pytest.fail("override the fixture make_env with a function that builds the env")

    @pytest.fixture
    def policy(self) -> Any:
        """What acts; random actions by default."""
        return None

    @pytest.fixture
    def make_collector(self, make_env: MakeEnv, policy: Any) -> MakeCollector:
        """A function that builds the collector, with a seed or `None`."""

        def make(seed: int | None) -> Collector:
            frames = self.n_steps * (self.n_envs or _num_envs(make_env))
            return Collector(
                make_env,
                policy,
                frames_per_batch=frames,
                total_frames=frames * self.n_batches,
                envs_per_worker=self.n_envs,
                seed=seed,
            )

        return make

    @pytest.fixture
    def env_by_hand(self, make_env: MakeEnv) -> Callable[[int], gym.Env[Any, Any]]:
        """A function that builds an env like the i-th of the collector."""
        return lambda i: make_env()  # noqa: ARG005  all alike

    def test_batches_have_the_promised_frames(self, make_collector: MakeCollector) -> None:
        """Of one shape, the last dimension time; the counter counts what is valid."""
        with make_collector(SEED) as collector:
            batches = list(collector)
            frames = sum(int(valid(joined([batch])).sum()) for batch in batches)
            assert len({batch.shape for batch in batches}) == 1, f"shapes differ: {[b.shape for b in batches]}"
            assert all(batch.names[-1] == "time" for batch in batches), "the last dimension is not called time"
            assert collector.stats()["frames"] == frames, f"{collector.stats()['frames']} counted, {frames} delivered"
            assert batches[0].numel() == collector.requested_frames_per_batch, "a batch is not of the promised size"

    def test_each_step_begins_where_the_last_one_led_to(self, make_collector: MakeCollector) -> None:
        """Over the borders of batches too, unless an episode ended."""
        check_continuity(_collected(make_collector))

    def test_done_is_terminated_or_truncated(self, make_collector: MakeCollector) -> None:
        """And episodes do end."""
        td = _collected(make_collector)
        check_flags(td)
        assert per_frame(td, (NEXT, DONE)).any(), "no episode ended; let the run be longer"

    def test_ids_are_exact_over_batches(self, make_collector: MakeCollector) -> None:
        """One id per episode, in order of start."""
        check_ids(_collected(make_collector))

    def test_a_batch_is_its_receivers(self, make_collector: MakeCollector) -> None:
        """Whoever overwrites a batch changes nothing later, and nobody writes it again."""
        if not self.reproducible:
            pytest.skip("needs an undisturbed run to compare with")
        with make_collector(SEED) as collector:
            undisturbed = list(collector)
        with make_collector(SEED) as collector:
            batches = []
            for i, batch in enumerate(collector):
                same_data(batch, undisturbed[i])
                batches.append(_spoilt(batch))
        for batch in batches:
            for key, value in batch.items(include_nested=True, leaves_only=True):
                assert key == VERSION or bool((value == 1).all()), f"{key!r} was written after it was handed out"

    def test_batches_share_no_memory(self, make_collector: MakeCollector) -> None:
        """What one draw gave stays while others are drawn."""
        with make_collector(SEED) as collector:
            pairs = [(batch, batch.clone()) for batch in collector]
        for batch, copy in pairs:
            same_data(batch, copy)

    def test_the_same_seed_gives_the_same_data(self, make_collector: MakeCollector) -> None:
        """Bit for bit, whatever the process drew before."""
        if not self.reproducible:
            pytest.skip("these envs cannot be seeded")
        one = _collected(make_collector)
        torch.rand(3), np.random.rand(3)  # noqa: NPY002  the process's own generators must not matter
        same_data(one, _collected(make_collector))

    def test_rows_are_stamped_with_the_version_that_acted(self, make_collector: MakeCollector) -> None:
        """Versions only grow, one per batch."""
        with make_collector(SEED) as collector:
            for version, batch in enumerate(collector):
                assert bool((batch[VERSION] == version).all()), f"version {version} acted; stamped {batch[VERSION]}"
                collector.increment_version()

    def test_frames_are_those_of_stepping_by_hand(
        self, make_collector: MakeCollector, env_by_hand: Callable[[int], gym.Env[Any, Any]]
    ) -> None:
        """The same actions in an env of one's own, seeded alike, give the same frames."""
        if not (self.by_hand and self.reproducible):
            pytest.skip("there is no single env to compare with")
        for i, row in enumerate(_collected(make_collector)):
            env = env_by_hand(i)
            env.reset()
            check_by_hand(env, derive(SEED, "env", i), row)
            env.close()


class CountedCollectionContract(CollectionContract):
    """`CollectionContract` for counting envs: no frame is lost, repeated or mixed.

    Fixtures to override: `counting`, or `make_collector` for another place than this process.
    """

    @pytest.fixture
    def counting(self) -> Counting:
        """What the envs are like."""
        return Counting()

    @pytest.fixture
    def make_env(self, counting: Counting) -> MakeEnv:
        """Builds env 0, 1, 2, … and begins anew with each collector, since each has as many."""
        return _Rounds(counting, self.n_envs or 1)

    @pytest.fixture
    def env_by_hand(self, counting: Counting) -> Callable[[int], gym.Env[Any, Any]]:
        """A function that builds env i."""
        return lambda i: CountingEnv(i, counting)

    def test_no_frame_is_lost_repeated_or_mixed(self, make_collector: MakeCollector, counting: Counting) -> None:
        """Every row is the step after the one before it, of its own env, with its own action."""
        check_counted(_collected(make_collector), counting)


class _Rounds:
    """Envs numbered 0 to n − 1, again and again."""

    def __init__(self, counting: Counting, n_envs: int) -> None:
        self._counting, self._n_envs = counting, n_envs
        self._envs = CountingEnvs(counting)

    def __call__(self) -> CountingEnv | None:
        if len(self._envs.made) == self._n_envs:
            self._envs = CountingEnvs(self._counting)
        return self._envs()


def _collected(make_collector: MakeCollector) -> TensorDictBase:
    with make_collector(SEED) as collector:
        return joined(list(collector))


def _num_envs(make_env: MakeEnv) -> int:
    env = make_env()
    env.close()
    return int(getattr(env, "num_envs", 1))


def _spoilt(batch: TensorDictBase) -> TensorDictBase:
    """The batch with ones in all entries, but for the version, which may be an expanded scalar."""
    for key, value in batch.items(include_nested=True, leaves_only=True):
        if key != VERSION:
            value.fill_(1)
    return batch
