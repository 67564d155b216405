"""Ctrl-C, and other threads, at any moment."""

import dis
import sys


def press_ctrl_c():
    raise KeyboardInterrupt


def interrupted_at(at, function, files, *, after_calls=False, by=press_ctrl_c):
    """Interrupt a function at the nth instruction in some files; return its result, and whether it has n instructions.

    With `after_calls`, only instructions after a call count, where Python checks for signals; at others `with lock:` is
    safe. `by` is called at the instruction; the function continues if it does not raise.
    """
    remaining, last = at, {}

    def trace(frame, event, arg):
        nonlocal remaining
        if frame.f_code.co_filename not in files:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            before = last.get(frame)
            last[frame] = frame.f_code.co_code[frame.f_lasti]
            remaining -= not after_calls or (before is not None and dis.opname[before].startswith("CALL"))
            if remaining == 0:
                sys.settrace(None)
                by()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        return function(), remaining <= 0
    except KeyboardInterrupt:
        return None, True
    finally:
        sys.settrace(before)
