"""Containers whose devices systemd does not know: they lose them, keep them, and get them back. One
node for each suite, from before the installation until after the removal; the tests depend on each
other, in this order."""

from __future__ import annotations

import json
from pathlib import Path

import gate
import pytest
import tree
from gpu_containers import CTL, FUSE, GPU0, NULL, UVM, Container, Feeling, Rig
from remains import poll

ONLY_SAID = "[Access]\nPrevent=report\nHeal=no\n"
TTY = "c:4:0"


@pytest.fixture(scope="module", params=tree.SUITES)
def rig(request, make_module_node) -> Rig:
    node = make_module_node(request.param, deb=False)
    gate.until(lambda: gate.allocatable(node) == 8, lambda: gate.kubelet_state(node))
    node.put(gate.CONF, gate.QUICK + ONLY_SAID)
    return Rig(node, request.param)


def dpkg(rig: Rig, *words: str) -> str:
    done = rig.node.run(["dpkg", *words], env={"DEBIAN_FRONTEND": "noninteractive"}, timeout=120)
    return done.stdout + done.stderr


def settings(rig: Rig, text: str) -> None:
    rig.node.put(gate.CONF, gate.QUICK + text)
    rig.node.systemctl("reload", "gpu-gate")


def seen(rig: Rig, container: Container) -> dict:
    rows = gate.status(rig.node).get("access", ())
    return next((row for row in rows if row["id"] == container.id), {})


def wait_seen(rig: Rig, container: Container, now: str, after: str) -> None:
    gate.until(
        lambda: (
            (seen(rig, container).get("now"), seen(rig, container).get("after_reload"))
            == (now, after)
        ),
        lambda: json.dumps(gate.status(rig.node).get("access"))[:3000],
    )


def all_of(container: Container) -> tuple[str, ...]:
    """Six device numbers with one GPU, seven with two."""
    return (CTL, UVM, *container.gpus, FUSE, TTY, NULL)


def felt(feel: Feeling, container: Container) -> list[list[bool]]:
    return [feel.changes(device) for device in all_of(container)]


def test_without_gpu_gate_containers_lose_their_devices(rig: Rig) -> None:
    """The fault itself, and with runc 1.1.5 also the one of the missing link."""
    behind = rig.legacy("behind", 1, "c:10:229:rw")
    rig.node.run("simgpu nodes unlink")
    linkless = rig.pod("linkless", 0, "/dev/nvidiactl")
    rig.node.run("simgpu nodes make")
    assert rig.can_all(behind, CTL, FUSE) == rig.can_all(linkless, CTL, NULL) == [True, True]
    rig.take_away(behind)
    lost = [False, False], [rig.suite == "trixie", True]
    gate.until(
        lambda: (rig.can_all(behind, CTL, FUSE), rig.can_all(linkless, CTL, NULL)) == lost,
        lambda: (rig.can_all(behind, CTL, FUSE), rig.can_all(linkless, CTL, NULL)),
    )
    for name in ("behind", "linkless"):
        rig.remove(name)


def test_the_installation_takes_no_device_away(rig: Rig, deb: Path) -> None:
    """Its own daemon-reload is one."""
    rig.node.copy(deb, "/root/gpu-gate.deb")
    container = rig.legacy("install", 1, "c:10:229:rw", "c:4:*:rw")
    with rig.feeling(container, *all_of(container)) as feel:
        assert "default/install-gpu-node install keeps its devices at a daemon-reload" in dpkg(
            rig, "--install", "/root/gpu-gate.deb"
        )
        rig.take_away(container)
        assert felt(feel, container) == [[True]] * 6
    rig.remove("install")


def test_lost_devices_are_restored_and_devices_at_risk_are_kept(rig: Rig) -> None:
    settings(rig, "[Access]\nPrevent=report\n")
    heal = rig.legacy("heal", 2, "c:10:229:rw")
    wait_seen(rig, heal, "allowed", "lost")
    given = (CTL, UVM, *heal.gpus)
    with rig.feeling(heal, *given, FUSE, NULL) as healed:
        rig.take_away(heal)
        gate.until(
            lambda: all(healed.changes(device) == [True, False, True] for device in given),
            lambda: f"{[healed.changes(device) for device in given]}\n{gate.agent_log(rig.node)}",
        )
        wait_seen(rig, heal, "allowed", "allowed")
        settings(rig, "")  # as the package is
        keep = rig.legacy("keep", 2, "c:10:229:rw", "c:4:*:rw")
        wait_seen(rig, keep, "allowed", "allowed")
        with rig.feeling(keep, *all_of(keep)) as kept:
            rig.storm(heal, keep)
            assert felt(kept, keep) == [[True]] * 7, "of any vendor, whole majors too"
        assert [healed.changes(device) for device in given] == [[True, False, True]] * 4
        # Nobody knows that the hook gave it another vendor's device: that is not given back.
        assert (healed.changes(FUSE), healed.changes(NULL)) == ([True, False], [True])
    said = f"default/heal-gpu-node heal had lost /dev/nvidia{heal.gpus[0].rpartition(':')[2]}, "
    assert gate.agent_log(rig.node).count(said) == 1
    others = [f"c:195:{n}" for n in range(8) if f"c:195:{n}" not in keep.gpus]
    assert not any(rig.can_all(keep, *others[:2]))
    rig.remove("heal")
    # A program that is not systemd's denies: what may be done was done, and is not done again and
    # again.
    rig.deny(keep, CTL)
    words = "keep: a device program that is not systemd's denies /dev/nvidiactl"
    gate.until(lambda: words in gate.agent_log(rig.node), lambda: gate.agent_log(rig.node))
    rig.node.systemctl("daemon-reload")
    assert not poll(lambda: gate.agent_log(rig.node).count(words) > 1, 2)
    rig.remove("keep")


def test_other_scopes_are_not_changed(rig: Rig) -> None:
    """Privileged, another vendor's, a tenant who creates a node, a plain service: no grant, no
    entry."""
    rig.node.run("systemd-run --quiet --unit=plain sleep 1000")
    privileged = rig.pod("privileged", security="privileged: true")
    vendor = rig.pod("vendor", legacy="c:10:229:rw")
    tenant = rig.pod("tenant")
    rig.node.run(f"mknod /proc/{tenant.pid}/root/dev/nvidia0 c 195 0")
    lists = [rig.allow_list(one) for one in (vendor, tenant)]
    bystander = rig.legacy("bystander", 1)
    wait_seen(rig, bystander, "allowed", "allowed")
    assert [rig.allow_list(one) for one in (vendor, tenant)] == lists
    assert "/dev/char/10:229" not in lists[0]
    assert (
        rig.allow_list(privileged) == {}
        and rig.node.show(privileged.scope, "DevicePolicy") == "auto"
    )
    assert rig.node.show("plain.service", "DeviceAllow") == ""
    assert [rig.can(privileged, GPU0), rig.can(vendor, FUSE), rig.can(tenant, GPU0)] == [
        True,
        True,
        False,
    ]
    assert not any(seen(rig, one) for one in (privileged, vendor, tenant))


def test_upgrade_and_removal_take_no_device_away(rig: Rig) -> None:
    """With an agent that only reports: the package adds the devices itself."""
    settings(rig, ONLY_SAID)
    container = rig.legacy("upgrade", 1, "c:10:229:rw")
    with rig.feeling(container, *all_of(container)) as feel:
        assert "default/upgrade-gpu-node upgrade keeps" in dpkg(
            rig, "--install", "/root/gpu-gate.deb"
        )
        assert feel.changes(CTL) == feel.changes(FUSE) == [True]
    container = rig.legacy("removal", 1, "c:10:229:rw")
    with rig.feeling(container, CTL, FUSE, *container.gpus) as feel:
        assert "default/removal-gpu-node removal keeps" in dpkg(rig, "--remove", "gpu-gate")
        dpkg(rig, "--purge", "gpu-gate")
        rig.take_away(container)
        assert [feel.changes(device) for device in (CTL, FUSE, *container.gpus)] == [[True]] * 3
