"""Check that `import swath` takes under 20 ms, the median of 9 interpreters, and loads neither torch nor ray."""

from __future__ import annotations

import statistics
import subprocess
import sys

from rounds import claim, ended, verdict

HEAVY = ("torch", "tensordict", "ray", "gymnasium", "numpy")
SCRIPT = f"""
import sys, time
began = time.perf_counter()
import swath
print(time.perf_counter() - began, *(name for name in {HEAVY} if name in sys.modules))
"""


def main() -> int:
    """Print the time; 1 if it is too long or something heavy was loaded."""
    seconds, loaded = [], []
    for _ in range(9):
        child = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
        took, *loaded = child.stdout.split()
        seconds.append(float(took))
    quick = verdict("import swath", statistics.median(seconds) * 1000, ".1f ms", maximum=20)
    return ended([quick, claim("no heavy module is loaded", not loaded, ", ".join(loaded))])


if __name__ == "__main__":
    sys.exit(main())
