"""Ray's cluster and store, options of actors, references in values, public methods of actors."""

import os
import socket
import subprocess
import sys

import numpy as np
import pytest

import ray_cluster
from swath.errors import NoEffectWarning, PayloadLost, SwathError, WorkerLost
from swath.workers.base import Job
from swath.workers.create import backend as backend_called
from swath.workers.tickets import Name
from toys import DEADLINE_S, ToyWorker, ask, becomes, error_of, exists, job, result, result_of_end

MEGABYTE = 2**20
SIZE = 8 * MEGABYTE


@pytest.fixture(scope="module")
def ray():
    return ray_cluster.up()


@pytest.fixture(scope="module")
def backend(ray):
    from swath.workers.ray.backend import RayBackend

    backend = RayBackend()
    yield backend
    backend.close()


@pytest.fixture(scope="module")
def worker(backend):
    """Return a worker for tests that do not change it; a new one takes seconds to import torch."""
    worker = backend.spawn(Job(ToyWorker, Name(0, 0), public=("add", "echo")))
    result(backend, worker.ready)
    return worker


@pytest.fixture
def stored(ray):
    """Return a function that counts the bytes in Ray's store, which Ray updates now and then; 0 at first."""

    def stored():
        return ray.cluster_resources()["object_store_memory"] - ray.available_resources()["object_store_memory"]

    assert becomes(lambda: stored() < MEGABYTE)
    return stored


# The cluster


def test_without_ray_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"swath\[ray\]"):
        backend_called("ray")


def test_a_client_of_a_cluster_is_refused(ray, monkeypatch):
    monkeypatch.setattr("ray.util.client.ray.is_connected", lambda: True)
    with pytest.raises(ValueError, match="ray job submit"):
        backend_called("ray")


def test_a_missing_cluster_is_an_error_at_once(ray, monkeypatch):
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    with socket.socket() as reserved:  # without a listener
        reserved.bind(("127.0.0.1", 0))
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{reserved.getsockname()[1]}")
        with pytest.raises(ConnectionError, match="unset RAY_ADDRESS"):
            backend_called("ray")


def test_a_configuration_has_no_effect_where_ray_is_up(ray):
    with pytest.warns(NoEffectWarning, match="ray_init_config"):
        backend_called("ray", options={"init_config": {"num_cpus": 1}}).close()


def test_default_resources_depend_on_the_cluster(backend):
    assert backend.default_resources(1) == {"num_cpus": 1, "memory": 2 * 2**30}
    assert backend.default_resources(10_000_000) == {"num_cpus": 1}


@pytest.mark.parametrize(
    ("options", "needed"),
    [
        ({"threads": 1000}, "num_cpus=1000"),
        ({"resources": {"num_cpus": 1000, "memory": 2**30}}, "num_cpus=1000, memory=1.0 GiB"),
    ],
    ids=["a CPU per thread", "resources"],
)
def test_a_worker_without_room_names_its_resources_and_can_be_killed(backend, options, needed):
    worker = backend.spawn(Job(ToyWorker, Name(0, 0), **options))
    words, free = backend.describe_resources(worker)
    assert words.startswith(needed)
    assert "of 64 CPU" in free
    assert not worker.ready.done
    backend.kill(worker)
    assert isinstance(error_of(backend, worker.ready), WorkerLost)
    assert "was killed" in str(result_of_end(backend, worker))


@pytest.mark.parametrize(
    ("option", "value"),
    [("max_restarts", 3), ("max_concurrency", 4), ("lifetime", "detached"), ("object_store_memory", 2**26)],
)
def test_options_that_would_take_the_life_of_a_worker_out_of_our_hands_are_refused(backend, option, value):
    with pytest.raises(ValueError, match=f"{option}={value!r}"):
        backend.spawn(Job(ToyWorker, Name(0, 0), resources={option: value}))


def test_options_that_ray_does_not_know_are_the_answer_to_ready(backend):
    worker = backend.spawn(Job(ToyWorker, Name(0, 0), resources={"num_cpu": 1}))
    with pytest.raises(ValueError, match="num_cpu"):
        result(backend, worker.ready)
    assert "num_cpu" in str(result_of_end(backend, worker))


# Values


def test_references_travel_wherever_in_a_value_they_are(ray, backend, worker):
    reference = ray.put(np.arange(4))
    assert ask(backend, worker, "run", lambda value: total(value["deep"][0]), {"deep": [reference]}) == 6
    assert ask(backend, worker, "run", lambda: total(reference)) == 6
    assert ray.get(ask(backend, worker, "run", put_there)) == 5


def total(reference):
    import ray

    return int(ray.get(reference).sum())


def put_there():
    import ray

    return ray.put(5)


def test_however_many_values_are_shared_the_store_holds_those_in_use(backend, worker, stored, gate):
    backend.call(worker, "wait_at", gate)
    gate.await_arrival()
    shared = backend.share({"array": np.ones(SIZE, np.uint8)})
    in_flight = backend.call(worker, "read", shared)
    for _ in range(100):
        shared = backend.share({"array": np.ones(SIZE, np.uint8)})
    assert becomes(lambda: 2 * SIZE <= stored() < 2.5 * SIZE)
    gate.open()
    assert result(backend, in_flight) == (SIZE, False)
    assert becomes(lambda: SIZE <= stored() < 1.5 * SIZE)
    del shared
    assert becomes(lambda: stored() < MEGABYTE)


def test_a_parcel_is_in_the_store_until_it_is_closed_and_its_views_are_gone(backend, worker, stored):
    ask(backend, worker, "parcel", 0, SIZE).close()  # a large one: the next body has its own reference
    parcel = ask(backend, worker, "parcel", 1, SIZE)
    assert becomes(lambda: stored() > SIZE)
    view = parcel.open()["array"][:5]
    parcel.close()
    assert view.tolist() == [1] * 5
    del view
    assert becomes(lambda: stored() < MEGABYTE)


def test_a_parcel_that_ray_cannot_find_says_so(ray):
    from swath.workers.ray.values import fetch_body

    @ray.remote
    class Owner:
        pass

    owner = Owner.remote()
    ray.kill(owner)
    with pytest.raises(PayloadLost, match="Ray lost"):
        fetch_body(owner.__ray_ready__.remote(), lambda: None)


# Actors


def test_others_call_public_methods_of_the_actor(ray, backend, worker):
    actor = worker.actor
    assert ray.get(actor.add.remote(3), timeout=DEADLINE_S) == 3
    assert ray.get(actor.add.remote(number=-3), timeout=DEADLINE_S) == 0
    with pytest.raises(ray.exceptions.RayTaskError, match="unsupported operand"):
        ray.get(actor.add.remote("a"), timeout=DEADLINE_S)
    assert not hasattr(actor, "keep")
    assert not hasattr(type(actor), "__len__")
    assert bool(actor)


# Ray itself


def test_everything_says_so_when_ray_is_gone(ray, backend, monkeypatch):
    worker = backend.spawn(job())
    parcel = ask(backend, worker, "parcel", 1, SIZE)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    assert backend.wait([worker.ended], DEADLINE_S) == [worker.ended]
    unborn = backend.spawn(job())
    for ticket in (worker.ended, backend.call(worker, "add", 1), unborn.ready, unborn.ended):
        assert isinstance(error_of(backend, ticket), WorkerLost)
        assert "Ray was shut down" in str(error_of(backend, ticket))
    with pytest.raises(PayloadLost, match="Ray was shut down"):
        parcel.open()
    with pytest.raises(SwathError, match="Ray was shut down"):
        backend.share(np.ones(SIZE))
    assert backend.describe_resources(unborn)[1] == "nothing: Ray was shut down in this process"
    monkeypatch.undo()
    ray.kill(worker.actor)


DRIVER = """
import os, sys, ray
from toys import ToyWorker
from swath.workers.base import Job
from swath.workers.create import backend as backend_called
from swath.workers.ray.backend import RayBackend
from swath.workers.tickets import Name

backend = RayBackend({"address": sys.argv[1], "log_to_driver": False})
first = backend.spawn(Job(ToyWorker, Name(0, 0)))
backend.wait([first.ready])
ray.shutdown()
backend.wait([first.ended])
print(first.ended.outcome.exception, flush=True)
backend = RayBackend({"address": sys.argv[1], "log_to_driver": False})
second = backend.spawn(Job(ToyWorker, Name(0, 0)))
pid = backend.call(second, "pid")
backend.wait([pid])
print(pid.value, flush=True)
sys.stdin.read()
"""


def test_workers_end_when_their_driver_shuts_ray_down_and_when_it_is_killed(ray):
    address = ray.get_runtime_context().gcs_address
    command = [sys.executable, "-c", DRIVER, address]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    surroundings = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, env=surroundings, **pipes) as driver:
        try:
            assert "worker 0 (life 0)" in driver.stdout.readline()
            pid = int(driver.stdout.readline())
            assert exists(pid)
        finally:
            driver.kill()
        assert not exists(pid, DEADLINE_S)
