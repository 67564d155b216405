"""`import swath` takes under 0.1 s and loads neither torch nor ray: the median of 9 fresh interpreters."""

from __future__ import annotations

import statistics
import subprocess
import sys

from figures import claim, ended, verdict

LIMIT = 0.1
HEAVY = ("torch", "tensordict", "ray", "gymnasium", "numpy")
CHILD = f"""
import sys, time
began = time.perf_counter()
import swath
print(time.perf_counter() - began, *(name for name in {HEAVY} if name in sys.modules))
"""


def main() -> int:
    """Print the time; 1 if it is too long or something heavy was loaded."""
    seconds, loaded = [], []
    for _ in range(9):
        time, *loaded = subprocess.run(
            [sys.executable, "-c", CHILD], capture_output=True, text=True, check=True
        ).stdout.split()
        seconds.append(float(time))
    took = statistics.median(seconds)
    quick = verdict("import swath", took * 1000, ".1f ms", most=LIMIT * 1000)
    return ended([quick, claim("no heavy module is loaded", not loaded, ", ".join(loaded))])


if __name__ == "__main__":
    sys.exit(main())
