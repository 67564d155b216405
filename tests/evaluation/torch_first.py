"""An env, a policy and an `init_fn`, in a module that imports torch, as training scripts do."""

import json
import os
import sys
from pathlib import Path

import gymnasium as gym
import torch

REPORT = "SWATH_TEST_REPORT"


def note_modules():
    """Write the names of heavy modules that are imported into a file."""
    heavy = {"torch", "tensordict", "gymnasium", "torchrl", "torch_first", "numpy"}
    Path(os.environ["SWATH_TEST_REPORT"]).write_text(json.dumps(sorted(heavy & set(sys.modules))))
    os.environ["SWATH_TEST_REPORT"] += ".more"


def fail():
    """Raise."""
    raise LookupError("licence expired")


def env():
    """Make an env, after `note_modules`."""
    assert os.environ[REPORT].endswith(".more")
    return gym.make("CartPole-v1")


def policy():
    """Make a policy, after `note_modules`."""
    assert os.environ[REPORT].endswith(".more")
    return lambda observation: torch.ones(observation.shape[:-1], dtype=torch.int64)
