"""Where a worker runs."""

from __future__ import annotations

import platform
import socket
import sys

_ROUTED = ("192.0.2.1", 9)
"""An address for documentation: nothing is sent there, the system only says by which interface it would be."""


def host_name() -> str:
    """The name of the machine."""
    return platform.node()


def node_ip() -> str:
    """The node's address: Ray's if it runs here, else that of the interface to the outside, else the loopback's."""
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        return str(ray.util.get_node_ip_address())
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_ROUTED)
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def free_port() -> int:
    """An IPv4 port that is free at the moment."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port
