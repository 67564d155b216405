"""What tests hold in actors of Ray."""

import os


class Fragments:
    """A replay buffer: a list of what it was extended with."""

    def __init__(self):
        self.written = []

    def extend(self, td):
        self.written.append(td)

    def sample(self):
        return self.written[0]

    def empty(self):
        self.written = []

    def pid(self):
        return os.getpid()

    def __len__(self):
        return len(self.written)

    def __iter__(self):
        return iter(self.written)
