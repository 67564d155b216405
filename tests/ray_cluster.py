"""The one Ray cluster of a test run, on this machine: started by the first test that needs it, ended with the run."""

import os

import pytest


def up():
    """Start it, unless it is up; the module `ray`."""
    ray = pytest.importorskip("ray", reason="ray is not installed; pip install 'swath[ray]'")
    if not ray.is_initialized():
        os.environ["RAY_AUTH_MODE"] = "disabled"  # else Ray leaves a token in the user's home
        ray.init(num_cpus=16, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    return ray
