"""Where processes meet."""

import socket
from random import SystemRandom

PORTS = range(20_000, 32_000)
"""Below those that Linux gives to whoever opens a connection: nobody takes one by accident until it is used."""


def free_url():
    """One that nobody listens at."""
    for port in SystemRandom().sample(PORTS, 100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return f"tcp://127.0.0.1:{port}"
    raise RuntimeError(f"100 ports of {PORTS} are taken")
