"""Link 3: the device nodes under /dev and the links under /dev/char, and what may be added where
they lack.

The driver's character devices get no device model entry, so neither devtmpfs nor udev makes these
(open-gpu-kernel-modules 595, nv.c: register_chrdev_region and cdev_add, no device_create);
nvidia-modprobe does.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...model.actions import Action, LinkDevChar, MakeNodes
from ...model.condition import Condition, Link
from ...model.finding import Finding, Heals, Scope, Verdict
from ...model.reading import Refusal, Seen
from ...model.reason import Reason
from ...model.settings import Settings
from ...model.snapshot import DeviceNode, Gpu, Snapshot
from . import driver
from . import kernel_events as kernel_log
from .inventory import GpuInventory, ProbeAssessment
from .tegra import TEGRA

CONTROL = "/dev/nvidiactl"
CONTROL_MINOR = 255
"of /dev/nvidiactl (open-gpu-kernel-modules, nv-linux.h)"
SHOWN = 4
UVM = ("/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")


def nvidia_majors(snapshot: Snapshot) -> set[int]:
    """Majors of NVIDIA's character devices; only 195 is fixed, the rest is dynamic: read, never
    assumed."""
    if not isinstance(snapshot.hardware.majors, Seen):
        return set()
    return {
        number
        for name, number in snapshot.hardware.majors.value.items()
        if name.startswith(("nvidia", "nvswitch"))
    }


def _uvm_loaded(snapshot: Snapshot) -> bool:
    return (
        isinstance(snapshot.hardware.majors, Seen)
        and "nvidia-uvm" in snapshot.hardware.majors.value
    )


def missing_nodes(snapshot: Snapshot, gpus: Sequence[Gpu]) -> tuple[str, ...]:
    """Device nodes that GPU work needs and that are not there, or carry a major that is not their
    driver's: only 195 is fixed, nvidia-uvm's is another after a load, and what was made before it
    leads nowhere."""
    if not isinstance(snapshot.hardware.nodes, Seen):
        return ("/dev/nvidia*",)
    majors = nvidia_majors(snapshot)
    uvm = (
        snapshot.hardware.majors.value.get("nvidia-uvm")
        if isinstance(snapshot.hardware.majors, Seen)
        else None
    )
    there = {
        n.path
        for n in snapshot.hardware.nodes.value
        if (n.major == uvm if uvm and n.path in UVM else not majors or n.major in majors)
    }
    wanted = [CONTROL, *(UVM if _uvm_loaded(snapshot) else ())]
    wanted += [f"/dev/nvidia{g.minor}" for g in gpus if g.minor >= 0]
    return tuple(path for path in wanted if path not in there)


def _as_found(snapshot: Snapshot, path: str) -> str:
    """A path, with the numbers that it carries where it is there."""
    found = next((n for n in snapshot.hardware.nodes.value_or(()) if n.path == path), None)
    return (
        f"{path} (it is there as {found.major}:{found.minor}, which is not its driver's)"
        if found
        else path
    )


def missing_links(snapshot: Snapshot) -> tuple[tuple[str, str], ...]:
    """(/dev/char name, target) for every NVIDIA device node without its link."""
    if not isinstance(snapshot.hardware.nodes, Seen) or not isinstance(
        snapshot.hardware.char_links, Seen
    ):
        return ()
    majors = nvidia_majors(snapshot)
    links = snapshot.hardware.char_links.value
    wanted = [
        (f"{n.major}:{n.minor}", "../" + n.path.removeprefix("/dev/"))
        for n in snapshot.hardware.nodes.value
        if n.major in majors
    ]
    return tuple(sorted((name, target) for name, target in wanted if name not in links))


def findings(
    snapshot: Snapshot, gpus: GpuInventory, assessment: ProbeAssessment
) -> tuple[Finding, ...]:
    if gpus.scope is Scope.NONE or not driver.is_live(snapshot) or gpus.bound == (TEGRA,):
        return ()
    if isinstance(snapshot.hardware.nodes, Refusal):
        return (
            Finding(
                Link.DEVICE_NODES,
                Condition.DEVICE_NODES,
                Verdict.UNKNOWN,
                f"/dev was not read ({snapshot.hardware.nodes})",
                Reason.DEV_UNREADABLE,
                missing=("/dev/nvidia*",),
                next_step="ls -l /dev/nvidia*",
            ),
        )
    lacking = missing_nodes(snapshot, assessment.gpus)
    if lacking:
        seen = ", ".join(_as_found(snapshot, path) for path in lacking)
        found = [
            Finding(
                Link.DEVICE_NODES,
                Condition.DEVICE_NODES,
                Verdict.FAILS,
                f"missing: {seen}",
                Reason.DEVICE_NODES_MISSING,
                missing=lacking,
                next_step="nvidia-modprobe -c 0 -u; ls -l /dev/nvidia*",
            )
        ]
    else:
        found = [
            Finding(
                Link.DEVICE_NODES,
                Condition.DEVICE_NODES,
                Verdict.HOLDS,
                f"{len(snapshot.hardware.nodes.value)} device nodes under /dev",
            )
        ]
    found += _closed(snapshot.hardware.nodes.value)
    links = missing_links(snapshot)
    if links:
        found.append(
            Finding(
                Link.DEVICE_NODES,
                Condition.DEV_CHAR_LINKS,
                Verdict.FAILS,
                "no /dev/char link for " + ", ".join(name for name, _ in links),
                Reason.DEV_CHAR_LINKS_MISSING,
                missing=tuple(f"/dev/char/{name}" for name, _ in links),
                blocks=False,
                next_step="runc 1.1.3-1.1.6 drops such devices at daemon-reload: nvidia-ctk system "
                "create-dev-char-symlinks --create-all",
            )
        )
    if not _uvm_loaded(snapshot) and isinstance(snapshot.hardware.majors, Seen):
        found.append(_no_uvm(snapshot))
    return tuple(found)


def _closed(nodes: Sequence[DeviceNode]) -> list[Finding]:
    """Device nodes that others than root and a group may not open: the driver's parameters
    NVreg_DeviceFileMode, UID and GID make them so. A container that runs as another user sees no
    GPU."""
    shut = [
        f"{n.path} ({n.mode:04o})"
        for n in nodes
        if n.mode
        and n.mode & 0o006 != 0o006
        and (n.path in (CONTROL, *UVM) or n.path.removeprefix("/dev/nvidia").isdigit())
    ]
    if not shut:
        return []
    more = " …" if len(shut) > SHOWN else ""
    return [
        Finding(
            Link.DEVICE_NODES,
            Condition.DEVICE_NODES_OPEN,
            Verdict.FAILS,
            f"only their owner and group may open {', '.join(shut[:SHOWN])}{more}",
            Reason.DEVICE_NODES_CLOSED,
            blocks=False,
            heals=Heals.CONFIGURATION,
            next_step="if that is not on purpose: grep DeviceFile /proc/driver/nvidia/params; "
            "chmod 666 /dev/nvidia*",
        )
    ]


def _no_uvm(snapshot: Snapshot) -> Finding:
    """CUDA loads it, unless the kernel refuses it: then no CUDA program starts."""
    unfit = kernel_log.unfit(snapshot, is_uvm=True)
    if unfit:
        return Finding(
            Link.DEVICE_NODES,
            Condition.UVM_LOADED,
            Verdict.FAILS,
            f"the kernel refused {unfit.client}, without which no CUDA program starts"
            + kernel_log.cited(snapshot, unfit),
            Reason.UVM_UNFIT,
            missing=UVM,
            heals=Heals.NEVER,
            next_step=f"{driver.REBUILD}; then modprobe nvidia-uvm",
        )
    return Finding(
        Link.DEVICE_NODES,
        Condition.UVM_LOADED,
        Verdict.FAILS,
        "nvidia-uvm is not loaded: CUDA loads it at its first use",
        Reason.UVM_NOT_LOADED,
        missing=UVM,
        blocks=False,
        next_step="nvidia-modprobe -u -c 0",
    )


def additive(
    snapshot: Snapshot, settings: Settings, gpus: GpuInventory, assessment: ProbeAssessment
) -> tuple[Action, ...]:
    """What may be added. Nodes only through nvidia-modprobe and only for modules that are loaded,
    so that asking for a node never loads one."""
    if (
        not settings.additive
        or gpus.scope is not Scope.GPUS
        or not driver.is_live(snapshot)
        or gpus.bound == (TEGRA,)
    ):
        return ()
    actions: list[Action] = []
    lacking = missing_nodes(snapshot, assessment.gpus)
    if lacking and isinstance(snapshot.hardware.nodes, Seen):
        minors = [CONTROL_MINOR] if CONTROL in lacking else []
        minors += [g.minor for g in assessment.gpus if f"/dev/nvidia{g.minor}" in lacking]
        actions.append(MakeNodes(tuple(minors), uvm=any(path in lacking for path in UVM)))
    links = missing_links(snapshot)
    if links:
        actions.append(LinkDevChar(links))
    return tuple(actions)
