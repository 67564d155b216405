"""The same tests run on a small fake of prometheus-client and, where it is installed, on itself."""

import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import ModuleType
from urllib.request import urlopen

import pytest

from swath import MultiSyncCollector
from swath.report.prometheus_sink import PrometheusSink
from swath.report.sink import numbers_of


class FakeGauge:
    def __init__(self, name, documentation, labelnames, registry):
        assert documentation
        assert name.replace("_", "").isalnum()
        self.name, self.labelnames, self.values = name, labelnames, {}
        registry.append(self)

    def labels(self, *values):
        assert len(values) == len(self.labelnames)
        return FakeChild(self, "{" + ",".join(f'{n}="{v}"' for n, v in zip(self.labelnames, values, strict=True)) + "}")

    def set(self, value):
        assert not self.labelnames
        self.values[""] = float(value)


class FakeChild:
    def __init__(self, gauge, labels):
        self.gauge, self.name = gauge, labels

    def set(self, value):
        self.gauge.values[self.name] = float(value)


class FakeServer(ThreadingHTTPServer):
    """Ends with its socket, as the server of prometheus-client does."""

    daemon_threads = True


def serve(port, *, addr, registry):
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self):
            lines = [f"{gauge.name}{labels} {value}" for gauge in registry for labels, value in gauge.values.items()]
            self.send_response(200)
            self.end_headers()
            self.wfile.write(("\n".join(lines) + "\n").encode())

        def log_message(self, *_):
            pass

    server = FakeServer((addr, port), Answer)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    return server, thread


@pytest.fixture(params=["fake", "real"], autouse=True)
def client(request, monkeypatch):
    if request.param == "real":
        pytest.importorskip("prometheus_client")
        return
    fake = ModuleType("prometheus_client")
    fake.CollectorRegistry, fake.Gauge, fake.start_http_server = list, FakeGauge, serve
    monkeypatch.setitem(sys.modules, "prometheus_client", fake)


@pytest.fixture
def sink():
    sink = PrometheusSink(port=0)
    yield sink
    sink.close()


def scraped(sink):
    with urlopen(sink.place) as answer:
        lines = answer.read().decode().splitlines()
    return dict(line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))


def test_the_newest_values_are_scraped(sink):
    sink.log(10, {"train/return": 1.5, "old": 1})
    sink.log(20, {"train/return": 2.5})
    values = {name: float(value) for name, value in scraped(sink).items()}
    assert values == {"swath_frames": 20.0, "swath_train_return": 2.5, "swath_old": 1.0}


def test_facts_of_workers_get_a_label(sink):
    sink.log(10, {"worker_0/frames": 6, "worker_12/frames": 4, "workers": 2})
    values = scraped(sink)
    assert float(values['swath_per_worker_frames{worker="0"}']) == 6
    assert float(values['swath_per_worker_frames{worker="12"}']) == 4
    assert float(values["swath_workers"]) == 2


def test_all_numbers_of_a_collector_with_workers_are_taken(sink):
    with MultiSyncCollector(["CartPole-v1"] * 2, frames_per_batch=8, total_frames=8, backend="thread") as collector:
        next(iter(collector))
        facts = collector.stats("both")
    sink.log(facts["frames"], numbers_of(facts))
    values = scraped(sink)
    assert float(values["swath_worker_frames"]) == facts["worker_frames"]
    assert float(values['swath_per_worker_frames{worker="1"}']) == facts["worker_1/frames"]


def test_two_metrics_that_prometheus_cannot_tell_apart_are_refused(sink):
    with pytest.raises(ValueError, match="a b and a/b are both swath_a_b to Prometheus; rename one of them"):
        sink.log(1, {"a/b": 1.0, "a b": 2.0})


def test_a_port_that_is_taken_is_said(sink):
    with pytest.raises(OSError, match=rf"cannot be served on 127\.0\.0\.1:{sink.port} .*; choose another port"):
        PrometheusSink(port=sink.port)


def test_closing_frees_the_port_and_leaves_no_thread():
    threads = set(threading.enumerate())
    first = PrometheusSink(port=0)
    first.close()
    first.close()
    second = PrometheusSink(port=first.port)
    second.close()
    assert set(threading.enumerate()) <= threads


def test_a_missing_prometheus_client_is_named_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ImportError, match=r'pip install "swath\[prometheus\]"'):
        PrometheusSink()
