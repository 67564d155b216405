"""What is built and run in workers, in a module that imports torch, as training scripts do."""

import json
import os
import sys
from pathlib import Path

import gymnasium as gym
import torch

SEEN = "SWATH_TEST_SEEN"


def note_modules():
    """Write down which modules of interest have been imported; how a user's `init_fn` looks at its process."""
    heavy = {"torch", "tensordict", "gymnasium", "torchrl", "torch_first", "numpy"}
    Path(os.environ["SWATH_TEST_SEEN"]).write_text(json.dumps(sorted(heavy & set(sys.modules))))
    os.environ["SWATH_TEST_SEEN"] += ".more"


def fail():
    """Raise."""
    raise LookupError("no such licence")


def env():
    """Built after `note_modules`."""
    assert os.environ[SEEN].endswith(".more")
    return gym.make("CartPole-v1")


def policy():
    """Likewise."""
    assert os.environ[SEEN].endswith(".more")
    return lambda observation: torch.ones(observation.shape[:-1], dtype=torch.int64)
