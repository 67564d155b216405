"""Shipped tests for users: envs whose data name themselves, faults as data, and contract suites for pytest.

A contract suite is a class of tests with fixtures to override. To test collecting from an env of one's own, put this in
a test file (pytest must be installed):

```python
import pytest

from swath.testing import CollectionContract


class TestCollectingFromMyEnv(CollectionContract):
    n_envs = 4  # how many are stepped together

    @pytest.fixture
    def make_env(self):
        return MyEnv
```

It checks that batches have the promised size, that steps follow each other without a gap, that observations at the
ends of episodes are the true ones, that ids name episodes exactly, that batches are their receiver's, that the same
seed gives the same data, and that the frames are those of stepping the env by hand. What an env cannot keep is switched
off by class attributes: an env that ignores its seed says `reproducible = False`. With `n_workers = 2` the same is
asked of two worker processes, and that they give the same data as workers in this thread.

The envs here count: `CountingEnvs` builds envs in whose data a loss, a repetition or a mix-up of frames shows itself,
and `CountedCollectionContract` looks for these. `Fault` says what goes wrong in which env, `FaultyEnv` does so for envs
of any kind. `Lives` scripts whole lives of workers in other processes, as data: who dies when, who hangs, who is fine
the second time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from swath.lazy import lazy

if TYPE_CHECKING:
    from swath.testing.by_hand import check_by_hand
    from swath.testing.checks import by_life, by_worker, check_continuity, check_flags, check_ids, joined, same_data
    from swath.testing.collection_contract import CollectionContract, CountedCollectionContract
    from swath.testing.counted import check_counted, check_lives, marks_of
    from swath.testing.counting_env import Counting, CountingEnv, CountingEnvs, reward_of
    from swath.testing.counting_vector_env import CountingVectorEnv
    from swath.testing.faults import EnvBroke, Fault
    from swath.testing.faulty_env import FaultyEnv
    from swath.testing.lives import Lives
    from swath.testing.marks import OBSERVATIONS, Mark
    from swath.testing.script import ENDLESS, Drawn, Plan, Script

_HOME = {
    "ENDLESS": ".script",
    "OBSERVATIONS": ".marks",
    "CollectionContract": ".collection_contract",
    "CountedCollectionContract": ".collection_contract",
    "Counting": ".counting_env",
    "CountingEnv": ".counting_env",
    "CountingEnvs": ".counting_env",
    "CountingVectorEnv": ".counting_vector_env",
    "Drawn": ".script",
    "EnvBroke": ".faults",
    "Fault": ".faults",
    "FaultyEnv": ".faulty_env",
    "Lives": ".lives",
    "Mark": ".marks",
    "Plan": ".script",
    "Script": ".script",
    "by_life": ".checks",
    "by_worker": ".checks",
    "check_by_hand": ".by_hand",
    "check_continuity": ".checks",
    "check_counted": ".counted",
    "check_flags": ".checks",
    "check_ids": ".checks",
    "check_lives": ".counted",
    "joined": ".checks",
    "marks_of": ".counted",
    "reward_of": ".counting_env",
    "same_data": ".checks",
}

__all__ = [
    "ENDLESS",
    "OBSERVATIONS",
    "CollectionContract",
    "CountedCollectionContract",
    "Counting",
    "CountingEnv",
    "CountingEnvs",
    "CountingVectorEnv",
    "Drawn",
    "EnvBroke",
    "Fault",
    "FaultyEnv",
    "Lives",
    "Mark",
    "Plan",
    "Script",
    "by_life",
    "by_worker",
    "check_by_hand",
    "check_continuity",
    "check_counted",
    "check_flags",
    "check_ids",
    "check_lives",
    "joined",
    "marks_of",
    "reward_of",
    "same_data",
]


if not TYPE_CHECKING:  # the contracts need pytest, the rest does not
    __getattr__, __dir__ = lazy(__name__, _HOME)
