"""How something ends that is collected as garbage: by whichever thread finds it, also one that must not wait.

Ray's own thread, which brings answers and unpickles them, waits for itself for ever if it calls Ray.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


def apart(end: Callable[..., Any], *args: Any) -> None:
    """Call this in a thread of its own; but here in the main one, where programs end."""
    if threading.current_thread() is threading.main_thread():
        end(*args)
    else:
        threading.Thread(target=end, args=args, name="swath ends what nobody has", daemon=True).start()
