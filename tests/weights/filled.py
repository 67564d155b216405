"""A model for tests of weights."""

import torch
from torch import nn


class Filled(nn.Module):
    """Weights of several kinds and extra state, all of one value, so that a mix of two is noticed."""

    def __init__(self, value=0.0, width=3, dtype=torch.float32):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width)).to(dtype)
        self.brief = self.tied = nn.Parameter(torch.empty(3, 1, dtype=torch.bfloat16))
        self.register_buffer("empty", torch.empty(0))
        self.note = Noted()
        self.fill(value)

    def fill(self, value):
        with torch.no_grad():
            for tensor in (*self.parameters(), *self.buffers()):
                tensor.fill_(value)
        self.note.text = str(value)

    @property
    def values(self):
        tensors = (*self.parameters(), *self.buffers())
        return {float(self.note.text), *(value for tensor in tensors for value in tensor.detach().unique().tolist())}


class Noted(nn.Module):
    """A module with extra state alone."""

    def get_extra_state(self):
        return {"text": self.text}

    def set_extra_state(self, state):
        self.text = state["text"]
