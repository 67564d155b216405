"""What every place for workers keeps, as a pytest class: derive from it and say how to make the backend.

```python
import pytest

from swath.testing import BackendContract


class TestMyBackend(BackendContract):
    @pytest.fixture
    def make_backend(self):
        return MyBackend
```
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from swath.testing.backend.asking import visiting
from swath.testing.backend.calls import Calls
from swath.testing.backend.data import Data
from swath.testing.backend.ends import Ends
from swath.testing.backend.processes import OwnProcesses
from swath.testing.backend.waiting import Waiting
from swath.testing.toy_worker import Gate
from swath.workers.base import Backend


class BackendContract(Calls, Data, Ends, Waiting, OwnProcesses):
    """Tests of a backend: order, exceptions, data, ends, waiting, processes.

    Fixtures to override: `make_backend`, which gives a function that makes a backend, each time a new one.

    Attributes:
        concurrent: whether workers go on while nobody waits.
        own_process: whether each worker has a process of its own on this machine.
        watches: whether workers see memory of this process.
        sees_idle_deaths: whether `Handle.ended` is settled without a call.
        tells_exit_codes: whether `WorkerLost.exit` is a process's exit code, not words.
        lingers_s: for how many seconds a process may go on when its tickets are settled.
    """

    @pytest.fixture
    def make_backend(self) -> Callable[[], Backend]:
        """Override: a function that makes a backend."""
        pytest.fail("override the fixture make_backend with a function that makes the backend")

    @pytest.fixture
    def backend(self, make_backend: Callable[[], Backend], request: pytest.FixtureRequest) -> Iterator[Backend]:
        """One for all tests of the class, which may be slow to make; workers are killed after each test."""
        with visiting(make_backend, request.node) as visit:
            yield visit

    @pytest.fixture
    def gate(self, tmp_path: Path) -> Iterator[Gate]:
        """A closed gate, open afterwards."""
        gate = Gate.at(tmp_path / "gate")
        yield gate
        gate.open()
