"""Collectors deliver batches of exactly the promised size, each frame once, stamped with the weights that acted.

    the same for every place    test_collection_contract, test_fleet_laws
    one worker in this process  test_batches, test_episode_*, test_hooks_*, test_seeding, test_state, …
    many workers                test_fleet_*; those on the cluster that tests share have Ray in their names
    weights                     test_weights, test_weight_*, test_automatic_updates, test_fleet_weights, …
    what goes wrong             test_bad_input, test_many_options, test_faults, test_fleet_faults

Here are places for workers of `RayCollector` that are no actors.
"""

import pytest
from collector_toys import AT_ONCE, WIDE, numbered

from swath import RayCollector
from swath.collectors import service
from swath.workers.create import backend


@pytest.fixture
def off_ray(monkeypatch):
    """Return a function that gives `RayCollector` workers in another place, where they start at once."""

    def place(name="inline"):
        def create(kind, *, preload=(), bare=False, options=None):
            places = backend(name if kind == "ray" else kind, preload=preload, bare=bare)
            if kind == "ray":
                monkeypatch.setattr(places, "shared_counters", lambda size: None)
            return places

        monkeypatch.setattr(service, "backend", create)

    return place


@pytest.fixture
def build(off_ray):
    """Return a function that builds RayCollectors of two workers that are no actors, with two envs each."""
    collectors = []

    def build(place="inline", *, sources=None, policy=None, **options):
        off_ray(place)
        options = {"sync": True, "envs_per_worker": 2, "restarts": AT_ONCE, **options}
        options.setdefault("frames_per_batch", 24 if options["sync"] else 12)
        collectors.append(RayCollector(numbered(counting=WIDE) if sources is None else sources, policy, **options))
        return collectors[-1]

    yield build
    for collector in collectors:
        collector.shutdown()
