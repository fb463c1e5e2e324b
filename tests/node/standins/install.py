#!/usr/bin/env python3
"""Puts the stand-ins into a node's tree, or into any folder that is to become one.

    install.py ROOT [--pynvml FILE] [--library FILE] [--no-static-pod] [--no-kubelet]
    [--no-modprobe]

The harness may call onto(node), or copy this folder to /opt/gpu-gate-sim with lib/libnvidia-ml.so.1
and pynvml.py in it, and run `install` there.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
HOME = "opt/gpu-gate-sim"
IS_IN_PLACE = Path("/", HOME) == HERE
REPO = HERE if IS_IN_PLACE else HERE.parents[2]
CACHE = REPO / ".cache" / "standins"
PROGRAMS = (
    "kubelet.py",
    "plugin.py",
    "simgpu.py",
    "simcri.py",
    "persistenced.py",
    "nvidia_modprobe.py",
)
COMMANDS = {
    "simgpu": "simgpu.py",
    "simcri": "simcri.py",
    "kubelet": "kubelet.py",
    "nvidia-persistenced": "persistenced.py",
    "nvidia-modprobe": "nvidia_modprobe.py",
}
UNITS = {
    "sim-gpu.service": "sysinit.target",
    "nvidia-persistenced.service": "multi-user.target",
    "kubelet.service": "multi-user.target",
}
CONF = """\
# One simgpu command a line, run early at boot; after "persistenced:" when nvidia-persistenced starts.
plug --gpus 8
"""


def made_of() -> str:
    """A digest of all that is installed, for the harness's cache."""
    total = hashlib.sha256()
    files = (
        p
        for p in HERE.rglob("*")
        if p.is_file() and "__pycache__" not in p.parts and p.name != "pynvml.py"
    )
    for path in sorted(files):
        total.update(
            f"{path.relative_to(HERE)} {path.stat().st_mode:o}".encode() + path.read_bytes()
        )
    return total.hexdigest()[:12]


def library() -> Path:
    """The stand-in libnvidia-ml.so.1, built once for each state of its source."""
    if IS_IN_PLACE:
        return HERE / "lib/libnvidia-ml.so.1"
    source = b"".join(
        (HERE / "nvml" / name).read_bytes() for name in ("libnvidia-ml.c", "libcuda.c", "build.sh")
    )
    folder = CACHE / f"nvml-{hashlib.sha256(source).hexdigest()[:12]}"
    if not (folder / "libnvidia-ml.so.1").exists():
        subprocess.run([HERE / "nvml/build.sh", folder], check=True)
    return folder / "libnvidia-ml.so.1"


def pynvml() -> Path:
    """nvidia-ml-py's one module, fetched as for the package; never committed."""
    if IS_IN_PLACE:
        return HERE / "pynvml.py"
    folder = CACHE / "pynvml"
    if not (folder / "pynvml.py").exists():
        subprocess.run(
            ["sh", REPO / "packaging/deb/fetch-pynvml", folder, REPO / ".cache/wheels"], check=True
        )
    return folder / "pynvml.py"


def _write(path: Path, source: Path | str, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(source, Path):
        if source != path:
            shutil.copyfile(source, path)
    else:
        path.write_text(source)
    path.chmod(mode)


def _link(path: Path, target: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def install(
    root: Path,
    *,
    static_pod: bool = True,
    kubelet: bool = True,
    modprobe: bool = True,
    library_file: Path | None = None,
    pynvml_file: Path | None = None,
) -> None:
    """Writes files and the links that enable the units; runs nothing of the tree."""
    home = root / HOME
    for name in PROGRAMS:
        _write(home / name, HERE / name, 0o755)
    for path in (HERE / "sim").glob("*.py"):
        _write(home / "sim" / path.name, path)
    for path in (HERE / "manifests").glob("*.yaml"):
        _write(home / "manifests" / path.name, path)
    _link(home / "nvidia-device-plugin", "plugin.py")
    for name, program in COMMANDS.items():
        if name != "nvidia-modprobe" or modprobe:
            _link(root / "usr/bin" / name, f"/{HOME}/{program}")
    _write(home / "pynvml.py", pynvml_file or pynvml())
    multiarch = sysconfig.get_config_var("MULTIARCH") or "x86_64-linux-gnu"
    driver = library_file or library()
    for soname in (driver.name, "libcuda.so.1"):
        _write(root / "usr/lib" / multiarch / soname, driver.with_name(soname))
    _write(root / "etc/simgpu.conf", CONF)
    for unit, target in UNITS.items():
        if unit == "kubelet.service" and not kubelet:
            continue
        _write(root / "usr/lib/systemd/system" / unit, HERE / "units" / unit)
        _link(root / f"etc/systemd/system/{target}.wants" / unit, f"/usr/lib/systemd/system/{unit}")
    (root / "etc/kubernetes/manifests").mkdir(parents=True, exist_ok=True)
    if static_pod:
        _write(
            root / "etc/kubernetes/manifests/nvidia-device-plugin.yaml",
            HERE / "manifests/nvidia-device-plugin.yaml",
        )


def onto(node, **options) -> None:
    """Onto a node of the harness that is not up (its ``copy`` unpacks a folder over the disk)."""
    with tempfile.TemporaryDirectory() as temporary:
        Path(temporary).chmod(0o755)
        install(Path(temporary), **options)
        node.copy(Path(temporary), "/")
    node.run("python3 -m compileall -q /opt/gpu-gate-sim; ldconfig")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("root", type=Path)
    parser.add_argument("--pynvml", type=Path, dest="pynvml_file")
    parser.add_argument("--library", type=Path, dest="library_file")
    parser.add_argument("--no-static-pod", dest="static_pod", action="store_false")
    parser.add_argument("--no-kubelet", dest="kubelet", action="store_false")
    parser.add_argument("--no-modprobe", dest="modprobe", action="store_false")
    options = vars(parser.parse_args())
    install(options.pop("root"), **options)


if __name__ == "__main__":
    main()
