"""Where a container sits, read from its cgroup's path: which unit of systemd carries it, if one
does.

Paths as they are seen (systemd and cgroupfs driver; v1, v2 and hybrid; containerd, CRI-O, Docker,
podman, crun's sub-cgroup, nested nodes of kind and minikube):

    /kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice/cri-containerd-ID.scope
    /kubepods.slice/…/crio-ID.scope/container          crun puts the processes one level below the
    scope
    /kubepods/burstable/pod1-2/ID                      cgroupfs
    /docker/ID/kubepods.slice/…/cri-containerd-ID.scope, /kubelet.slice/kubelet-kubepods.slice/…
    /system.slice/docker-ID.scope/kubepods/pod1/ID     cgroupfs inside somebody else's scope
"""

from __future__ import annotations

import re

from ...model.access import Driver

_UNIT = re.compile(r"[A-Za-z0-9:_.@\\-]{1,240}\.(scope|service|slice)")


def carrier(container_id: str, *paths: str | None) -> tuple[Driver, str]:
    """(driver, unit) by the paths of the hierarchies that govern devices; the unit is "" where none
    carries it.

    The unit is the scope that is named after the container: a scope further up belongs to somebody
    else.
    """
    found = [_carrier(container_id, path) for path in paths if path]
    for wanted in (Driver.SYSTEMD, Driver.CGROUPFS):
        for driver, unit in found:
            if driver is wanted:
                return driver, unit
    return Driver.UNKNOWN, ""


def _carrier(container_id: str, path: str) -> tuple[Driver, str]:
    parts = [part.removeprefix("_") for part in path.split("/") if part]
    named = next((part for part in parts if container_id and container_id in part), "")
    if named.endswith(".scope") and _UNIT.fullmatch(named):
        return Driver.SYSTEMD, named
    if named:
        return Driver.CGROUPFS, ""
    # A path that does not name it (a sub-cgroup of a cgroup namespace, another runtime's habit)
    # tells nothing.
    return Driver.UNKNOWN, ""
