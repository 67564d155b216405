"""Metrics for Prometheus to scrape: the newest values, on a port of this process."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from swath.extras import need
from swath.report.csv_sink import FRAMES

if TYPE_CHECKING:
    from collections.abc import Mapping

PORT, LOCAL = 9464, "127.0.0.1"
PREFIX = "swath_"
UNFIT = re.compile(r"[^a-z0-9_]+", re.ASCII | re.IGNORECASE)
OF_WORKER = re.compile(r"worker_(\d+)/(.+)")


class PrometheusSink:
    """Serves `http://<addr>:<port>/metrics` with one gauge per metric, until it is closed.

    `train/return` is `swath_train_return`, and `worker_3/frames` is `swath_per_worker_frames{worker="3"}`, for
    `worker_frames` is the sum of these. Only what was handed to `log` is shown; a scrape asks nobody.

    Args:
        port: where to listen; 0 for one that is free.
        addr: the address to listen on: this machine's own by default; `""` for all, so that others can scrape it.

    Attributes:
        port: where it listens.
        place: the address to scrape.

    Raises:
        ImportError: prometheus-client is not installed; the message names the extra.
        OSError: the port is taken, or there is no such address.
    """

    def __init__(self, port: int = PORT, addr: str = LOCAL) -> None:
        self._client = need("prometheus_client", extra="prometheus", why="to serve metrics to Prometheus")
        self._registry = self._client.CollectorRegistry()
        self._gauges: dict[str, tuple[str, Any]] = {}
        try:
            self._server, self._thread = self._client.start_http_server(port, addr=addr, registry=self._registry)
        except (OSError, OverflowError) as error:
            raise OSError(f"Prometheus cannot be served on {addr}:{port} ({error}); choose another port") from error
        self.port: int = self._server.server_port
        self.place = f"http://{addr or 'localhost'}:{self.port}/metrics"
        self._closed = False

    def log(self, frames: int, metrics: Mapping[str, float]) -> None:
        """Show these values from now on, and those of other metrics as before.

        Raises:
            ValueError: two metrics have names that are the same to Prometheus.
        """
        for name, value in {FRAMES: frames, **metrics}.items():
            self._gauge(name).set(value)

    def close(self) -> None:
        """Stop serving; the port is free then. Twice is fine."""
        if not self._closed:
            self._closed = True
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()

    def _gauge(self, name: str) -> Any:
        of_worker = OF_WORKER.fullmatch(name)
        if of_worker is None:
            return self._made(name, name, ())
        return self._made(f"per_worker_{of_worker[2]}", f"worker_*/{of_worker[2]}", ("worker",)).labels(of_worker[1])

    def _made(self, shown: str, name: str, labels: tuple[str, ...]) -> Any:
        """The gauge that shows the metrics of this name."""
        full = PREFIX + UNFIT.sub("_", shown)
        if full not in self._gauges:
            gauge = self._client.Gauge(full, f"{name} of a run of Swath", labels, registry=self._registry)
            self._gauges[full] = name, gauge
        known, gauge = self._gauges[full]
        if known != name:
            raise ValueError(f"{name} and {known} are both {full} to Prometheus; rename one of them")
        return gauge
