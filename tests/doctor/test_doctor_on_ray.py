import pytest

import ray_cluster

ray = pytest.importorskip("ray")

from ray.exceptions import AuthenticationError  # noqa: E402

from swath.doctor import ray_probe  # noqa: E402
from swath.doctor.ray_facts import ask  # noqa: E402


def test_a_ray_cluster_that_lets_us_in_says_how_large_it_is():
    address = ray_cluster.up().get_runtime_context().gcs_address
    assert ask(address, "") == {"answer": "ok", "said": "1 nodes", "cpus": ray.cluster_resources()["CPU"]}


@pytest.mark.parametrize(
    "cause", [AuthenticationError("no"), RuntimeError("last: ray.exceptions.AuthenticationError: no")]
)
def test_a_token_that_is_refused_is_told_from_a_ray_cluster_that_is_gone(cause, monkeypatch):
    def refuse(**_):
        raise ConnectionError("Failed to connect") from cause

    monkeypatch.setattr(ray, "init", refuse)
    assert ray_probe.probe("a:1") == {"answer": "refused", "said": "Failed to connect"}


def test_a_ray_cluster_that_is_gone_did_not_refuse_anything(monkeypatch):
    def fail(**_):
        raise ConnectionError("Failed to connect")

    monkeypatch.setattr(ray, "init", fail)
    assert ray_probe.probe("a:1") == {"answer": "none", "said": "Failed to connect"}
