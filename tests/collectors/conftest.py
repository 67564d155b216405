"""Collectors deliver batches of exactly the promised size, each frame once, stamped with the weights that acted.

    the same for every place    test_collection_contract, test_fleet_laws
    one worker in this process  test_batches, test_episode_*, test_hooks_*, test_seeding, test_state, …
    many workers                test_fleet_*; those on the cluster that tests share have Ray in their names
    weights                     test_weights, test_weight_*, test_automatic_updates, test_fleet_weights, …
    what goes wrong             test_bad_input, test_many_options, test_faults, test_fault_table, test_fleet_faults

Here is what tests with worker processes share.
"""

import pytest
from collector_toys import AT_ONCE, WIDE, numbered

from swath import RayCollector
from swath.collectors import assembly
from swath.collectors.assembly import PRELOADED
from swath.workers.create import backend
from swath.workers.process.backend import PRELOAD, ProcessBackend
from toys import job, result


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
def off_ray(monkeypatch):
    """Lets `RayCollector` have its workers in another place, where they are up at once; call it with the place."""

    def unseen(size):
        raise TypeError(f"workers on Ray cannot watch {size} numbers")

    def place(name="inline"):
        def there(asked, *, preload=(), bare=False, options=None):
            made = backend(name if asked == "ray" else asked, preload=preload, bare=bare)
            if asked == "ray":
                monkeypatch.setattr(made, "shared_counters", unseen)
            return made

        monkeypatch.setattr(assembly, "backend", there)

    return place


@pytest.fixture
def build(off_ray):
    """Builds collectors of two actors, which are no actors, with two envs each; they are shut down in the end."""
    made = []

    def build(place="inline", *, sources=None, policy=None, **options):
        off_ray(place)
        options = {"sync": True, "envs_per_worker": 2, "restarts": AT_ONCE, **options}
        options.setdefault("frames_per_batch", 24 if options["sync"] else 12)
        made.append(RayCollector(numbered(counting=WIDE) if sources is None else sources, policy, **options))
        return made[-1]

    yield build
    for collector in made:
        collector.shutdown()
