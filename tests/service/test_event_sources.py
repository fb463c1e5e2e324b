"""Which signals wake the agent. That they arrive is tests/transport's."""

from __future__ import annotations

import asyncio

import pytest

from agent.engine.wakes import WakeQueue
from agent.host import event_sources as wake
from agent.host.event_sources import EventSources
from agent.model.wake import WakeReason, WakeSource
from agent.service.clock import LiveClock
from agent.transport.systemd import BusSignal

SCOPE = WakeReason(WakeSource.SCOPE)
TIMER = {WakeReason(WakeSource.TIMER): 1}

# What the kernel sends as an NVIDIA driver comes and goes, and what other hardware sends all day.
EVENTS = [
    ({"ACTION": "add", "SUBSYSTEM": "module", "DEVPATH": "/module/nvidia"}, True),
    ({"ACTION": "add", "SUBSYSTEM": "module", "DEVPATH": "/module/nvidia_uvm"}, True),
    ({"ACTION": "add", "SUBSYSTEM": "drivers", "DEVPATH": "/bus/pci/drivers/nvidia"}, True),
    (
        {
            "ACTION": "bind",
            "SUBSYSTEM": "pci",
            "DEVPATH": "/devices/pci0000:00/0000:07:00.0",
            "PCI_ID": "10DE:2330",
            "DRIVER": "nvidia",
        },
        True,
    ),
    (
        {
            "ACTION": "remove",
            "SUBSYSTEM": "pci",
            "DEVPATH": "/devices/pci0000:00/0000:07:00.0",
            "PCI_ID": "10de:2330",
        },
        True,
    ),
    ({"ACTION": "unbind", "SUBSYSTEM": "pci", "DEVPATH": "/devices/pci0000:00/0000:07:00.0"}, True),
    ({"ACTION": "add", "SUBSYSTEM": "drivers", "DEVPATH": "/bus/pci/drivers/vfio-pci"}, True),
    ({"ACTION": "add", "SUBSYSTEM": "module", "DEVPATH": "/module/nouveau"}, True),
    ({"ACTION": "add", "SUBSYSTEM": "module", "DEVPATH": "/module/br_netfilter"}, False),
    (
        {
            "ACTION": "bind",
            "SUBSYSTEM": "pci",
            "DEVPATH": "/devices/pci0000:00/0000:00:03.0",
            "PCI_ID": "1AF4:1041",
        },
        False,
    ),
    ({}, False),
]


@pytest.mark.parametrize(("event", "wakes"), EVENTS, ids=[str(n) for n in range(len(EVENTS))])
def test_uevents_that_wake(event: dict[str, str], wakes: bool) -> None:
    async def heard() -> dict[WakeReason, int]:
        taken = WakeQueue(LiveClock())
        EventSources(taken.wake)._on_uevent(event)
        return taken.take()

    said = asyncio.run(heard())
    assert bool(said) is wakes
    assert all(reason.source is WakeSource.UDEV for reason in said)


@pytest.mark.parametrize(
    ("jobs", "wakes"),
    [
        (["cri-containerd-0a.scope", "crio-0b.scope", "docker-0c.scope"], {SCOPE: 1}),
        (["session-1.scope", "run-u7.scope", "cri-containerd-0a.service", "kubelet.service"], {}),
    ],
)
def test_scopes_of_containers_wake_once_for_a_burst(
    jobs: list[str], wakes: dict[WakeReason, int], monkeypatch
) -> None:
    monkeypatch.setattr(wake, "SCOPE_GATHER_S", 0.01)

    async def heard() -> dict[WakeReason, int]:
        taken = WakeQueue(LiveClock())
        sources = EventSources(taken.wake)
        for unit in jobs:
            sources._on_systemd(BusSignal.JOB_ENDED, unit)
        return await taken.wait(60.0 if wakes else 0.05)

    assert asyncio.run(heard()) == (wakes or TIMER)


def test_a_second_cycle_finds_a_container_with_slow_hooks(monkeypatch) -> None:
    """The runtime reports it as running after the hooks, and systemd sends no further signal."""
    monkeypatch.setattr(wake, "SCOPE_GATHER_S", 0.01)
    monkeypatch.setattr(wake, "SCOPE_AGAIN_S", 0.02)

    async def heard() -> dict[WakeReason, int]:
        taken, looks = WakeQueue(LiveClock()), 0
        sources = EventSources(taken.wake)
        for _ in range(3):
            sources._on_systemd(BusSignal.JOB_ENDED, "crio-0b.scope")
        while looks < 2:
            looks += (await taken.wait(60.0))[SCOPE]
        return await taken.wait(0.05)

    assert asyncio.run(heard()) == TIMER
