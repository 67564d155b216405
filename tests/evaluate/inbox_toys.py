"""What stands around an inbox in its tests."""

from swath.evaluate.busy import InboxRules
from swath.evaluate.inbox import Inbox
from swath.evaluate.inbox_events import Accepted, Admit, Asked, Cancelled, Finished, Published, Read, Run, Supplied

POLICIES = ("error", "queue", "skip", "latest")


def inbox(busy_policy="queue", **rules):
    return Inbox(InboxRules(busy_policy, **rules))


def ask(box, number, *, sync=False, step=None, weighted=False):
    """Ask and, once admitted, supply; the last answer."""
    answer = box.handle(Asked(number, sync))
    if answer != [Admit(number)]:
        return answer
    return box.handle(Supplied(number, f"request {number}", step, weighted))


def finish(box, number):
    return box.handle(Finished(number, f"outcome {number}"))


def show(box, number, *, failed=False):
    return box.handle(Published(number, f"outcome {number}", failed))


def settle(box, number, *, failed=False):
    """The workers are done, and the outcome is readable."""
    return [*finish(box, number), *show(box, number, failed=failed)]


def read(box, number=None):
    """The outcome, or `None`."""
    answer = box.handle(Read(number))
    return answer[0].outcome if answer else None


def accepted(number, *, sync=False, step=None, version=0):
    """As `ask` has it accepted, by default as the request of its number's turn."""
    return Accepted(number, sync, f"request {number}", number if step is None else step, version)


def run(number, **about):
    return Run(accepted(number, **about))


COUNTED = ("accepted", "completed", "errors", "skipped", "superseded", "cancelled", "dropped_results")


def counts(box):
    """Those that are not 0."""
    return {what: number for what in COUNTED if (number := box.count(what))}


def state(box):
    """All that can be seen of it."""
    facts = (box.pending, box.queued, box.unread, box.at_rest, box.running, box.closed)
    return facts, counts(box), (box.step_counter, box.policy_version)


def idle(box):
    pass


def copying(box):
    box.handle(Asked(0))


def running(box):
    ask(box, 0)


def waiting(box):
    ask(box, 0, sync=True)
    ask(box, 1)


def shown(box):
    running(box)
    finish(box, 0)


def only_sync(box):
    ask(box, 0, sync=True)
    ask(box, 1, sync=True)
    box.handle(Asked(2, sync=True))


def sync_running(box):
    ask(box, 0, sync=True)


def sync_unread(box):
    sync_running(box)
    settle(box, 0)


def stopping(box):
    running(box)
    box.handle(Cancelled())


def unread(box):
    running(box)
    settle(box, 0)


def withdrawn(box):
    copying(box)
    box.handle(Cancelled(0))


BUSY = [copying, running, waiting, shown]
NOT_BUSY = [idle, only_sync, sync_running, sync_unread, stopping, unread, withdrawn]
