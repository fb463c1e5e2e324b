"""Which unit carries a container, by its cgroup's path in every shape."""

from __future__ import annotations

import random

import pytest

from agent.core.access.cgroups import carrier
from agent.model.access import Driver

ID = "0a1b2c3d" * 8
POD = "pod11111111_2222_3333_4444_555555555555"


@pytest.mark.parametrize(
    ("path", "driver", "unit"),
    [
        (
            f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-{POD}.slice/cri-containerd-{ID}.scope",
            Driver.SYSTEMD,
            f"cri-containerd-{ID}.scope",
        ),
        (
            f"/kubepods.slice/kubepods-{POD}.slice/crio-{ID}.scope/container",
            Driver.SYSTEMD,
            f"crio-{ID}.scope",
        ),
        (
            f"/kubepods.slice/kubepods-{POD}.slice/docker-{ID}.scope",
            Driver.SYSTEMD,
            f"docker-{ID}.scope",
        ),
        (f"/machine.slice/libpod-{ID}.scope/container", Driver.SYSTEMD, f"libpod-{ID}.scope"),
        (
            f"/docker/{'9' * 64}/kubepods.slice/kubepods-{POD}.slice/cri-containerd-{ID}.scope",
            Driver.SYSTEMD,
            f"cri-containerd-{ID}.scope",
        ),
        (
            f"/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-{POD}.slice/cri-containerd-{ID}.scope",
            Driver.SYSTEMD,
            f"cri-containerd-{ID}.scope",
        ),
        (
            f"/kubepods.slice/cri-containerd-{ID}.scope/init.scope",
            Driver.SYSTEMD,
            f"cri-containerd-{ID}.scope",
        ),
        (f"/kubepods/burstable/pod11111111-2222-3333-4444-555555555555/{ID}", Driver.CGROUPFS, ""),
        (f"/kubepods/pod11111111-2222-3333-4444-555555555555/{ID}/sub", Driver.CGROUPFS, ""),
        (f"/system.slice/docker-{'9' * 64}.scope/kubepods/pod1/{ID}", Driver.CGROUPFS, ""),
        (f"/system.slice/k3s.service/kubepods/pod1/{ID}", Driver.CGROUPFS, ""),
        ("/", Driver.UNKNOWN, ""),
        ("/../../..", Driver.UNKNOWN, ""),
        (f"/system.slice/docker-{'9' * 64}.scope", Driver.UNKNOWN, ""),
        (f"/x/cri containerd\n{ID}.scope", Driver.CGROUPFS, ""),
    ],
)
def test_every_shape(path: str, driver: Driver, unit: str) -> None:
    assert carrier(ID, path) == (driver, unit)


def test_the_hierarchy_that_systemd_carries_counts() -> None:
    """Hybrid: the devices are on v1, and the v2 path may be the root's."""
    assert carrier(ID, "/", f"/kubepods.slice/cri-containerd-{ID}.scope")[0] is Driver.SYSTEMD
    assert carrier(ID, None, None) == (Driver.UNKNOWN, "")
    assert carrier("", f"/kubepods/{ID}") == (Driver.UNKNOWN, "")


def test_paths_of_every_shape_never_become_fine() -> None:
    """A path that does not name the container is never one that a reload cannot hurt."""
    dice = random.Random(7)
    parts = [
        "kubepods.slice",
        "x.scope",
        ID[:63],
        "..",
        "",
        "\x00",
        "é" * 300,
        "_a",
        "a" * 5000,
        "docker-9.scope",
    ]
    for _ in range(2000):
        path = "/" + "/".join(dice.choice(parts) for _ in range(dice.randrange(8)))
        assert carrier(ID, path) == (Driver.UNKNOWN, "")
