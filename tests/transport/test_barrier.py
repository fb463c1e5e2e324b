"""The whole barrier against a stand-in API server on the real wire, with a scheduler that binds at
every instant."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.barrier.barrier import Agent, Barrier
from agent.model.settings import Settings
from agent.transport.kube_api import ApiServer

from .conftest import PATIENCE_S
from .kube_peers import Api, certificates, kubeconfig

LABEL, TAINT, BOOT = "gpu-gate.io/ready", "example.com/gpu-not-ready", "boot-2"
NODE: dict[str, Any] = {
    "metadata": {"name": "n", "labels": {}},
    "spec": {"taints": [{"key": TAINT, "value": "v", "effect": "NoSchedule"}]},
    "status": {
        "nodeInfo": {"bootID": BOOT},
        "capacity": {"cpu": "8", "nvidia.com/gpu": "8"},
        "allocatable": {"nvidia.com/gpu": "8"},
        "conditions": [
            {"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-02T03:04:05Z"}
        ],
    },
}


class NoAgent(Exception):
    """No agent."""


class StubAgent:
    """/readyz and /status of an agent, as a test sets them."""

    def __init__(self) -> None:
        self.ready: bool | None = False
        self.alive = True
        self.status_reads = 0

    def readyz(self) -> tuple[int, bytes]:
        if not self.alive:
            raise NoAgent("the agent does not answer")
        return (200, b"yes\n") if self.ready else (503, b"no\n")

    def status(self) -> dict[str, Any]:
        self.status_reads += 1
        verdict = {True: "holds", False: "fails", None: "unknown"}[self.ready]
        return {
            "gate": {"ready": bool(self.ready), "ready_why": "why", "phase": "OPEN"},
            "cycle": {"age_s": 1, "overdue_after_s": 40},
            "findings": [
                {"link": 10, "blocks": True, "verdict": verdict, "reason": "NotRegistered"}
            ],
        }


class Scheduler:
    """Tries to bind two pods at every change and all the time between: one that selects the label,
    one without a selector. Records the agent's state at each binding."""

    def __init__(self, api: Api, agent: StubAgent) -> None:
        self.bound: list[tuple[str, bool]] = []
        self.instants = itertools.count()
        self._api, self._agent = api, agent
        self._stop = threading.Event()
        api.on_change = self._bind
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.001):
            with self._api.changed:
                self._bind(self._api.node)

    def _bind(self, node: dict[str, Any]) -> None:
        next(self.instants)
        if any(t["key"] == TAINT for t in node["spec"].get("taints") or ()):
            return
        for pod in (
            "plain",
            *(["selecting"] if node["metadata"]["labels"].get(LABEL) == "true" else ()),
        ):
            self.bound.append((pod, bool(self._agent.ready and self._agent.alive)))

    def take(self) -> list[tuple[str, bool]]:
        with self._api.changed:
            found, self.bound = self.bound, []
        return found

    def close(self) -> None:
        self._stop.set()
        self._thread.join()


class World:
    """A node's barrier with a clock of its own; turns are taken by the test."""

    def __init__(self, pki: Path, folder: Path) -> None:
        self.now = 1000.0
        self.started: list[Barrier] = []
        self.api = Api(pki, NODE)
        self.agent = StubAgent()
        self.scheduler = Scheduler(self.api, self.agent)
        self.report = folder / "node.json"
        config = kubeconfig(folder / "kubeconfig", self.api.port, pki / "ca.pem")
        self._make = lambda: Barrier(
            Settings(node_name="n", node_taint=TAINT, node_kubeconfig=str(config)),
            Agent(self.agent.readyz, self.agent.status, NoAgent),
            lambda: ApiServer(str(config)),
            BOOT,
            lambda: self.now,
            lambda: 1_800_000_000 + self.now,
            lambda s: time.sleep(min(s, 0.02)),
            str(self.report),
        )
        self.start()

    def start(self) -> None:
        self.barrier = self._make()
        self.started.append(self.barrier)
        self.barrier.watcher.start()

    def turn(self, seconds: float = 2.0) -> None:
        self.now += seconds
        self.barrier.turn()

    def until(self, claim: Callable[[], Any]) -> None:
        """Turns, two seconds each by the world's clock, until the claim holds."""
        end = time.monotonic() + PATIENCE_S
        while not claim():
            assert time.monotonic() < end, (self.api.node, self.api.requests[-5:])
            self.turn()
            time.sleep(0.005)

    def wait(self, claim: Callable[[], Any]) -> None:
        """Without a turn."""
        end = time.monotonic() + PATIENCE_S
        while not claim():
            assert time.monotonic() < end
            time.sleep(0.005)

    @property
    def is_open(self) -> bool:
        with self.api.changed:
            node = self.api.node
            return bool(
                node["metadata"]["labels"].get(LABEL) == "true" and not node["spec"].get("taints")
            )

    @property
    def condition(self) -> tuple[str, str]:
        found = [c for c in self.api.node["status"]["conditions"] if c["type"] == "GpuReady"]
        return (found[0]["status"], found[0]["reason"]) if found else ("", "")

    def open(self) -> None:
        self.agent.ready = True
        self.until(lambda: self.is_open)

    def close(self) -> None:
        self.scheduler.close()
        for barrier in self.started:
            barrier.watcher.close()
        self.api.close()
        for barrier in self.started:
            barrier.close(PATIENCE_S)


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pki")
    certificates(folder)
    return folder


@pytest.fixture
def world(pki: Path, tmp_path: Path) -> Iterator[World]:
    found = World(pki, tmp_path)
    yield found
    found.close()


def test_no_pod_is_admitted_early_across_faults_and_recovery(world: World) -> None:
    world.until(lambda: world.condition == ("False", "NotRegistered"))
    for _ in range(5):
        world.turn()
    assert world.scheduler.take() == [], "tainted until readiness is verified"
    world.open()
    world.wait(lambda: world.scheduler.bound)
    assert all(ready for _, ready in world.scheduler.take())
    assert world.condition == ("True", "Ready")
    world.agent.ready = False
    world.until(lambda: world.condition == ("False", "NotRegistered"))
    world.scheduler.take()  # between the break and the first write nobody could know
    before = next(world.scheduler.instants)
    for _ in range(5):
        world.turn()
    world.wait(lambda: next(world.scheduler.instants) > before + 20)
    assert world.scheduler.take() == []
    assert [t["key"] for t in world.api.node["spec"]["taints"]] == [TAINT]
    world.open()
    assert all(ready for _, ready in world.scheduler.take())
    assert len(world.api.writes) == 7, "condition; open: two; close: two; open: two"
    assert len([r for r in world.api.requests if r.startswith("PATCH")]) == 7, (
        "none of them a conflict"
    )


def test_an_idle_node_causes_no_work(world: World) -> None:
    world.open()
    world.turn()
    asked, reads = len(world.api.requests), world.agent.status_reads
    for _ in range(10):
        world.turn()
    assert len(world.api.requests) == asked, "no polling of the API"
    assert world.agent.status_reads <= reads + 1, (
        "/status only where /readyz says something new, and every 30 s"
    )


def test_changes_by_others_are_reverted(world: World) -> None:
    world.open()
    world.api.set(lambda node: node["metadata"]["labels"].pop(LABEL))
    world.until(lambda: world.is_open)
    world.agent.ready = False
    world.until(lambda: world.condition[0] == "False")
    world.api.set(
        lambda node: (
            node["metadata"]["labels"].update({LABEL: "true"}),
            node["spec"].update(taints=[]),
        )
    )
    world.until(lambda: not world.is_open)


@pytest.mark.parametrize(
    ("code", "headers", "said"),
    [
        (409, {}, ""),
        (429, {"Retry-After": "4"}, "429"),
        (500, {}, "500"),
        (401, {}, "401"),
        (0, {}, "not answer"),
    ],
)
def test_refused_writes_are_retried(
    world: World, caplog: pytest.LogCaptureFixture, code: int, headers: dict[str, str], said: str
) -> None:
    caplog.set_level("INFO")
    world.until(lambda: world.condition[0] == "False")
    world.api.faults += [("PATCH", code, headers)] * 3
    world.open()
    assert not world.api.faults
    begun = [r.getMessage() for r in caplog.records if "fails; retrying" in r.getMessage()]
    ended = [r.getMessage() for r in caplog.records if "works again after" in r.getMessage()]
    assert (len(begun), len(ended)) == ((1, 1) if said else (0, 0)), (
        "logged when it begins and when it ends"
    )
    assert all(said in line for line in begun)
    if code == 429:
        refused = [r for r in world.api.requests if r.startswith("PATCH")]
        assert len(refused) == 1 + 3 + 2


def test_a_foreign_taint_that_came_meanwhile_is_kept(world: World) -> None:
    """The patch was made for an older Node: 409, the Node is read again, and no other client's
    taint is lost."""
    world.until(lambda: world.condition[0] == "False")
    with world.api.changed:  # the watch cannot tell it before the patch comes
        world.agent.ready = True
        world.api.node["spec"]["taints"].append({"key": "foreign", "effect": "NoExecute"})
        world.api.node["metadata"]["resourceVersion"] = "100000"
        world.api.version = 100000
    world.until(lambda: world.api.node["metadata"]["labels"].get(LABEL) == "true")
    assert world.api.node["spec"]["taints"] == [{"key": "foreign", "effect": "NoExecute"}]


def test_a_kubelets_credential_keeps_label_and_condition(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.api.taints_forbidden = True
    world.agent.ready = True
    world.until(lambda: world.api.node["metadata"]["labels"].get(LABEL) == "true")
    assert [t["key"] for t in world.api.node["spec"]["taints"]] == [TAINT]
    assert sum("refused to change the startup taint" in r.getMessage() for r in caplog.records) == 1
    world.agent.ready = False
    world.until(lambda: LABEL not in world.api.node["metadata"]["labels"])


def test_a_quick_restart_of_the_agent_does_not_change_the_barrier(world: World) -> None:
    world.open()
    writes = len(world.api.writes)
    world.agent.alive = False
    for _ in range(9):
        world.turn()
    world.agent.alive = True
    for _ in range(5):
        world.turn()
    assert world.is_open and len(world.api.writes) == writes
    world.agent.alive = False
    world.until(lambda: world.condition == ("Unknown", "AgentSilent"))
    assert not world.is_open


def test_a_killed_barrier_continues_from_the_nodes_state(world: World) -> None:
    world.open()
    writes = len(world.api.writes)
    world.agent.ready = None  # the agent, too, begins anew
    world.start()
    world.until(lambda: world.barrier.watcher.seen()[0])
    for _ in range(5):
        world.turn()
    assert world.is_open and len(world.api.writes) == writes
    world.agent.ready = False
    world.until(lambda: not world.is_open)


def test_a_stopped_barrier_closes(world: World) -> None:
    world.open()
    world.barrier.stop()
    world.barrier.watcher.close(0)
    world.barrier._withdraw()
    assert not world.is_open
    assert world.condition == ("Unknown", "BarrierStopped")


def test_the_watch_survives_disconnects_expired_history_and_a_recreated_node(world: World) -> None:
    world.open()
    for trouble in (world.api.cut, world.api.forget):
        trouble()
        world.wait(lambda: world.api.watching == 1)
        world.api.set(lambda node: node["metadata"]["labels"].pop(LABEL))
        world.until(lambda: world.is_open)
    world.api.delete()
    world.until(lambda: world.barrier.watcher.seen()[0] is None)
    assert "was deleted" in world.barrier.watcher.outage.sentence
    world.api.name = "n"
    world.api.set(
        lambda node: (node["metadata"]["labels"].clear(), node["spec"].update(NODE["spec"]))
    )
    world.until(lambda: world.is_open)


def test_the_report_for_the_doctor(world: World) -> None:
    world.open()
    world.turn(31)
    found = json.loads(world.report.read_text())
    assert (found["version"], found["node"], found["trouble"], found["boot_id"]) == (
        1,
        "n",
        "",
        BOOT,
    )
    assert found["capacity"] == found["allocatable"] == {"nvidia.com/gpu": "8"}
    assert found["kubelet_heartbeat_at"] == 1767323045.0
    assert found["resource_version"] == world.api.node["metadata"]["resourceVersion"]
    world.api.faults += [("GET", 503, {})] * 1000
    world.api.cut()
    world.until(lambda: "503" in json.loads(world.report.read_text())["trouble"])
    world.api.faults.clear()
    world.until(lambda: not json.loads(world.report.read_text())["trouble"])


class BrokenApi(ApiServer):
    """Fails with an unexpected exception."""

    def node(self, name: str) -> dict[str, Any]:
        raise ZeroDivisionError(name)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_unexpected_end_of_a_watch_ends_the_barrier(tmp_path: Path) -> None:
    """With an old Node it would go on as if nothing had happened; systemd starts it again."""
    stub = StubAgent()
    agent = Agent(stub.readyz, stub.status, NoAgent)
    barrier = Barrier(
        Settings(node_name="n"),
        agent,
        lambda: BrokenApi(""),
        BOOT,
        time.monotonic,
        time.time,
        report_path=str(tmp_path / "node.json"),
    )
    with pytest.raises(RuntimeError, match="the thread that follows the Node has ended"):
        barrier.run()
