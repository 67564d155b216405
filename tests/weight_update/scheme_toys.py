"""Models for tests of schemes, and readers in other processes."""

from __future__ import annotations

import pickle
import subprocess
import sys

import torch
from torch import nn


class Filled(nn.Module):
    """A parameter and a buffer of one value, and a part with extra state of its own."""

    def __init__(self, value=0.0, width=3):
        super().__init__()
        self.body = nn.Linear(width, 1)
        self.register_buffer("seen", torch.zeros(2))
        self.note = Noted(value)
        self.fill(value)

    def fill(self, value):
        with torch.no_grad():
            for tensor in (*self.parameters(), *self.buffers()):
                tensor.fill_(value)
        self.note.text = str(value)
        return self

    @property
    def values(self):
        tensors = (*self.parameters(), *self.buffers())
        return {value for tensor in tensors for value in tensor.detach().reshape(-1).tolist()}


class Noted(nn.Module):
    """Extra state, and nothing else."""

    def __init__(self, value=0.0):
        super().__init__()
        self.text = str(value)

    def get_extra_state(self):
        return {"text": self.text}

    def set_extra_state(self, state):
        self.text = state["text"]


class Plain(nn.Linear):
    """Weights without extra state."""

    def __init__(self, value=0.0, width=3):
        super().__init__(width, 1)
        self.fill(value)

    def fill(self, value):
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.fill_(value)
        return self

    @property
    def values(self):
        return {value for tensor in self.parameters() for value in tensor.detach().reshape(-1).tolist()}


def copied(scheme):
    """What arrives where a scheme is sent."""
    return pickle.loads(pickle.dumps(scheme))


def reader_of(scheme, model, worker_idx=None, model_id="policy"):
    """A receiving copy of a sender."""
    made = copied(scheme)
    made.init_on_receiver(model_id=model_id, model=model, worker_idx=worker_idx)
    return made


READS = """
import pickle, sys
from torch import nn
scheme = pickle.loads(bytes.fromhex(sys.stdin.read()))
model = nn.Linear(3, 1)
scheme.init_on_receiver(model_id="policy", model=model)
try:
    weights = scheme.receive()
except RuntimeError as error:
    print("RuntimeError", error)
else:
    print(None if weights is None else set(model.weight.detach().reshape(-1).tolist()))
"""


def read_elsewhere(pickled):
    """What another process receives through a pickled scheme."""
    child = subprocess.run(
        [sys.executable, "-c", READS], input=pickled.hex(), capture_output=True, text=True, check=False, timeout=100
    )
    assert child.returncode == 0, child.stderr
    return child.stdout.strip()
