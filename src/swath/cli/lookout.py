"""Where an env or a policy hangs: said by a thread that looks on, which costs those at work nothing.

```
 every second: the stacks of all threads ─▶ in each, what Swath has called ─▶ is it the same call as 30 looks ago?
     env, policy ─▶ one line that says where it is; after Ctrl-C or SIGTERM the main thread is interrupted as well
     workers ─────▶ one line that says which ones have not answered
```

Looks are counted, not seconds: a process that was suspended has not hung.
"""

from __future__ import annotations

import signal
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from swath.cli.mistake import look_alone
from swath.frames import Frame, homes_of, place
from swath.workers.renewed import renewed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from swath.cli.stop import StopRequest
    from swath.collectors import Collector

LOOKS = 30
"""How many of them find the same call before that is told."""
EVERY_S = 1.0
_TIME = f"{LOOKS * EVERY_S:g} s"
_OURS, _LOOP, _WORKERS = (str(Path(__file__).parents[1] / part / "_")[:-1] for part in ("", "rollout", "workers"))
"""Swath, where it calls envs and policies, and where it waits for workers."""


@dataclass
class _Call:
    """What Swath has called in one thread.

    Attributes:
        stack: from the innermost frame to that of Swath's which called it.
        looks: how many have found it.
    """

    stack: list[FrameType]
    looks: int = 1

    @property
    def is_of_env(self) -> bool:
        """Whether an env or a policy was called, or what builds one."""
        return self.stack[-1].f_code.co_filename.startswith(_LOOP)

    @property
    def is_of_workers(self) -> bool:
        """Whether answers of workers are waited for."""
        return self.stack[-1].f_code.co_filename.startswith(_WORKERS)

    @property
    def called(self) -> FrameType:
        """The frame that stays as long as the call: those who wait look round at times, and wait again."""
        return self.stack[-2:][0] if self.is_of_env else self.stack[-1]

    def frames(self) -> list[Frame]:
        """As they are told."""
        return [Frame(one.f_code.co_filename, str(one.f_lineno), one.f_code.co_name) for one in self.stack]


def _complain(text: str) -> None:
    print("swath:", text, file=sys.stderr, flush=True)


class Lookout:
    """Says, once for each line, where an env hangs. To be used in a `with` block of the main thread.

    Args:
        env: as it is named.
        say: shows a line, in a thread of the lookout's.
    """

    def __init__(self, env: str, say: Callable[[str], None] = _complain) -> None:
        self._env, self._say = env, say
        self._stop: StopRequest | None = None
        self._collector: Collector | None = None
        self._calls: dict[int, _Call] = {}
        self._told: set[str] = set()
        self._main = threading.get_ident()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look_on, name="swath lookout", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._calls.clear()

    def know(self, collector: Collector) -> None:
        """Its workers are named when they do not answer."""
        self._collector = collector

    def heed(self, stop: StopRequest) -> None:
        """A stop that is asked for here is to come about also where something hangs."""
        self._stop = stop

    def look(self) -> None:
        """Look at all threads once."""
        self._calls = {thread: self._followed(thread, call) for thread, call in self._found()}
        still = {thread: call for thread, call in self._calls.items() if call.looks >= LOOKS}
        hung = [call for call in still.values() if call.is_of_env]
        for call in hung:
            self._tell_where(call)
        main = still.get(self._main)
        if main is not None and hung:
            self._insist()
        elif main is not None and main.is_of_workers:
            self._tell("workers", self._who_is_late())

    def _look_on(self) -> None:
        while not self._over.wait(EVERY_S):
            self.look()

    def _found(self) -> Iterator[tuple[int, _Call]]:
        """What was called in all threads but this one."""
        for thread, frame in sys._current_frames().items():  # noqa: SLF001  the one way to see them at work
            stack = _down_to_ours(frame)
            if stack and thread != threading.get_ident():
                yield thread, _Call(stack)

    def _followed(self, thread: int, call: _Call) -> _Call:
        before = self._calls.get(thread)
        if before is not None and call.called is before.called:
            call.looks = before.looks + 1
        return call

    def _tell_where(self, call: _Call) -> None:
        at = place(call.frames(), homes_of(self._env))
        if at is not None and call.looks == LOOKS:  # one that never rests is elsewhere at each look
            self._tell(at.at, f"{at.called} has not come back in {_TIME}: it is in {at.function}, {at.at}")

    def _who_is_late(self) -> str:
        facts = {} if self._collector is None else self._collector.stats("per_worker")
        busy = (name.removesuffix("/busy") for name, value in facts.items() if name.endswith("/busy") and value)
        late = [name.replace("_", " ") for name in busy]
        return f"no worker has answered in {_TIME}" + (f": waiting for {', '.join(late)}" if late else "")

    def _tell(self, what: str, text: str) -> None:
        if what not in self._told:
            self._told.add(what)
            self._say(f"{text}; {look_alone(self._env)}")

    def _insist(self) -> None:
        """Interrupt the main thread, also where it waits; the request has put the usual handlers back."""
        if self._stop is not None and self._stop.requested and hasattr(signal, "pthread_kill"):
            signal.pthread_kill(self._main, self._stop.requested)


def _down_to_ours(frame: FrameType | None) -> list[FrameType]:
    """From the innermost frame of a thread to the first that is Swath's; none, if there is no such.

    What a wait calls that is renewed every second is passed over: it is another call each time.
    """
    stack = []
    while frame is not None:
        stack.append(frame)
        frame = frame.f_back
    waits = [depth for depth, one in enumerate(stack) if one.f_code is renewed.__code__]
    least = waits[-1] + 1 if waits else 0
    ours = (depth for depth in range(least, len(stack)) if stack[depth].f_code.co_filename.startswith(_OURS))
    return stack[: next(ours, -1) + 1]
