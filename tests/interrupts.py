"""Ctrl-C, and other threads, at any moment."""

import dis
import sys


def press_ctrl_c():
    raise KeyboardInterrupt


def interrupted_at(at, function, files, *, after_calls=False, by=press_ctrl_c):
    """Interrupt a function at the nth instruction in these files; what it gave, and whether it has so many.

    With `after_calls`, only instructions that follow a call count: there Python looks for signals. At others it does
    not, so that `with lock:` is safe. `by` is called then; the function goes on if it does not raise.
    """
    left, last = at, {}

    def trace(frame, event, arg):
        nonlocal left
        if frame.f_code.co_filename not in files:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            before = last.get(frame)
            last[frame] = frame.f_code.co_code[frame.f_lasti]
            left -= not after_calls or (before is not None and dis.opname[before].startswith("CALL"))
            if left == 0:
                sys.settrace(None)
                by()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        return function(), left <= 0
    except KeyboardInterrupt:
        return None, True
    finally:
        sys.settrace(before)
