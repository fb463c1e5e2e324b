"""image-check: a good image and each fault of one, as a folder of files."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.service.commands.image_check import Level, Row, check, numbers
from agent.service.image import Image

from .sandbox import REPO

UNITS = REPO / "systemd"
STATUS = """Package: runc
Status: install ok installed
Version: 1.1.12+ds1-5

Package: nvidia-container-toolkit
Status: install ok installed
Version: 1.18.0-1

Package: gone
Status: deinstall ok config-files
Version: 9
"""


def put(root: Path, path: str, text: str = "") -> None:
    target = root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)


def link(root: Path, path: str, target: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).symlink_to(target)


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """Everything a GPU node wants."""
    units = tmp_path / "usr/lib/systemd/system"
    for name in ("gpu-gate.service", "gpu-gate-wait.service", "gpu-gate.target"):
        put(tmp_path, f"usr/lib/systemd/system/{name}", (UNITS / name).read_text())
    shutil.copytree(UNITS / "kubelet.service.d", units / "kubelet.service.d")
    link(tmp_path, "lib", "usr/lib")
    link(
        tmp_path,
        "etc/systemd/system/multi-user.target.wants/gpu-gate.service",
        "/usr/lib/systemd/system/gpu-gate.service",
    )
    put(tmp_path, "lib/systemd/system/kubelet.service")
    put(tmp_path, "usr/lib/modules/6.1.0-1-amd64/updates/dkms/nvidia.ko.xz")
    put(tmp_path, "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.550.54.15")
    link(tmp_path, "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1", "libnvidia-ml.so.550.54.15")
    put(tmp_path, "usr/bin/nvidia-persistenced")
    put(tmp_path, "usr/bin/nvidia-ctk")
    put(tmp_path, "usr/lib/systemd/system/nvidia-persistenced.service", "[Service]")
    put(
        tmp_path,
        "etc/udev/rules.d/71-nvidia-dev-char.rules",
        "RUN+=nvidia-ctk system create-dev-char-symlinks",
    )
    put(
        tmp_path,
        "etc/kubernetes/manifests/plugin.yaml",
        "image: nvcr.io/nvidia/k8s-device-plugin:v0.17.4\n",
    )
    put(tmp_path, "var/lib/dpkg/status", STATUS)
    put(tmp_path, "etc/machine-id")
    return tmp_path


def worst(image: Path, what: str, sealed: bool = True) -> Level:
    order = [Level.OK, Level.SKIPPED, Level.UNKNOWN, Level.WARNING, Level.FAULT]
    return max(
        (row.level for row in check(Image(str(image)), sealed) if row.what == what), key=order.index
    )


def row(image: Path, what: str) -> Row:
    (found,) = (row for row in check(Image(str(image)), True) if row.what == what)
    return found


def image_check(root: Path, *more: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "agent", "image-check", "--root", str(root), *more]
    return subprocess.run(argv, cwd=REPO, capture_output=True, text=True, timeout=60)


def test_a_good_image_is_0_and_every_row_is_ok(image: Path) -> None:
    done = image_check(image, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert {row["level"] for row in json.loads(done.stdout)["rows"]} == {"ok"}


def test_a_warning_alone_is_4_a_fault_is_1_and_no_folder_2(image: Path) -> None:
    (image / "usr/bin/nvidia-persistenced").unlink()
    assert image_check(image).returncode == 4
    put(image, "etc/machine-id", "0123456789abcdef0123456789abcdef\n")
    done = image_check(image)
    assert done.returncode == 1 and "machine-id    FAULT" in done.stdout
    assert image_check(image / "nothing").returncode == 2


MASK = "etc/systemd/system/gpu-gate-wait.service"
WANTS = "etc/systemd/system/multi-user.target.wants/gpu-gate.service"
DROP_IN = "etc/systemd/system/kubelet.service.d/10-gpu-gate.conf"
META = "var/lib/containerd/io.containerd.metadata.v1.bolt/meta.db"
WRONG: list[tuple[str, str, Level, Callable[[Path], object]]] = [
    (
        "not installed",
        "units",
        Level.FAULT,
        lambda r: (r / "usr/lib/systemd/system/gpu-gate.target").unlink(),
    ),
    ("masked", "units", Level.FAULT, lambda r: link(r, MASK, "/dev/null")),
    ("not enabled", "units", Level.FAULT, lambda r: (r / WANTS).unlink()),
    (
        "switched off",
        "units",
        Level.FAULT,
        lambda r: put(r, "etc/kernel/cmdline", "quiet gpu-gate=off\n"),
    ),
    (
        "a comment is no switch",
        "units",
        Level.OK,
        lambda r: put(r, "etc/default/grub", "# gpu-gate=off\n"),
    ),
    ("drop-in masked", "kubelet", Level.FAULT, lambda r: link(r, DROP_IN, "/dev/null")),
    (
        "drop-in of no use",
        "kubelet",
        Level.FAULT,
        lambda r: put(r, DROP_IN, "[Unit]\nWants=gpu-gate.target\n"),
    ),
    (
        "no kubelet",
        "kubelet",
        Level.WARNING,
        lambda r: (r / "usr/lib/systemd/system/kubelet.service").unlink(),
    ),
    (
        "a kubelet that we bring nothing for",
        "kubelet",
        Level.FAULT,
        lambda r: put(r, "etc/systemd/system/snap.kubelet-eks.daemon.service", "[Service]"),
    ),
    (
        "a control plane",
        "kubelet",
        Level.OK,
        lambda r: put(r, "etc/systemd/system/k3s.service", "[Service]"),
    ),
    (
        "bad setting",
        "settings",
        Level.FAULT,
        lambda r: put(r, "etc/gpu-gate/gpu-gate.conf.d/x.conf", "[Gate]\nDeadlineSec=soon\n"),
    ),
    (
        "library without module",
        "driver",
        Level.FAULT,
        lambda r: shutil.rmtree(r / "usr/lib/modules"),
    ),
    (
        "two drivers",
        "driver",
        Level.FAULT,
        lambda r: put(r, "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.535.1.2"),
    ),
    (
        "old toolkit",
        "toolkit",
        Level.WARNING,
        lambda r: put(r, "var/lib/dpkg/status", STATUS.replace("1.18.0-1", "1.16.2-1")),
    ),
    ("toolkit of no package", "toolkit", Level.UNKNOWN, lambda r: put(r, "var/lib/dpkg/status")),
    (
        "runc",
        "runc",
        Level.WARNING,
        lambda r: put(
            r, "var/lib/dpkg/status", STATUS.replace("1.1.12+ds1-5", "1.1.5+ds1-1+deb12u1")
        ),
    ),
    ("runc of no package", "runc", Level.UNKNOWN, lambda r: put(r, "var/lib/dpkg/status")),
    (
        "CDI spec of the builder",
        "toolkit",
        Level.WARNING,
        lambda r: put(r, "etc/cdi/nvidia.yaml", "{}"),
    ),
    ("no rule", "/dev/char", Level.WARNING, lambda r: shutil.rmtree(r / "etc/udev")),
    (
        "plugin in containerd",
        "plugin",
        Level.WARNING,
        lambda r: put(r, META, "\0nvidia/k8s-device-plugin:v0.9.0\0"),
    ),
    ("ledger", "state", Level.FAULT, lambda r: put(r, "var/lib/gpu-gate/ledger", "{}")),
    (
        "checkpoint",
        "state",
        Level.FAULT,
        lambda r: put(r, "var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"),
    ),
    (
        "dbus's machine-id",
        "machine-id",
        Level.FAULT,
        lambda r: put(r, "var/lib/dbus/machine-id", "0123"),
    ),
    ("first boot", "machine-id", Level.OK, lambda r: put(r, "etc/machine-id", "uninitialized\n")),
]


@pytest.mark.parametrize(
    ("what", "expected", "change"), [w[1:] for w in WRONG], ids=[w[0] for w in WRONG]
)
def test_faults_of_an_image(
    image: Path, what: str, expected: Level, change: Callable[[Path], object]
) -> None:
    change(image)
    assert worst(image, what) is expected


def as_debian_packs_it(image: Path, driver: str) -> str:
    """What nvidia-kernel-dkms and libnvidia-ml1 of Debian's non-free leave; the alternatives'
    link."""
    folder = f"usr/lib/x86_64-linux-gnu/nvidia/{driver}"
    for module in ("", "-uvm", "-modeset"):
        put(image, f"usr/lib/modules/6.1.0-1-amd64/updates/dkms/nvidia-{driver}{module}.ko")
    put(image, f"{folder}/libnvidia-ml.so.535.183.01")
    link(image, f"{folder}/libnvidia-ml.so.1", "libnvidia-ml.so.535.183.01")
    return f"/{folder}/libnvidia-ml.so.1"


def test_a_driver_from_debians_packages_is_recognised(image: Path) -> None:
    assert row(image, "driver").seen == "550.54.15, module for 6.1.0-1-amd64"
    shutil.rmtree(image / "usr/lib/modules")
    for file in (image / "usr/lib/x86_64-linux-gnu").iterdir():
        file.unlink()
    chosen = as_debian_packs_it(image, "current")
    assert row(image, "driver").level is Level.FAULT, "no link leads to the library"
    link(image, "etc/alternatives/nvidia--libnvidia-ml.so.1-x86_64-linux-gnu", chosen)
    link(
        image,
        "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1",
        "/etc/alternatives/nvidia--libnvidia-ml.so.1-x86_64-linux-gnu",
    )
    # A second one beside it is only a choice.
    put(image, "usr/lib/x86_64-linux-gnu/nvidia/tesla-470/libnvidia-ml.so.470.256.02")
    assert row(image, "driver") == Row("driver", Level.OK, "535.183.01, module for 6.1.0-1-amd64")


def test_a_running_machine_has_its_own_state_and_id(image: Path) -> None:
    put(image, "var/lib/gpu-gate/ledger", "{}")
    put(image, "etc/machine-id", "0123")
    assert worst(image, "state", sealed=False) is Level.SKIPPED
    assert worst(image, "machine-id", sealed=False) is Level.SKIPPED


def test_links_are_resolved_inside_the_image(tmp_path: Path) -> None:
    outside, root = tmp_path / "outside", tmp_path / "root"
    put(outside, "secret", "x")
    put(root, "inside", "y")
    link(root, "absolute", f"{outside}/secret")
    link(root, "up", "../outside/secret")
    link(root, "own", "/inside")
    link(root, "loop", "loop")
    image = Image(str(root))
    assert [image.read(name) for name in ("absolute", "up", "own", "loop")] == [
        None,
        None,
        b"y",
        None,
    ]


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("1.1.5+ds1-1+deb12u1", (1, 1, 5)),
        ("1:1.18.0-1", (1, 18, 0)),
        ("v0.9", (0, 9)),
        ("none", ()),
    ],
)
def test_numbers_of_a_version(version: str, expected: tuple[int, ...]) -> None:
    assert numbers(version) == expected
