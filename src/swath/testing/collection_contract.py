"""The contract of every collector as a pytest class: derive from it, and override a fixture for the env or collector.

```python
import pytest

from swath.testing import CollectionContract


class TestCollectingFromMyEnv(CollectionContract):
    @pytest.fixture
    def make_env(self):
        return MyEnv


class TestCollectingInProcesses(TestCollectingFromMyEnv):
    n_workers = 2
```
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from tensordict import TensorDictBase

from swath.collectors.collector import Collector
from swath.collectors.multi import MultiCollector
from swath.keys import DONE, NEXT, VERSION
from swath.seeds import derive
from swath.testing import checks

MakeCollector = Callable[[int | None], Any]
MakeEnv = Callable[..., Any]
SEED = 1234
_RUNS: pytest.StashKey[dict[str, list[TensorDictBase]]] = pytest.StashKey()


class CollectionContract:
    """Tests of the batches of a collector, for any env and any place of workers.

    Fixtures to override: `make_env`, a function without arguments that builds the env (or vector env); `policy`, the
    policy; or `make_collector`, a function of a seed that builds a collector which ends after `n_batches` batches of
    each worker.

    Attributes:
        n_envs: number of envs stepped together; `None` for a single env without env dimension, or a vector env.
        env_processes: number of processes that the envs of each worker live in; `None` for the worker's.
        n_steps: T, the steps of a batch; episodes should end within the run.
        n_batches: batches of a run.
        n_workers: number of workers; `None` for a `Collector` in this process.
        sync: whether every batch has a share of each worker.
        backend: place of the workers; `"ray"` is the running cluster, or a new one on this machine.
        reproducible: whether all data follow from the seed. False for envs that cannot be seeded.
        by_hand: whether to compare frames with a plain loop over such an env; needs single envs, reproducible.
    """

    n_envs: int | None = 3
    env_processes: int | None = None
    n_steps = 12
    n_batches = 3
    n_workers: int | None = None
    sync = True
    backend = "process"
    reproducible = True
    by_hand = True

    @pytest.fixture
    def make_env(self) -> MakeEnv:
        """Override: a function that builds the env."""
        pytest.fail("override the fixture make_env with a function that builds the env")

    @pytest.fixture
    def policy(self) -> Any:
        """Return the policy; `None` for random actions."""
        return None

    @pytest.fixture
    def sources(self, make_env: MakeEnv) -> list[MakeEnv]:
        """Return a function for each worker that builds its env."""
        return [make_env] * (self.n_workers or 1)

    @pytest.fixture
    def make_collector(self, sources: list[MakeEnv], policy: Any) -> MakeCollector:
        """Return a function that builds the collector, with a seed or `None`."""
        return lambda seed: self._collector(sources, policy, seed, self.backend)

    @pytest.fixture
    def collected(self, make_collector: MakeCollector, request: pytest.FixtureRequest) -> list[TensorDictBase]:
        """Return the data of a run, `[B, T]` of each worker, which all tests of a class read."""
        runs: dict[str, list[TensorDictBase]] = request.node.getparent(pytest.Class).stash.setdefault(_RUNS, {})
        case = request.node.callspec.id if hasattr(request.node, "callspec") else ""
        if case not in runs:
            runs[case] = _run(make_collector)
        return runs[case]

    @pytest.fixture
    def env_by_hand(self, make_env: MakeEnv) -> Callable[[int], gym.Env[Any, Any]]:
        """Return a function that builds the collector's env number i, for a plain loop."""
        return lambda _: make_env()

    def _collector(self, sources: list[MakeEnv], policy: Any, seed: int | None, backend: str) -> Any:
        size, n_workers = self.n_envs or 1, self.n_workers or 1
        if self.n_envs is None:
            with closing(sources[0]()) as env:
                size = getattr(env, "num_envs", 1)
        share = self.n_steps * size
        options: dict[str, Any] = {
            "envs_per_worker": self.n_envs,
            "env_processes": self.env_processes,
            "seed": seed,
            "frames_per_batch": share * (n_workers if self.sync else 1),
            "total_frames": share * n_workers * self.n_batches,
        }
        if self.n_workers is None:
            return Collector(sources[0], policy, **options)
        if backend == "ray":
            from swath.collectors.ray_collector import RayCollector  # noqa: PLC0415  Ray is optional

            return RayCollector(sources, policy, sync=self.sync, **options)
        return MultiCollector(sources, policy, sync=self.sync, backend=backend, **options)

    def test_batches_have_the_promised_size(self, make_collector: MakeCollector) -> None:
        """Check shapes, the name of the last dimension, and the counter of valid frames."""
        with make_collector(SEED) as collector:
            batches = list(collector)
            frames = sum(int(checks.valid(checks.joined([batch])).sum()) for batch in batches)
            assert len({batch.shape for batch in batches}) == 1, f"shapes differ: {[b.shape for b in batches]}"
            assert all(batch.names[-1] == "time" for batch in batches), "the last dimension is not called time"
            assert collector.stats()["frames"] == frames, f"{collector.stats()['frames']} counted, {frames} delivered"
            assert batches[0].numel() == collector.requested_frames_per_batch, "a batch is not of the promised size"

    def test_each_step_begins_where_the_last_one_led_to(self, collected: list[TensorDictBase]) -> None:
        """Check continuity, also between batches, unless an episode ended."""
        for td in collected:
            checks.check_continuity(td)

    def test_done_is_terminated_or_truncated(self, collected: list[TensorDictBase]) -> None:
        """Check the flags, and that episodes end."""
        for td in collected:
            checks.check_flags(td)
        assert any(td[NEXT, DONE].any() for td in collected), "no episode ended; let the run be longer"

    def test_ids_are_exact_over_batches(self, collected: list[TensorDictBase]) -> None:
        """Check that ids are one per episode, in order of start, for each worker."""
        for td in collected:
            checks.check_ids(td)

    def test_a_batch_is_its_receivers(self, make_collector: MakeCollector) -> None:
        """Check that batches are never written again, and that overwriting one does not change later ones."""
        with make_collector(SEED) as collector:
            pairs = [(batch, batch.clone()) for batch in collector]
        for batch, copy in pairs:
            checks.same_data(batch, copy)
        if not self.reproducible:
            pytest.skip("needs an undisturbed run to compare with")
        with make_collector(SEED) as collector:
            copies = []
            for batch in collector:
                copies.append(batch.clone())
                for key, value in batch.items(include_nested=True, leaves_only=True):
                    if key != VERSION:  # the version may be an expanded scalar
                        value.fill_(1)
        _same_common_part(checks.by_worker(copies), checks.by_worker([copy for _, copy in pairs]))

    def test_the_same_seed_gives_the_same_data(self, make_collector: MakeCollector) -> None:
        """Check that two runs are equal bit for bit, although the process has drawn random numbers in between."""
        if not self.reproducible:
            pytest.skip("these envs cannot be seeded")
        first = _run(make_collector)
        torch.rand(3), np.random.rand(3)  # noqa: NPY002  the process's own generators must not matter
        _same_common_part(_run(make_collector), first)

    def test_data_are_those_of_workers_in_this_thread(
        self, make_collector: MakeCollector, sources: list[MakeEnv], policy: Any
    ) -> None:
        """Check that data equal those of inline workers bit for bit, with the same seed."""
        if self.n_workers is None or not self.reproducible:
            pytest.skip("is in this thread, or cannot be seeded")
        inline = _run(lambda seed: self._collector(sources, policy, seed, "inline"))
        _same_common_part(_run(make_collector), inline)

    def test_rows_are_stamped_with_the_version_that_acted(self, make_collector: MakeCollector) -> None:
        """Check that versions grow, one per batch; with `sync=False` none is newer than the last published one."""
        with make_collector(SEED) as collector:
            last: dict[Any, int] = {}
            for published, batch in enumerate(collector):
                for life, td in checks.by_life([batch]).items():
                    (version,) = td[VERSION].unique().tolist()
                    expected = version == published if self.sync else last.get(life, 0) <= version <= published
                    assert expected, f"of {life}: version {version} after {last.get(life)}; newest was {published}"
                    last[life] = version
                collector.increment_version()

    def test_frames_are_those_of_stepping_by_hand(
        self, collected: list[TensorDictBase], env_by_hand: Callable[[int], gym.Env[Any, Any]]
    ) -> None:
        """Check that the same actions in an env with the same seed yield the same frames."""
        if not (self.by_hand and self.reproducible):
            pytest.skip("there is no single env to compare with")
        for i, row in enumerate(row for td in collected for row in td):
            env = env_by_hand(i)
            env.reset()
            checks.check_by_hand(env, derive(SEED, "env", i), row)
            env.close()


def _run(make_collector: MakeCollector) -> list[TensorDictBase]:
    """Return the data of a run, `[B, T]` of each worker."""
    with make_collector(SEED) as collector:
        return checks.by_worker(list(collector))


def _same_common_part(first: list[TensorDictBase], second: list[TensorDictBase]) -> None:
    """Check that two runs are equal over their common steps; asynchronous workers differ in their numbers of steps."""
    assert len(first) == len(second), f"{len(first)} workers made frames in one run, {len(second)} in the other"
    for a, b in zip(first, second, strict=True):
        n_steps = min(a.shape[-1], b.shape[-1])
        checks.same_data(a[:, :n_steps], b[:, :n_steps])
