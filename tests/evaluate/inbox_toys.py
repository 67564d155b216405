"""What stands around an inbox in its tests."""

from swath.evaluate.busy import InboxRules
from swath.evaluate.inbox import Inbox
from swath.evaluate.inbox_events import Accepted, Admit, Asked, Finished, Published, Read, Run, Supplied

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
