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

from typing import TYPE_CHECKING

from swath.lazy import lazy

if TYPE_CHECKING:
    from swath.testing.checks import by_life as by_life
    from swath.testing.checks import by_worker as by_worker
    from swath.testing.checks import check_by_hand as check_by_hand
    from swath.testing.checks import check_continuity as check_continuity
    from swath.testing.checks import check_counted as check_counted
    from swath.testing.checks import check_flags as check_flags
    from swath.testing.checks import check_ids as check_ids
    from swath.testing.checks import check_lives as check_lives
    from swath.testing.checks import joined as joined
    from swath.testing.checks import marks_of as marks_of
    from swath.testing.checks import same_data as same_data
    from swath.testing.collection_contract import CollectionContract as CollectionContract
    from swath.testing.counting import ENDLESS as ENDLESS
    from swath.testing.counting import OBSERVATIONS as OBSERVATIONS
    from swath.testing.counting import Counting as Counting
    from swath.testing.counting import CountingEnv as CountingEnv
    from swath.testing.counting import CountingEnvs as CountingEnvs
    from swath.testing.counting import EpisodePlan as EpisodePlan
    from swath.testing.counting import Lives as Lives
    from swath.testing.counting import RandomScript as RandomScript
    from swath.testing.counting import Script as Script
    from swath.testing.counting import reward_of as reward_of
    from swath.testing.faults import EnvBroke as EnvBroke
    from swath.testing.faults import Fault as Fault
    from swath.testing.faults import FaultyEnv as FaultyEnv
    from swath.testing.faults import Mark as Mark

_NAMES = {
    ".checks": "by_life by_worker check_by_hand check_continuity check_counted check_flags check_ids check_lives "
    "joined marks_of same_data",
    ".collection_contract": "CollectionContract",
    ".counting": "ENDLESS OBSERVATIONS Counting CountingEnv CountingEnvs EpisodePlan Lives RandomScript Script "
    "reward_of",
    ".faults": "EnvBroke Fault FaultyEnv Mark",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = sorted(_MODULES)  # noqa: PLE0605  type checkers read the imports above

if not TYPE_CHECKING:  # the contract needs pytest, the rest does not
    __getattr__, __dir__ = lazy(__name__, _MODULES)
