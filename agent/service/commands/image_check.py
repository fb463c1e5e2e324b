"""`gpu-gate image-check [--root DIR]`: will gpu-gate guard a machine that boots from this image?

Reads files only, and for the running system `runc --version`. Changes nothing.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import Enum
from functools import partial

from ...core.common.layouts import CONTROL_PLANE_UNITS, KUBELET_UNITS, manifest_folders
from ...core.common.parse import library_version, module_file
from .. import config as configuration
from ..chain import printable
from ..image import Image

DROP_IN = "10-gpu-gate.conf"
OURS = ("gpu-gate.service", "gpu-gate-wait.service", "gpu-gate.target")
RUNC_FORGETS = ((1, 1, 3), (1, 1, 6))
"""These leave a device out of a scope whose /dev/char link is missing: lost at the next
daemon-reload (runc CHANGELOG, 1.1.7)."""
PLUGIN_SINCE = (0, 16)
"""Before 0.13 one whose start failed has neither file watcher nor signal handlers yet
(k8s-device-plugin main.go)."""
TOOLKIT_SINCE = (1, 18)
"""CDI by default in place of the hook that systemd does not know of (nvidia-container-toolkit 1.18
release notes)."""
PLUGIN_IMAGE = re.compile(rb"(?<![\w./-])[\w./-]*k8s-device-plugin:v?(\d+)\.(\d+)[\w.-]*")
CONTAINERD_NAMES = "var/lib/containerd/io.containerd.metadata.v1.bolt/meta.db"
"""containerd's database; names of images stand in it as they are."""
NAMES_BYTES = 32 << 20
LIBRARIES = ("usr/lib/*", "usr/lib64", "usr/lib")


class Level(str, Enum):
    """What a row means to a build."""

    OK = "ok"
    FAULT = "fault"
    WARNING = "warning"
    UNKNOWN = "unknown"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Row:
    """The result of one check."""

    what: str
    level: Level
    seen: str
    next_step: str = ""


def run(root: str, as_json: bool, sealed: bool) -> int:
    """Print every check. Returns 0 if all are well, 1 with a fault, 4 with a warning or an unknown,
    2 if `root` is not a folder."""
    if not os.path.isdir(root):
        print(
            f"gpu-gate: {root} is not a folder: --root DIR takes an image's unpacked tree",
            file=sys.stderr,
        )
        return 2
    image = Image(os.path.abspath(root))
    rows = list(check(image, sealed or not image.is_running_machine()))
    if as_json:
        print(
            json.dumps(
                {"version": 1, "root": root, "rows": [asdict(row) for row in rows]}, indent=1
            )
        )
    else:
        for row in rows:
            level = row.level.upper() if row.level is Level.FAULT else row.level.value
            print(printable(f"{row.what:<13} {level:<8} {row.seen}"))
            if row.next_step:
                print(printable(f"{'':<22} -> {row.next_step}"))
    levels = {row.level for row in rows}
    return 1 if Level.FAULT in levels else 4 if levels & {Level.WARNING, Level.UNKNOWN} else 0


def check(image: Image, sealed: bool) -> Iterator[Row]:
    """Run every check. `sealed`: machines will boot from it; else it is a running machine with
    state of its own."""
    for name, rows in (
        ("units", units),
        ("kubelet", kubelets),
        ("settings", settings),
        ("driver", driver),
        ("persistenced", persistenced),
        ("toolkit", toolkit),
        ("runc", runc),
        ("/dev/char", dev_char),
        ("plugin", plugin),
        ("state", partial(state, sealed=sealed)),
        ("machine-id", partial(machine_id, sealed=sealed)),
    ):
        try:
            yield from rows(image)
        except OSError as exc:
            yield Row(
                name,
                Level.UNKNOWN,
                f"could not be read ({exc.strerror}: {exc.filename})",
                "run it as root",
            )


def units(image: Image) -> Iterator[Row]:
    missing = [unit for unit in OURS if not image.unit_file(unit)]
    if missing:
        yield Row(
            "units", Level.FAULT, f"{', '.join(missing)} not installed", "install gpu-gate's .deb"
        )
        return
    masked = [unit for unit in OURS if image.is_masked(unit)]
    if masked:
        yield Row(
            "units",
            Level.FAULT,
            f"{', '.join(masked)} masked: no kubelet is held",
            f"systemctl unmask {' '.join(masked)}",
        )
    elif not image.is_enabled(OURS[0]):
        yield Row(
            "units",
            Level.FAULT,
            "gpu-gate.service is not enabled",
            "systemctl enable gpu-gate.service",
        )
    else:
        yield Row("units", Level.OK, "installed, gpu-gate.service enabled")
    for path in ("etc/kernel/cmdline", "etc/default/grub"):
        if re.search(rb"^[^#\n]*\bgpu-gate=off\b", image.read(path) or b"", re.M):
            yield Row(
                "units",
                Level.FAULT,
                f"/{path} has gpu-gate=off: neither agent nor wait will start",
                "remove it, and make the boot entries again",
            )


def kubelets(image: Image) -> Iterator[Row]:
    found = [unit for unit in KUBELET_UNITS if image.unit_file(unit) and not image.is_masked(unit)]
    if not found:
        yield Row(
            "kubelet",
            Level.WARNING,
            "no unit of a kubelet that we know is in the image",
            "fine where it is installed later; else: install --kubelet UNIT",
        )
    for unit in found:
        held = _drop_in(image, unit)
        if held:
            yield Row("kubelet", Level.OK, f"{unit} is held back by {held}")
        elif unit in CONTROL_PLANE_UNITS:
            yield Row(
                "kubelet",
                Level.OK,
                f"{unit} carries a control plane: not held back unless you ask for it",
            )
        else:
            yield Row(
                "kubelet",
                Level.FAULT,
                f"{unit} has no {DROP_IN} in force: it starts without its GPUs",
                f"install --kubelet {unit}; or remove what hides it: "
                f"/etc/systemd/system/{unit}.d/{DROP_IN}",
            )


def _drop_in(image: Image, unit: str) -> str:
    """The drop-in in force; "" if it does not order the kubelet after gpu-gate.target."""
    path = image.unit_file(f"{unit}.d/{DROP_IN}")
    text = (image.read(path) or b"").decode("utf-8", "replace")
    has_order = all(
        re.search(rf"^{key}=.*\bgpu-gate\.target\b", text, re.M) for key in ("Wants", "After")
    )
    return f"/{path}" if has_order else ""


def settings(image: Image) -> Iterator[Row]:
    config = configuration.load(image.root)
    for problem in config.problems:
        yield Row("settings", Level.FAULT if problem.is_error else Level.WARNING, str(problem))
    if not config.problems:
        names = ", ".join(sorted(config.origins)) or "none, defaults in force"
        yield Row("settings", Level.OK, names)


def driver(image: Image) -> Iterator[Row]:
    modules = [
        path
        for path in image.glob(*(f"usr/lib/modules/{'*/' * deep}nvidia*.ko*" for deep in (2, 3, 4)))
        if module_file(f"{path}:".encode())
    ]
    kernels = sorted({path.split("/")[4] for path in modules})
    # Debian keeps each driver's libraries in a folder of its own and links to those of one (its
    # alternatives).
    linked = [
        image.leads_to(path)
        for path in image.glob(*(f"{folder}/libnvidia-ml.so.1" for folder in LIBRARIES))
    ]
    libraries = [
        *image.glob(*(f"{folder}/libnvidia-ml.so.[0-9]*.*" for folder in LIBRARIES)),
        *linked,
    ]
    versions = sorted({library_version(path) for path in libraries} - {""})
    if not modules and not versions:
        yield Row(
            "driver",
            Level.WARNING,
            "no NVIDIA driver in the image",
            "fine where it comes at boot (GPU Operator, cloud-init): such a node is not held",
        )
    elif not modules or not versions:
        there, lacks = (
            ("kernel module", "libnvidia-ml.so.1")
            if modules
            else ("libnvidia-ml.so.1", "kernel module")
        )
        yield Row(
            "driver",
            Level.FAULT,
            f"there is the {there} of the NVIDIA driver, but not its {lacks}",
            "install the whole driver; its module has to be built for the image's kernel",
        )
    elif len(versions) > 1:
        yield Row(
            "driver",
            Level.FAULT,
            f"libraries of several drivers: {', '.join(versions)}",
            "remove the older one",
        )
    else:
        yield Row("driver", Level.OK, f"{versions[0]}, module for {', '.join(kernels)}")


def persistenced(image: Image) -> Iterator[Row]:
    unit = "nvidia-persistenced.service"
    if not image.exists("usr/bin/nvidia-persistenced"):
        yield Row(
            "persistenced",
            Level.WARNING,
            "nvidia-persistenced is not in the image",
            "without it the driver lets go of a GPU that is not in use, and each check wakes it",
        )
    elif not image.unit_file(unit) or image.is_masked(unit):
        yield Row(
            "persistenced",
            Level.WARNING,
            f"{unit} is missing or masked",
            f"systemctl enable {unit}",
        )
    else:
        # Not asked whether it is enabled: Debian and Ubuntu start it by a udev rule.
        yield Row("persistenced", Level.OK, f"installed, with {unit}")


def toolkit(image: Image) -> Iterator[Row]:
    version = image.package("nvidia-container-toolkit") or image.package(
        "nvidia-container-toolkit-base"
    )
    if not version and not image.exists("usr/bin/nvidia-ctk"):
        yield Row(
            "toolkit",
            Level.WARNING,
            "the NVIDIA Container Toolkit is not in the image",
            "fine where the GPU Operator brings it",
        )
    elif not version:
        yield Row(
            "toolkit",
            Level.UNKNOWN,
            "/usr/bin/nvidia-ctk is there; no package records its version",
            "nvidia-ctk --version: 1.18 or later is wanted",
        )
    elif numbers(version)[:2] < TOOLKIT_SINCE:
        yield Row(
            "toolkit",
            Level.WARNING,
            f"{version}: before 1.18 containers get their GPUs by a hook, and a "
            "daemon-reload may take them away",
            "use 1.18 or later, which uses CDI",
        )
    else:
        yield Row("toolkit", Level.OK, version)
    baked = [
        path for path in ("etc/cdi/nvidia.yaml", "var/run/cdi/nvidia.yaml") if image.exists(path)
    ]
    if baked:
        yield Row(
            "toolkit",
            Level.WARNING,
            f"/{baked[0]} is of the machine that built the image",
            f"rm /{baked[0]}",
        )


def runc(image: Image) -> Iterator[Row]:
    version = _runc_version(image) if image.root == "/" else image.package("runc")
    if not version:
        yield Row(
            "runc",
            Level.UNKNOWN,
            "its version could not be learned: no package of that name"
            + ("" if image.root == "/" else "; a foreign image's programs are not run"),
            "runc --version",
        )
    elif RUNC_FORGETS[0] <= numbers(version)[:3] <= RUNC_FORGETS[1]:
        yield Row(
            "runc",
            Level.WARNING,
            f"{version}: 1.1.3 to 1.1.6 forget a device whose /dev/char link is missing "
            "at a daemon-reload",
            "use 1.1.7 or later; until then see /dev/char",
        )
    else:
        yield Row("runc", Level.OK, version)


def _runc_version(image: Image) -> str:
    """The version of runc in PATH. containerd.io contains a runc without a package of its own."""
    try:
        done = subprocess.run(
            ["runc", "--version"], capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return image.package("runc")
    found = re.search(r"^runc version (\S+)", done.stdout, re.M)
    return found[1] if found else image.package("runc")


def dev_char(image: Image) -> Iterator[Row]:
    rules = image.glob(
        "etc/udev/rules.d/*.rules", "usr/lib/udev/rules.d/*.rules", "lib/udev/rules.d/*.rules"
    )
    named = [path for path in rules if b"create-dev-char-symlinks" in (image.read(path) or b"")]
    if named:
        yield Row("/dev/char", Level.OK, f"{named[0]} makes the links as the driver is loaded")
    elif image.exists("usr/bin/nvidia-ctk"):
        yield Row(
            "/dev/char",
            Level.WARNING,
            "no udev rule makes the links: there are none until gpu-gate makes them",
            "run gpu-gate's install script once more, which adds the rule",
        )
    else:
        yield Row(
            "/dev/char",
            Level.SKIPPED,
            "no nvidia-ctk that a rule could call; gpu-gate makes the links",
        )


def plugin(image: Image) -> Iterator[Row]:
    places = [CONTAINERD_NAMES, *image.glob("var/lib/rancher/*/agent/images/*.txt")]
    for folder in manifest_folders(configuration.load(image.root).settings):
        places += image.glob(f"{folder.lstrip('/')}/*.y*ml", f"{folder.lstrip('/')}/*.json")
    found = {
        m[0].decode("ascii", "replace"): (int(m[1]), int(m[2]))
        for path in places
        for m in PLUGIN_IMAGE.finditer(image.read(path, NAMES_BYTES) or b"")
    }
    old = sorted(name for name, version in found.items() if version < PLUGIN_SINCE)
    if old:
        yield Row(
            "plugin",
            Level.WARNING,
            f"{', '.join(old)}: older than 0.16; before 0.13 it does not notice a "
            "kubelet's restart once its own start failed",
            "use 0.16 or later",
        )
    elif found:
        yield Row("plugin", Level.OK, ", ".join(sorted(found)))
    else:
        yield Row(
            "plugin",
            Level.SKIPPED,
            "no list of images or manifest in the image names NVIDIA's device plugin",
        )


def state(image: Image, sealed: bool) -> Iterator[Row]:
    if not sealed:
        yield Row(
            "state",
            Level.SKIPPED,
            "this machine runs, with a state of its own (--sealed: check it)",
        )
        return
    left = image.glob("var/lib/gpu-gate/*")
    checkpoint = "var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"
    if left:
        yield Row(
            "state",
            Level.FAULT,
            f"{', '.join(left)}: what the build machine learned about its own GPUs",
            "rm -r /var/lib/gpu-gate; install --seal does it on a machine that runs",
        )
    elif image.exists(checkpoint):
        yield Row(
            "state",
            Level.FAULT,
            f"/{checkpoint} is of the machine that built the image",
            f"stop the kubelet, then: rm /{checkpoint}",
        )
    else:
        yield Row("state", Level.OK, "nothing learned, no action in the ledger")


def machine_id(image: Image, sealed: bool) -> Iterator[Row]:
    if not sealed:
        yield Row("machine-id", Level.SKIPPED, "this machine runs")
        return
    for path in ("etc/machine-id", "var/lib/dbus/machine-id"):
        found = (image.read(path) or b"").strip()
        if found not in (b"", b"uninitialized"):
            yield Row(
                "machine-id",
                Level.FAULT,
                f"/{path} holds an ID that every node of this image would share",
                f"truncate --size 0 /{path}",
            )
            return
    yield Row("machine-id", Level.OK, "empty: each machine makes its own")


def numbers(version: str) -> tuple[int, ...]:
    """1.1.5 of "1.1.5+ds1-1+deb12u1"; an epoch and what no number begins count for nothing."""
    found = re.match(r"(?:\d+:)?v?(\d+(?:\.\d+)*)", version)
    return tuple(int(part) for part in found[1].split(".")) if found else ()
