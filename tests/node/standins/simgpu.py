#!/usr/bin/python3
"""GPUs for a node that has none: what the kernel, the driver and NVML would show, changed by
command.

  simgpu plug --gpus 8               hardware, driver, device nodes (see plug --help)
  simgpu unplug                      all of it away again
  simgpu driver load|unload|version V     [--in SECONDS] [--no-nodes]
  simgpu nodes make|remove|link|unlink [NAME…]    device nodes, or only their /dev/char links;
  wildcards allowed
  simgpu lose N [--gone]   simgpu find N          NVML 15 for one GPU; --gone: off the PCI bus, too
  simgpu bind N nvidia|vfio-pci|nouveau|none
  simgpu nvml WORD…                  adds a fault for libnvidia-ml; "ok": none any more; "reset
  WORD…": only this one:
      init=999 for=6 · init=18 · init-delay=500 · count=15 · gpu=3 error=15 · gpu=3 delay=1500 ·
      delay=300
      hang=init|count|handle [gpu=3] [deaf] [for=4] · show=7 · omit=3 · uuid=3:GPU-x · shuffle ·
      shuffle=2
      xid=79 gpu=3 · check-devices=off|on · persistence=off · fabric=STATE:STATUS
      any of them with for=SECONDS | until=BOOTTIME, in=SECONDS | from=BOOTTIME
  simgpu kubelet WORD…               faults of the stand-in kubelet: "podresources=hang" …, "ok":
  none
  simgpu calls                       from now on NVML's callers are written to
  /run/simgpu/nvml.calls
  simgpu kmsg TEXT…                  a line of the kernel's log: /dev/kmsg, a plain file
  simgpu uevent ACTION SUBSYSTEM DEVPATH [KEY=VALUE…]
  simgpu node                        what the stand-in kubelet would tell the API server
  simgpu boot | started SERVICE      runs the lines of /etc/simgpu.conf: those without, or with
  "SERVICE:" before them

With --root DIR everything is plain files below DIR and nothing is mounted.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
import time
from pathlib import Path

from sim import mounts, nvmlscript, uevent
from sim.hardware import Layout, make_gpus

CONF = "etc/simgpu.conf"


def is_running(root: Path) -> bool:
    """A running node gets mounts; a folder gets files."""
    return root == Path("/")


def layout(root: Path) -> Layout:
    return Layout(root, root / "run/simgpu/tree" if is_running(root) else root)


def script(root: Path) -> Path:
    return root / "run/simgpu/nvml"


def write_all(lay: Layout) -> None:
    lay.save()
    lay.write_module()
    lay.write_proc()
    lay.write_pci()
    gpus = [g for g in lay.gpus if g["driver"] == "nvidia" and not g.get("gone")]
    nvmlscript.set_hardware(
        script(lay.root),
        nvmlscript.hardware(gpus, lay.state["driver_version"], lay.state["loaded"]),
    )


def plug(root: Path, args: argparse.Namespace) -> None:
    lay = layout(root)
    if is_running(root) and "/proc/devices" not in mounts.mounted():
        lay.state["real_devices"] = Path("/proc/devices").read_text()
        modules = Path("/proc/modules")  # a kernel without loadable modules has none
        lay.state["real_modules"] = modules.read_text() if modules.exists() else ""
    lay.state["gpus"] = make_gpus(args.gpus)
    for gpu in lay.gpus:
        gpu["driver"] = "" if args.bound == "none" else args.bound
    lay.state["driver_version"] = args.driver_version
    lay.state["loaded"] = not args.no_driver and (args.bound == "nvidia" or args.driver)
    write_all(lay)
    if is_running(root):
        mounts.lay(lay.under)
    if lay.state["loaded"] and not args.no_nodes:
        make_nodes(lay, args)


def make_nodes(lay: Layout, args: argparse.Namespace) -> None:
    lay.make_nodes([], has_links=not args.no_links)
    lay.remove_nodes(args.without) if args.without else None


def unplug(root: Path, args: argparse.Namespace) -> None:
    lay = layout(root)
    lay.remove_nodes([])
    if is_running(root):
        mounts.take_away(lay.under)
    shutil.rmtree(lay.under, ignore_errors=True) if lay.under != root else None
    lay.state_file.unlink(missing_ok=True)
    script(root).unlink(missing_ok=True)


def driver(root: Path, args: argparse.Namespace) -> None:
    if args.after and os.fork():
        return
    if args.after:
        os.setsid()
        time.sleep(args.after)
    lay = layout(root)
    if args.verb == "version":
        # The library on disk is new, the loaded module stays what it was: NVML 18 until a reboot.
        nvmlscript.set_hardware(
            script(root), nvmlscript.hardware(lay.gpus, args.version, lay.state["loaded"])
        )
        nvmlscript.change(script(root), ["init=18"])
        return
    lay.state["loaded"] = args.verb == "load"
    write_all(lay)
    if lay.state["loaded"]:
        print_to_kernel_log(
            root, f"NVRM: loading NVIDIA UNIX x86_64 Kernel Module  {lay.state['driver_version']}"
        )
    if args.verb == "unload":
        lay.remove_nodes([])
    elif not args.no_nodes:
        lay.make_nodes([], has_links=not args.no_links)
    if is_running(root):
        mounts.lay(lay.under)
        announce(lay, "add" if lay.state["loaded"] else "remove")


def print_to_kernel_log(root: Path, text: str) -> None:
    """A record as /dev/kmsg gives it: priority, number, microseconds since the boot without
    suspend. A node of systemd-nspawn has no /dev/kmsg, and gets a plain file."""
    log = root / "dev/kmsg"
    log.parent.mkdir(parents=True, exist_ok=True)
    if log.is_char_device():
        raise ValueError(f"{log} is a kernel's own: nothing is written there")
    with log.open("a") as file:
        file.write(f"4,{file.tell()},{time.monotonic_ns() // 1000},-;{text}\n")


def kmsg(root: Path, args: argparse.Namespace) -> None:
    print_to_kernel_log(root, " ".join(args.words))


def announce(lay: Layout, action: str) -> None:
    uevent.send(action, "module", "/module/nvidia")
    uevent.send(action, "drivers", "/bus/pci/drivers/nvidia")
    for gpu in lay.gpus:
        if gpu["driver"] == "nvidia":
            path = f"/devices/pci0000:00/{gpu['bus']}"
            uevent.send(
                "bind" if action == "add" else "unbind",
                "pci",
                path,
                PCI_SLOT_NAME=gpu["bus"],
                DRIVER="nvidia",
            )


def nodes(root: Path, args: argparse.Namespace) -> None:
    lay = layout(root)
    if args.verb in ("make", "link"):
        lay.make_nodes(args.names, has_links=not args.no_links)
    else:
        lay.remove_nodes(args.names, only_links=args.verb == "unlink")


def lose(root: Path, args: argparse.Namespace) -> None:
    lay = layout(root)
    gpu = next(g for g in lay.gpus if g["index"] == args.gpu)
    if args.command == "find":
        gpu.pop("gone", None)
        fault = f"handle gpu={args.gpu} error=15"
        nvmlscript.write(
            script(root), [line for line in nvmlscript.read(script(root)) if line != fault]
        )
    elif args.gone:
        gpu["gone"] = True
    else:
        nvmlscript.change(script(root), ["error=15", f"gpu={args.gpu}"])
    write_all(lay)
    if is_running(root) and (args.command == "find" or args.gone):
        action = "add" if args.command == "find" else "remove"
        uevent.send(action, "pci", f"/devices/pci0000:00/{gpu['bus']}", PCI_SLOT_NAME=gpu["bus"])


def bind(root: Path, args: argparse.Namespace) -> None:
    lay = layout(root)
    gpu = next(g for g in lay.gpus if g["index"] == args.gpu)
    gpu["driver"] = "" if args.driver == "none" else args.driver
    write_all(lay)
    if is_running(root):
        action = "bind" if gpu["driver"] else "unbind"
        uevent.send(
            action,
            "pci",
            f"/devices/pci0000:00/{gpu['bus']}",
            PCI_SLOT_NAME=gpu["bus"],
            DRIVER=gpu["driver"],
        )


def kubelet(root: Path, args: argparse.Namespace) -> None:
    lines = [word.replace("=", " ", 1) for word in args.words if word != "ok"]
    nvmlscript.write(root / "run/simgpu/kubelet.faults", lines)


def show_node(root: Path, args: argparse.Namespace) -> None:
    print((root / "run/simgpu/kubelet.state").read_text(), end="")


def conf(root: Path, args: argparse.Namespace) -> None:
    service = getattr(args, "service", "")
    path = root / CONF
    for line in path.read_text().splitlines() if path.exists() else []:
        first, _, rest = line.partition(":")
        words = rest if service and first == service else line
        if (
            line.startswith("#")
            or not line.strip()
            or (not service and first.isalnum() and rest)
            or (service and first != service)
        ):
            continue
        run(["--root", str(root), *shlex.split(words)])


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="simgpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    top.add_argument("--root", type=Path, default=Path("/"))
    verbs = top.add_subparsers(dest="command", required=True)

    def verb(name: str, handler) -> argparse.ArgumentParser:
        made = verbs.add_parser(name)
        made.set_defaults(handler=handler)
        return made

    one = verb("plug", plug)
    one.add_argument("--gpus", type=int, default=8)
    one.add_argument("--driver-version", default="550.54.15")
    one.add_argument("--bound", default="nvidia", help="nvidia, vfio-pci, nouveau, none")
    one.add_argument(
        "--driver", action="store_true", help="driver loaded although nothing is bound to it"
    )
    one.add_argument(
        "--no-driver", action="store_true", help="hardware only; driver load comes later"
    )
    one.add_argument("--no-nodes", action="store_true")
    one.add_argument("--no-links", action="store_true", help="no /dev/char links")
    one.add_argument(
        "--without", action="append", default=[], metavar="NAME", help="leave this device node out"
    )
    verb("kmsg", kmsg).add_argument("words", nargs="+")
    verb("unplug", unplug)
    one = verb("driver", driver)
    one.add_argument("verb", choices=("load", "unload", "version"))
    one.add_argument("version", nargs="?", default="550.54.15")
    one.add_argument("--in", dest="after", type=float, default=0.0, help="seconds; returns at once")
    one.add_argument("--no-nodes", action="store_true")
    one.add_argument("--no-links", action="store_true")
    one = verb("nodes", nodes)
    one.add_argument("verb", choices=("make", "remove", "link", "unlink"))
    one.add_argument("names", nargs="*")
    one.add_argument("--no-links", action="store_true")
    for name in ("lose", "find"):
        one = verb(name, lose)
        one.add_argument("gpu", type=int)
        one.add_argument("--gone", action="store_true")
    one = verb("bind", bind)
    one.add_argument("gpu", type=int)
    one.add_argument("driver")
    for name, handler in (
        ("nvml", lambda root, args: nvmlscript.change(script(root), args.words)),
        ("kubelet", kubelet),
        (
            "uevent",
            lambda root, args: uevent.send(
                *args.words[:3], **dict(w.split("=", 1) for w in args.words[3:])
            ),
        ),
    ):
        verb(name, handler).add_argument("words", nargs="+")
    verb("calls", lambda root, args: (root / "run/simgpu/nvml.calls").write_text(""))
    verb("node", show_node)
    verb("boot", conf)
    verb("started", conf).add_argument("service")
    return top


def run(argv: list[str]) -> None:
    args = parser().parse_args(argv)
    args.handler(args.root, args)


def main() -> int:
    try:
        run(sys.argv[1:])
    except (ValueError, OSError) as exc:
        print(f"simgpu: {exc}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
