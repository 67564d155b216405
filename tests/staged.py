"""A staged backend: its events are scheduled in advance, and its clock jumps from event to event."""

import itertools
from heapq import heappop, heappush

from swath.errors import Closed
from swath.owner import Owner
from swath.workers.base import Handle, Job
from swath.workers.outcome import Error, Value
from swath.workers.tickets import Name, Ticket

NEVER = float("inf")


def job(name):
    return Job(object, name)


class SharedHere:
    """A shared value of this process."""

    def __init__(self, value):
        self.open = lambda: value


class StagedHandle(Handle):
    """A worker that answers at scheduled times."""

    def __init__(self, job, stage):
        self._stage = stage
        super().__init__(job)
        self.ready.sent = stage.now

    def settle(self, ticket, outcome):
        if not ticket.done:
            super().settle(ticket, outcome)
            self.idle_since = self._stage.now


class Staged:
    """Workers that answer after `takes[method]` seconds, one call after another.

    Attributes:
        now: seconds.
        starts: by name or worker, the duration of a start in seconds, or its exception; 0 by default.
        crowded: workers that get their place when they are ready.
        unusable_because: why no worker can live here any more, or `None`.
        dies: by name, the seconds after which a life ends.
        takes: by method, or by name and method, the duration of a call in seconds.
        raises: by method, its exception.
        linger: seconds until the tickets of a killed life are settled.
        spawned: the started lives, with the time.
        killed: the killed lives, with the time.
    """

    def __init__(self):
        self.now = self.linger = 0.0
        self.starts, self.dies, self.takes, self.raises = {}, {}, {}, {}
        self.spawned, self.killed, self.calls = [], [], []
        self.crowded, self.unusable_reason, self.abandoned = (), None, ()
        self.closed, self.owner = 0, Owner()
        self._schedule = []
        self._order = itertools.count()
        self._free_at = {}

    def clock(self):
        return self.now

    def at(self, when, event):
        heappush(self._schedule, (when, next(self._order), event))

    def spawn(self, job):
        if self.closed:
            raise Closed("the backend is closed")
        start = self.starts.get(job.name, self.starts.get(job.name.worker, 0.0))
        if isinstance(start, tuple):
            raise start[0]
        handle = StagedHandle(job, self)
        self.spawned.append((job.name, self.now))
        if job.name.worker in self.crowded:
            handle.placed = self._stamped(Ticket(job.name, "place"))
            handle.add_ticket(handle.placed)
            self.at(self.now + start, lambda: handle.settle(handle.placed, Value(None)))
        delay, outcome = (0.0, Error(start)) if isinstance(start, Exception) else (start, Value(None))
        self._free_at[handle] = self.now + delay
        self.at(self.now + delay, lambda: handle.settle(handle.ready, outcome))
        if job.name in self.dies:
            self.at(self.now + self.dies[job.name], lambda: self.end(handle))
        return handle

    def call(self, handle, method, *args):
        ticket = self._stamped(Ticket(handle.name, method))
        self.calls.append((handle.name, method, args))
        if not handle.add_ticket(ticket):
            return ticket
        takes = self.takes.get((handle.name, method), self.takes.get(method, 1.0))
        self._free_at[handle] = max(self.now, self._free_at[handle]) + takes
        outcome = Error(self.raises[method]) if method in self.raises else self.reply(handle, method, args)
        self.at(self._free_at[handle], lambda: handle.settle(ticket, outcome))
        return ticket

    def reply(self, handle, method, args):
        return Value((handle.name, method))

    def share(self, value):
        return SharedHere(value)

    def wait(self, tickets, timeout=None, interrupted=None):
        deadline = NEVER if timeout is None else self.now + timeout
        while not any(ticket.done for ticket in tickets) and not (interrupted is not None and interrupted()):
            when, _, event = self._schedule[0] if self._schedule else (NEVER, 0, None)
            if min(when, deadline) == NEVER:
                raise AssertionError(f"at {self.now} s no event is scheduled that could settle {tickets}")
            if when > deadline:
                self.now = deadline
                break
            heappop(self._schedule)
            self.now = max(self.now, when)
            event()
        return [ticket for ticket in tickets if ticket.done]

    def wake(self):
        """Do nothing: no thread waits."""

    def kill(self, handle):
        if not handle.ended.done:
            self.killed.append((handle.name, self.now))
        if self.linger:
            self.at(self.now + self.linger, lambda: self.end(handle, "was killed"))
        else:
            self.end(handle, "was killed")

    def end(self, handle, how="ended by itself"):
        handle.end(how)

    def describe_resources(self, handle):
        return f"room for {handle.name.worker}", "none"

    def close(self):
        self.closed += 1
        for handle in self._free_at:
            self.end(handle, "was ended")

    def _stamped(self, ticket):
        ticket.sent = self.now
        return ticket


def lives_of(worker, n):
    return [Name(worker, life) for life in range(n)]
