"""Models for tests of schemes."""

from __future__ import annotations

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
