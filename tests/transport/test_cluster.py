"""Links 13 and 14: the questions to Prometheus, Alertmanager and Nightingale over HTTP, and what is
made of them.

Prometheus is the real one (Debian's package), with a metric page as kube-state-metrics writes it;
the alert managers are stand-ins.
"""

from __future__ import annotations

import json
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from agent.core.doctor.cluster import findings, label_of
from agent.model.cluster import ClusterReport, Sample
from agent.model.finding import Finding, Verdict
from agent.model.reading import Refusal, Seen, Why
from agent.model.settings import Settings
from agent.model.snapshot import Clock, Devices, Hardware, Kubelet, Snapshot
from agent.service import cluster

ROOT = Path(__file__).resolve().parents[2]
HOLDS = Finding(10, "PluginRegistered", Verdict.HOLDS, "")
FAILS = Finding(10, "PluginRegistered", Verdict.FAILS, "")


class Server:
    """Answers a path with what a test put there."""

    def __init__(self) -> None:
        self.pages: dict[str, Any] = {}
        self.tokens: list[str | None] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.tokens.append(self.headers.get("X-User-Token"))
                page = outer.pages.get(self.path.partition("?")[0])
                data = page if isinstance(page, bytes) else json.dumps(page).encode()
                self.send_response(404 if page is None else 200)
                self.send_header("Content-Length", str(len(data)))
                self.send_header(
                    "Content-Type", "text/plain; version=0.0.4"
                )  # Prometheus 3 reads nothing without
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


def snapshot(*listed: Devices) -> Snapshot:
    return Snapshot(
        Clock(100.0, 100.0, 1100.0),
        Hardware(Seen((), 100.0)),
        kubelet=Kubelet(allocatable=Seen(listed, 100.0)),
    )


def said(
    word: ClusterReport, registered: Finding | None = HOLDS, *listed: Devices
) -> tuple[Finding, Finding]:
    gpus = listed or (Devices("nvidia.com/gpu", tuple("abcdefgh")),)
    metric, alert = findings(word, snapshot(*gpus), Settings(), registered)
    return metric, alert


NOBODY = Refusal(Why.NOT_ASKED, "nobody")


def test_a_resource_is_labelled_as_kube_state_metrics_does():
    assert label_of("nvidia.com/mig-1g.10gb") == "nvidia_com_mig_1g_10gb"


@pytest.mark.parametrize(
    ("value", "verdict", "reason"),
    [
        (8, Verdict.HOLDS, ""),
        (0, Verdict.FAILS, "MetricDiffers"),
        (9, Verdict.FAILS, "MetricDiffers"),
    ],
)
def test_the_metric_against_the_kubelet(value: int, verdict: Verdict, reason: str):
    metric, _ = said(ClusterReport(Seen([Sample("nvidia_com_gpu", value, 1088.0)], 1.0), NOBODY))
    assert (metric.verdict, metric.reason, metric.age_s) == (verdict, reason, 12.0)


def test_no_series_and_no_store_are_unknown():
    assert said(ClusterReport(Seen([], 1.0), NOBODY))[0].reason == "MetricMissing"
    assert said(ClusterReport(NOBODY, NOBODY))[0].reason == "MetricNotAsked"
    silent = ClusterReport(Refusal(Why.TIMED_OUT), Refusal(Why.FAILED))
    assert [f.reason for f in said(silent)] == ["MetricStoreSilent", "AlertManagerSilent"]
    assert {f.verdict for f in said(silent)} == {Verdict.UNKNOWN}


def alertmanager_rows(node: str) -> list[dict[str, Any]]:
    return [
        {
            "labels": {"alertname": "GpuGateNodeNotReady", "instance": f"{node}:9477"},
            "startsAt": "T1",
        },
        {"labels": {"alertname": "GPUAllocatableLow", "node": "another"}, "startsAt": "T2"},
        {"labels": {"alertname": "DiskFull", "node": node}, "startsAt": "T3"},
    ]


def test_the_gpu_recovered_and_the_alert_did_not(server: Server):
    server.pages["/api/v2/alerts"] = alertmanager_rows("n1")
    word = cluster.ask(Settings(alertmanager=server.address, node_name="n1"))
    alert = said(word)[1]
    assert (alert.verdict, alert.reason) == (Verdict.FAILS, "AlertNotResolved")
    assert "GpuGateNodeNotReady since T1" in alert.because and "Disk" not in alert.because
    assert said(word, FAILS)[1].verdict is Verdict.HOLDS
    server.pages["/api/v2/alerts"] = []
    word = cluster.ask(Settings(alertmanager=server.address, node_name="n1"))
    assert (said(word)[1].verdict, said(word, FAILS)[1].reason) == (Verdict.HOLDS, "AlertSilent")
    assert said(word, None)[1].verdict is Verdict.UNKNOWN


def test_nightingale_evaluates_its_own_rules(server: Server, tmp_path: Path):
    token = tmp_path / "token"
    token.write_text("secret\n")
    settings = Settings(n9e=server.address + "/", n9e_token_file=str(token), node_name="n1")
    server.pages["/api/n9e/alert-cur-events/list"] = {
        "err": "",
        "dat": {
            "total": 2,
            "list": [
                {
                    "rule_name": "gpu not allocatable",
                    "trigger_time": 1700000000,
                    "target_ident": "n1",
                    "tags": ["a=b"],
                },
                {
                    "rule_name": "gpu not allocatable",
                    "trigger_time": 1,
                    "target_ident": "",
                    "tags": ["node=n2"],
                },
            ],
        },
    }
    alert = said(cluster.ask(settings))[1]
    assert alert.reason == "AlertNotResolved" and alert.because.count("since") == 1
    assert server.tokens == ["secret"]
    server.pages["/api/n9e/alert-cur-events/list"] = {"err": "forbidden", "dat": None}
    assert "forbidden" in said(cluster.ask(settings))[1].because


@pytest.mark.parametrize(
    "page",
    [
        None,
        b"",
        b"<html>",
        [],
        {"data": 1},
        {"data": {"result": [{}]}},
        {"data": {"result": [{"metric": {}, "value": ["x"]}]}},
        b"[" * 100000,
        {"data": {"result": [{"metric": {"resource": "nvidia_com_gpu"}, "value": [1, "NaN"]}]}},
    ],
)
def test_a_malformed_answer_is_a_refusal(server: Server, page: Any):
    server.pages = {"/api/v1/query": page, "/api/v2/alerts": page if page != [] else {"a": 1}}
    word = cluster.ask(
        Settings(prometheus=server.address, alertmanager=server.address, node_name="n1")
    )
    assert isinstance(word.samples, Refusal) and word.samples.why is Why.FAILED
    assert isinstance(word.alerts, Refusal)


@pytest.mark.parametrize(
    "words", [b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"]
)
def test_another_program_on_that_port_is_a_refusal(words: bytes):
    with socket.create_server(("127.0.0.1", 0)) as other:

        def answer() -> None:
            connection, _ = other.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(words)

        thread = threading.Thread(target=answer)
        thread.start()
        address = f"http://127.0.0.1:{other.getsockname()[1]}"
        word = cluster.ask(Settings(alertmanager=address, node_name="n"))
        thread.join()
    assert isinstance(word.alerts, Refusal) and word.alerts.why is Why.FAILED and word.alerts.detail


def test_unreachable_servers_are_refusals():
    word = cluster.ask(
        Settings(prometheus="http://127.0.0.1:9", alertmanager="http://127.0.0.1:9", node_name="n")
    )
    assert isinstance(word.samples, Refusal) and isinstance(word.alerts, Refusal)


def test_a_real_prometheus_with_kube_state_metrics_page(server: Server, tmp_path: Path):
    words = [str(ROOT / "tests/tools/fetch-program"), "prometheus", "usr/bin/prometheus"]
    if not Path(words[0]).exists():
        pytest.skip("NOT TESTED: a node without a package mirror has no Prometheus")
    program = subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()
    server.pages["/metrics"] = (
        b'kube_node_status_allocatable{node="n1",resource="nvidia_com_gpu",unit="integer"} 8\n'
        b'kube_node_status_allocatable{node="n1",resource="cpu",unit="core"} 96\n'
        b'kube_node_status_allocatable{node="n2",resource="nvidia_com_gpu",unit="integer"} 0\n'
    )
    (tmp_path / "p.yml").write_text(
        f"global: {{scrape_interval: 1s}}\nscrape_configs:\n  - job_name: ksm\n"
        f"    static_configs: [{{targets: ['{server.address[7:]}']}}]\n"
    )
    port = Server()  # a free port, for a moment
    port.close()
    running = subprocess.Popen(
        [
            program,
            f"--config.file={tmp_path}/p.yml",
            f"--storage.tsdb.path={tmp_path}/db",
            f"--web.listen-address={port.address[7:]}",
        ],
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 90
        while True:
            word = cluster.ask(Settings(prometheus=port.address, node_name="n1"))
            if isinstance(word.samples, Seen) and word.samples.value:
                break
            assert time.monotonic() < deadline, word
            time.sleep(0.2)
    finally:
        running.kill()
        running.wait()
    here = Snapshot(
        Clock(0.0, 0.0, time.time()),
        Hardware(Seen((), 0.0)),
        kubelet=Kubelet(allocatable=Seen((Devices("nvidia.com/gpu", tuple("abcdefgh")),), 0.0)),
    )
    metric, _ = findings(word, here, Settings(), HOLDS)
    assert metric.verdict is Verdict.HOLDS and 0.0 <= metric.age_s < 120.0
