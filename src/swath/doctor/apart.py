"""Looks in a process of their own: an env or a policy that hangs, or takes its process with it, ends only that.

command ── look(name) ─▶ process: subject, watchdog ─▶ Looked
   └── it has ended: why? ─▶ a finding; the next look has another process
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import torch

from swath.doctor.finding import Finding, Level, told
from swath.doctor.looks import INTERFACE_LOOK, Looked, broken_off, look
from swath.doctor.output import Output, check_output, flush, print_to
from swath.doctor.stacks import place_in
from swath.doctor.subject import Subject
from swath.doctor.watchdog import Watchdog
from swath.errors import RemoteFailure, WorkerLost
from swath.options import seconds
from swath.workers.base import Backend, Handle, Job
from swath.workers.create import backend
from swath.workers.hosting import described
from swath.workers.tickets import Name

PATIENCE_S = 60.0
"""How long a call of the user's may take unless another time is given: some simulators take half a minute to begin."""
STACKS, OUTPUT = "stacks", "output"
"""Files."""
CALLS = ("reset", "step", "close")
"""Functions of an env's."""
BUILDERS = ("make_env", "_make_by_id")
"""Functions of ours that build an env."""
IMPORTER = "_imported"
"""The one that imports what a command line names."""
EVERY_S = 1.0
"""How often is looked after a process that is at work."""
SPARE_S, START_S = 10.0, 300.0
"""Seconds beyond the patience, and those for a process to begin, after which it is given up from here."""


class Apart:
    """Carries out looks in a process that is replaced when it ends. To be used in a `with` block.

    Args:
        build: makes what is examined, over there; travels by cloudpickle.
        patience: seconds after which a call of the env or the policy has not come back.

    Raises:
        ValueError: `patience` is no number above 0, or this system has no such processes.
    """

    def __init__(self, build: Callable[[], Subject], patience: float = PATIENCE_S) -> None:
        self._build = build
        self._patience = seconds("patience", patience)
        if not self._patience:
            raise ValueError(f"patience={patience!r} must be more than 0 seconds")
        self._stack = ExitStack()
        self._backend: Backend
        self._folder: Path
        self._output: Output
        self._handle: Handle
        self._lives = 0
        self._spawned_at, self._unheard = 0, False

    def __enter__(self) -> Self:
        """Begin the process, and build what is examined.

        Raises:
            TimeoutError: what builds it does not come back.
            Exception: what building it raised.
        """
        with ExitStack() as stack:
            self._folder = Path(stack.enter_context(TemporaryDirectory(prefix="swath-doctor-")))
            self._output = Output(self._folder / OUTPUT)
            self._backend = backend("process", preload=("swath.doctor",))
            stack.callback(self._backend.close)
            self._spawn()
            try:
                self._answer(self._handle.ready)
            except WorkerLost as lost:
                finding = self._ended("the env", lost)
                raise TimeoutError(f"{finding.what}: {finding.value}; {finding.next_move}") from None
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def look(self, name: str) -> Looked:
        """Carry out the look of this name; what ended the process is found, too."""
        try:
            if self._handle.ended.done:
                self._spawn()
                self._answer(self._handle.ready)
            self._output.taken()  # of what builds it
            looked: Looked = self._answer(self._backend.call(self._handle, "look", name))
        except WorkerLost as lost:
            self._backend.wait([self._handle.ended])
            return Looked([self._ended(name, lost)])
        except Exception as error:  # noqa: BLE001  of the user's code, which has built it once
            return Looked([broken_off(name, error)])
        if name == INTERFACE_LOOK:
            looked.findings.extend(check_output(self._output.taken()))
        return looked

    def _spawn(self) -> None:
        (self._folder / STACKS).write_text("", encoding="utf-8")
        self._spawned_at, self._unheard = (self._folder / STACKS).stat().st_mtime_ns, False
        build = partial(Examiner, self._build, self._patience, self._folder)
        self._handle = self._backend.spawn(Job(build, Name(0, self._lives), threads=torch.get_num_threads()))
        self._lives += 1

    def _answer(self, ticket: Any) -> Any:
        """Wait for as long as the watchdog over there is heard of: it has a limit, if nobody has taken it away."""
        heard, waits = 0, 0
        while not self._backend.wait([ticket], EVERY_S):
            self._output.keep_small()
            before, heard = heard, (self._folder / STACKS).stat().st_mtime_ns
            waits = waits + 1 if heard == before else 0
            if waits * EVERY_S > (START_S if heard == self._spawned_at else self._patience + SPARE_S):
                self._backend.kill(self._handle)
                self._unheard = True
        return ticket.value

    def _ended(self, name: str, lost: WorkerLost) -> Finding:
        if self._unheard:
            return unheard(name, self._patience)
        text = (self._folder / STACKS).read_text(encoding="utf-8", errors="replace")
        return hung(name, self._patience, text) if text else died(name, lost)


class Examiner:
    """Looks at a subject, over there, where a watchdog sees to it.

    Args:
        build: makes the subject.
        patience: of the watchdog.
        folder: where it writes.
    """

    def __init__(self, build: Callable[[], Subject], patience: float, folder: Path) -> None:
        self._watchdog = Watchdog(patience, (folder / STACKS).open("a", encoding="utf-8"))
        print_to(folder / OUTPUT)
        with self._watchdog.watched(), _staying():
            self._subject = build()
        flush()

    def look(self, name: str) -> Looked:
        """Carry out the look of this name."""
        with self._watchdog.watched():
            looked = look(self._subject, name)
        flush()
        return looked


@contextmanager
def _staying() -> Iterator[None]:
    """What means to end the process is raised as what can be told, with its lines."""
    try:
        yield
    except SystemExit as error:
        exited = RemoteFailure(told(error), type_name=type(error).__name__)
        raise exited.with_traceback(error.__traceback__) from None


def hung(name: str, patience: float, stacks: str) -> Finding:
    """What did not come back."""
    at = place_in(stacks)
    what = f"the look at {name}"
    if at and at.called in CALLS:
        what = f"env.{at.called}"
    elif at and at.caller in (*BUILDERS, IMPORTER):
        what = "importing a module" if at.caller == IMPORTER else "building the env"
    where = f": it is in {at.function}, {at.at}" if at else ""
    move = f"mend what it waits for there; if it only takes its time, allow more: --patience {10 * patience:g}"
    return Finding(Level.ERROR, what, f"has not come back in {patience:g} s{where}", "an answer", move)


def unheard(name: str, patience: float) -> Finding:
    """What has neither come back nor been ended by its watchdog."""
    return Finding(
        Level.ERROR,
        f"the look at {name}",
        f"has not come back in {patience:g} s, and its process could not say where it is",
        "an answer, from a process that is not stopped and keeps its faulthandler",
        "look for SIGSTOP, and for faulthandler.cancel_dump_traceback_later in what the env or the policy calls",
    )


def died(name: str, lost: WorkerLost) -> Finding:
    """What has ended the process."""
    return Finding(
        Level.ERROR,
        f"the look at {name}",
        f"its process {str(lost).removeprefix(described(Name(lost.worker, lost.life))).strip()}",
        "an env and a policy that leave their process alive",
        "look for native code that crashes, for sys.exit and os._exit, and for more memory than there is",
    )
