"""Tests for users: envs whose data identify themselves, faults as data, and a contract suite for pytest.

The contract suite is a class of tests with fixtures to override. To test collecting from your env, put this in a test
file (pytest must be installed):

```python
import pytest

from swath.testing import CollectionContract


class TestCollectingFromMyEnv(CollectionContract):
    n_envs = 4  # stepped together

    @pytest.fixture
    def make_env(self):
        return MyEnv
```

It checks that batches have the promised size, that steps follow each other without a gap, that observations at the
ends of episodes are the true ones, that ids identify episodes exactly, that batches belong to their receiver, that the
same seed yields the same data, and that the frames equal a plain loop over the env. Class attributes switch checks off:
an env that ignores its seed sets `reproducible = False`. With `n_workers = 2` the checks apply to two worker processes,
which must also yield the same data as workers in this thread.

The envs here count: `CountingEnvs` builds envs whose data reveal a lost, repeated or mixed-up frame, and
`check_counted` and `check_lives` find it. A `Fault` describes a failure of an env, and `FaultyEnv` adds faults to any
env. `Lives` scripts the lives of workers in other processes, as data: deaths, hangs, and lives without a
fault.
"""

from __future__ import annotations

from swath.lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
