"""What tests of collectors with worker processes share."""

import pytest

from swath.collectors import assembly
from swath.collectors.assembly import PRELOADED
from swath.workers.create import backend
from swath.workers.process.backend import PRELOAD, ProcessBackend
from toys import Gate, job, result


@pytest.fixture(scope="session")
def fork_server():
    """Keeps the process alive that forks workers; it has imported what they need, so that collectors are up at once."""
    backend = ProcessBackend((*PRELOAD, *PRELOADED))
    first = backend.spawn(job())
    result(backend, first.ready)
    backend.kill(first)
    yield backend
    backend.close()


@pytest.fixture
def gate(tmp_path):
    """Holds up who goes through it until the test opens it, or ends."""
    gate = Gate.at(tmp_path / "gate")
    yield gate
    gate.open()


@pytest.fixture
def off_ray(monkeypatch):
    """Lets `RayCollector` have its workers in another place, where they are up at once; call it with the place."""

    def unseen(size):
        raise TypeError(f"workers on Ray cannot watch {size} numbers")

    def place(name="inline"):
        def there(asked, *, preload=(), bare=False, options=None):
            made = backend(name if asked == "ray" else asked, preload=preload, bare=bare)
            if asked == "ray":
                monkeypatch.setattr(made, "watched", unseen)
            return made

        monkeypatch.setattr(assembly, "backend", there)

    return place
