"""Ctrl-C at any moment."""

import signal
import sys
import threading
import time
from contextlib import contextmanager


def interrupted_at(at, function, files):
    """Interrupt a function at the nth instruction in these files; what it gave, and whether it has so many."""
    left = at

    def trace(frame, event, arg):
        nonlocal left
        if frame.f_code.co_filename not in files:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= 1
            if left == 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        return function(), False
    except KeyboardInterrupt:
        return None, True
    finally:
        sys.settrace(before)


@contextmanager
def signalled_elsewhere(when):
    """Ctrl-C that the system gives to another thread than the main one, as soon as `when()` is true."""

    def interrupt():
        while not when():
            time.sleep(0.001)
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    other = threading.Thread(target=interrupt, daemon=True)
    other.start()
    yield
    other.join()
