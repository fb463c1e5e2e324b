"""A case's lines as a node: eight healthy registered GPUs, and the changes of the lines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

from agent.model.access import Allocation, Device, Sighting
from agent.model.diagnostics import CudaReport, JournalLine
from agent.model.gpu import GpuState, MigDevice
from agent.model.kernel import KernelLine
from agent.model.reading import Reading, Refusal, Seen, Why
from agent.model.runtime import Container, ContainerDetail, ContainerState, Runtime, Sandbox
from agent.model.settings import Settings
from agent.model.snapshot import Devices, Entry, NvmlError, ProbeEnd, ProbeState, Remains, Unit

from .casehost import CaseHost
from .casepods import GIVEN_TO_ALL, governed
from .node import BOOTTIME, BUSES, DRIVER, UUIDS

REALTIME = 1_795_950_000.0
PLUGIN_ID, POD_ID = "a1" * 32, "5d" * 32
FOLDER = "/var/lib/kubelet/device-plugins"
PCI, PROC = "/sys/bus/pci/devices", "/proc/driver/nvidia"
LOG = "/var/log/pods/plugin/0.log"
WELL = (
    "I0627 10:12:48.000000       1 server.go:147] Starting to serve 'nvidia.com/gpu' on "
    f"{FOLDER}/nvidia-gpu.sock",
    "I0627 10:12:48.000000       1 server.go:154] Registered device plugin for "
    "'nvidia.com/gpu' with Kubelet",
)


class CaseNode(CaseHost):
    """Built line by line: do_WORD(the rest of the line)."""

    def __init__(self, lines: Sequence[tuple[str, str]]) -> None:
        super().__init__(REALTIME)
        self.settings = Settings()
        self.access_is = "yes"
        self.specs: dict[str, bytes] = {}
        self.gone: list[str] = []
        self.socket = "/run/containerd/containerd.sock"
        self.silent: Reading[Runtime] | None = None
        self.log: list[tuple[str, str]] = []
        self.pods: list[Sandbox] = []
        self.running: list[Container] = []
        self.plugin: dict[str, Any] = {
            "image": "nvcr.io/nvidia/k8s-device-plugin:v0.17.1",
            "started": 100.0,
            "name": "nvidia-device-plugin-ctr",
            "state": "running",
            "env": {},
            "labels": {"name": "nvidia-device-plugin-ds"},
            "notes": {},
        }
        self.nvml()
        self.do_listed("all")
        self.do_checkpoint("8")
        self.do_kubelet("50")
        self.do_sock("kubelet.sock 51")
        self.do_sock("nvidia-gpu.sock 101")
        for word, rest in lines:
            getattr(self, f"do_{word.replace('-', '_')}")(rest)
        self._plugin()
        self.runtimes[self.socket] = self.silent or Seen(
            Runtime(tuple(self.pods), tuple(self.running)), BOOTTIME
        )

    async def document(self, path: str, limit: int = 1 << 20) -> Reading[bytes]:
        return Seen(self.specs[path], BOOTTIME) if path in self.specs else self._none(path)

    async def absent(self, paths: Sequence[str]) -> Reading[tuple[str, ...]]:
        return Seen(tuple(p for p in paths if p in self.gone), BOOTTIME)

    # --- links 1 to 5

    def do_pci(self, rest: str) -> None:
        """none | absent N… | driver NAME N…: without one where the name is - | switch BUS: an
        NVSwitch there."""
        what, *words = rest.split()
        if what == "switch":
            self.folders[PCI] += (Entry(words[0], "link"),)
            self.files |= {
                f"{PCI}/{words[0]}/vendor": b"0x10de\n",
                f"{PCI}/{words[0]}/class": b"0x068000\n",
            }
            self.folders[f"{PCI}/{words[0]}"] = (
                Entry("driver", "link", target="../../bus/pci/drivers/nvidia"),
            )
            return
        gone = BUSES if what == "none" else tuple(BUSES[int(n)] for n in words if n.isdigit())
        if what == "driver":
            link = Entry("driver", "link", target=f"../../../bus/pci/drivers/{words[0]}")
            self.folders |= {f"{PCI}/{b}": () if words[0] == "-" else (link,) for b in gone}
        else:
            self.folders[PCI] = tuple(e for e in self.folders[PCI] if e.name not in gone)
        self._without(gone)

    def do_driver(self, rest: str) -> None:
        """none | PATH of a module that is installed and not loaded."""
        for path in (f"{PROC}/version", "/sys/module/nvidia/initstate"):
            self.files.pop(path)
        self.files |= {
            "/proc/devices": b"Character devices:\n  1 mem\n",
            "/proc/sys/kernel/osrelease": b"5.10.134\n",
            "/lib/modules/5.10.134/modules.dep": b"" if rest == "none" else f"{rest}:\n".encode(),
        }
        self.folders |= {"/dev": (), "/dev/char": ()}
        self.folders.pop(f"{PROC}/gpus")
        self.probed = Seen(ProbeState(), BOOTTIME)

    def do_dkms(self, rest: str) -> None:
        """MODULE VERSION: what dkms has, and does not build now."""
        module, version = rest.split()
        self.folders |= {
            "/var/lib/dkms": (Entry(module, "dir"),),
            f"/var/lib/dkms/{module}": (
                Entry(version, "dir"),
                Entry("kernel-5.10.1-x86_64", "link"),
            ),
            f"/var/lib/dkms/{module}/{version}": (Entry("source", "link"),),
        }

    def do_nvml(self, rest: str) -> None:
        """init CODE | absent N… | error CODE N | lost N | hung STATE | state NAME=VALUE [N…] | mig
        PROFILE COUNT [N…]."""
        what, *words = rest.split()
        assert isinstance(self.probed, Seen)
        last = self.probed.value.last
        assert last is not None
        remains = None
        if what == "init":
            self.nvml(int(words[0]))
            return
        if what == "hung":
            last = replace(
                last, end=ProbeEnd.HUNG, gpus=(), detail=f"pid 4242, state {words[0]}, in nv_open"
            )
            remains = Remains(4242, words[0], "nv_open", BOOTTIME - 90) if words[0] == "D" else None
        elif what == "mig":
            profile, count, *words = words
            which = [int(n) for n in words] or range(8)
            last = replace(
                last,
                gpus=tuple(
                    replace(
                        g,
                        state=GpuState(
                            mig=True,
                            mig_devices=tuple(
                                MigDevice(f"MIG-{g.minor}{n}", profile, n + 1, 0)
                                for n in range(int(count))
                            ),
                        ),
                    )
                    if g.minor in which
                    else g
                    for g in last.gpus
                ),
            )
        elif what == "state":
            key, _, value = words[0].partition("=")
            plain = int(value) if value.isdigit() else value.replace("-", " ")
            parts: dict[str, Any] = {key: {"yes": True, "no": False}.get(value, plain)}
            said = GpuState(**parts)
            which = [int(n) for n in words[1:]] or range(8)
            last = replace(
                last,
                gpus=tuple(replace(g, state=said) if g.minor in which else g for g in last.gpus),
            )
        else:
            gone = [int(n) for n in words[-1 if what in ("lost", "error") else 0 :]]
            codes = {"lost": 15, "error": int(words[0])}
            errors = (
                tuple(
                    NvmlError(codes[what], "nvmlDeviceGetHandleByIndex", n, BUSES[n]) for n in gone
                )
                if what in codes
                else ()
            )
            last = replace(
                last, errors=errors, gpus=tuple(g for g in last.gpus if g.minor not in gone)
            )
        self.probed = Seen(ProbeState(last, remains=remains), BOOTTIME)

    def _without(self, gone: Sequence[str]) -> None:
        """GPUs with another driver, or with none: the nvidia driver shows none of them."""
        self.folders[f"{PROC}/gpus"] = tuple(
            e for e in self.folders[f"{PROC}/gpus"] if e.name not in gone
        )
        missing = {f"nvidia{BUSES.index(b)}" for b in gone}
        self.folders["/dev"] = tuple(e for e in self.folders["/dev"] if e.name not in missing)
        self.do_nvml("absent " + " ".join(str(BUSES.index(b)) for b in gone))

    def do_dev(self, rest: str) -> None:
        """NAME - | NAME MAJOR:MINOR [MODE]: a device node that is not there, or is another."""
        name, numbers, *mode = rest.split()
        self.folders["/dev"] = tuple(e for e in self.folders["/dev"] if e.name != name)
        if numbers != "-":
            major, minor = map(int, numbers.split(":"))
            self.folders["/dev"] += (
                Entry(name, "char", major, minor, int(mode[0], 8) if mode else 0o666),
            )

    def do_cuda(self, rest: str) -> None:
        code = int(rest)
        self.said = Seen(
            CudaReport("cuInit" if code else "cuDeviceGetCount", code, 0 if code else 8), BOOTTIME
        )

    def do_kernel(self, rest: str) -> None:
        at, _, text = rest.partition(" ")
        self.kernel.append(KernelLine(float(at), text.replace("\\n", "\n")))

    # --- links 7, 9 and 10

    def do_journal(self, rest: str) -> None:
        at, source, text = rest.split(" ", 2)
        self.lines.append(JournalLine(float(at), source, text))

    def do_reload(self, rest: str) -> None:
        self.reload_at = float(rest)

    def do_asked(self, rest: str) -> None:
        """Time and requester of that reload, from systemd's own log."""
        at, _, who = rest.partition(" ")
        self.asked.append((float(at), who))

    def do_unit(self, rest: str) -> None:
        name, state, *since = rest.split()
        self.active[name] = Unit(
            name,
            "loaded",
            state,
            "running" if state == "active" else state,
            "d" * 32,
            float(since[0]) if since else 10.0,
            "enabled",
        )

    def do_kubelet(self, rest: str) -> None:
        """When it was started | inactive | UNIT that carries it | none."""
        if rest == "none" or rest.endswith(".service"):
            del self.active["kubelet.service"]
        if rest.endswith(".service"):
            self.unit(rest, since=50.0)
        elif rest != "none":
            self.unit(
                "kubelet.service",
                rest != "inactive",
                50.0 if rest == "inactive" else float(rest),
                "c" * 32,
            )

    def do_sock(self, rest: str) -> None:
        """A name in the kubelet's folder, and when it was made; -: it is not there."""
        name, at = rest.split()
        if at == "-":
            self.folders[FOLDER] = tuple(e for e in self.folders[FOLDER] if e.name != name)
            return
        others = tuple(e for e in self.folders.get(FOLDER, ()) if e.name != name)
        made = Entry(
            name,
            "socket" if name.endswith(".sock") else "file",
            mtime=REALTIME - BOOTTIME + float(at),
        )
        self.folders[FOLDER] = (*others, made)

    def do_listed(self, rest: str) -> None:
        """all | none | silent | refused WHY WORDS | N… [as RESOURCE] [xREPLICAS] | ids ID…: the
        kubelet's list."""
        words, _, resource = rest.partition(" as ")
        if words == "silent":
            self.listed = Refusal(Why.TIMED_OUT, "1.2 s")
            return
        if words.startswith("refused "):
            _, why, detail = words.split(" ", 2)
            self.listed = Refusal(Why(why), detail)
            return
        if words.startswith("ids "):
            ids = words.split()[1:]
        else:
            of = [w for w in words.split() if w.isdigit()]
            ids = [] if words == "none" else [UUIDS[int(n)] for n in of or range(8)]
            copies = next((int(w[1:]) for w in words.split() if w[0] == "x"), 0)
            ids = [f"{i}::{n}" for i in ids for n in range(copies)] if copies else ids
        self.listed = Seen(
            (Devices(resource or "nvidia.com/gpu", tuple(ids)),) if ids else (), BOOTTIME
        )

    def do_checkpoint(self, rest: str) -> None:
        """none | how many GPUs it names | the file."""
        names = ",".join(f'"{u}"' for u in UUIDS[: int(rest)]) if rest.isdigit() else ""
        text = (
            f'{{"Data":{{"RegisteredDevices":{{"nvidia.com/gpu":[{names}]}}}},"Checksum":1}}'
            if names
            else rest
        )
        self.files.pop(f"{FOLDER}/kubelet_internal_checkpoint", None)
        if rest != "none":
            self.files[f"{FOLDER}/kubelet_internal_checkpoint"] = text.encode()

    # --- link 8

    def do_plugin(self, rest: str) -> None:
        """none | second | static | image, name, state, started VALUE | stamp, logged VALUE: when it
        was started and
        when it wrote, by the clock of then | env, label NAME=VALUE | access yes, no, unknown, or
        risk: until the next
        reload | unmade: its pod is here without it | args, mounts WORD… | attempt N | exit STATUS
        [REASON] |
        process S, D, T, frozen [PID of who traces it]."""
        what, _, value = rest.partition(" ")
        if what in ("env", "label", "note"):
            key, _, text = value.partition("=")
            kept = {"env": "env", "label": "labels", "note": "notes"}[what]
            self.plugin[kept] = {**({} if what == "label" else self.plugin[kept]), key: text}
        elif what == "static":
            self.plugin["notes"] = {"kubernetes.io/config.source": "file"}
            self.folders["/etc/kubernetes/manifests"] = (Entry("plugin.yaml", "file"),)
            self.files["/etc/kubernetes/manifests/plugin.yaml"] = (
                b"metadata:\n  name: nvidia-device-plugin\n"
            )
        elif what == "access":
            self.access_is = value
        elif what in ("args", "mounts"):
            self.plugin[what] = tuple(value.split())
        elif what == "exit":
            status, _, reason = value.partition(" ")
            self.plugin |= {"state": "exited", "exit": int(status), "reason": reason}
        elif what == "attempt":
            self.plugin[what] = int(value)
        elif what == "process":
            state, tracer = f"{value} 0".split()[:2]
            self.files["/proc/4711/status"] = (
                f"Name:\tnvidia\nState:\t{state}\nTracerPid:\t{tracer}\n".encode()
            )
            scope = f"/sys/fs/cgroup/kubepods.slice/pod1.slice/cri-containerd-{PLUGIN_ID}.scope"
            self.files[f"{scope}/cgroup.events"] = (
                f"populated 1\nfrozen {int(state == 'frozen')}\n".encode()
            )
        else:
            self.plugin[what] = (
                float(value) if what in ("started", "stamp", "logged") else value or True
            )

    def do_log(self, rest: str) -> None:
        """A line of its log, as it wrote it."""
        self.log.append(("", rest))

    def do_kept(self, rest: str) -> None:
        """The same, as the runtime keeps it."""
        self.log.append((rest, ""))

    def _plugin(self) -> None:
        if "none" in self.plugin:
            return
        self._container(PLUGIN_ID, POD_ID)
        if "unmade" in self.plugin:
            self.running = [c for c in self.running if c.id != PLUGIN_ID]
            return
        if "second" in self.plugin:
            self._container("b2" * 32, "6e" * 32, "7d1c")
        logged = datetime.fromtimestamp(
            REALTIME - BOOTTIME + self.plugin.get("logged", 101.0), timezone.utc
        )
        stamp = f"{logged:%Y-%m-%dT%H:%M:%S}.000000000Z stderr F "
        log = self.log or [("", line) for line in WELL]
        self.files[LOG] = "".join(f"{kept or stamp + line}\n" for kept, line in log).encode()
        if self.access_is != "unknown" and self.plugin["state"] == "running":
            self.may_open = self.access_is != "no"
            self._governed(
                PLUGIN_ID,
                4711,
                GIVEN_TO_ALL if self.may_open else (),
                GIVEN_TO_ALL if self.access_is == "yes" else (),
                started=self.plugin["started"],
            )

    def _container(self, container_id: str, pod: str, uid: str = "9b2e") -> None:
        of, at = self.plugin, REALTIME - BOOTTIME + self.plugin.get("stamp", self.plugin["started"])
        self.pods.append(
            Sandbox(
                pod,
                "nvidia-device-plugin-node-1",
                "kube-system",
                uid,
                0,
                True,
                at - 1,
                of["labels"],
                of["notes"],
            )
        )
        box = Container(
            container_id,
            pod,
            of["name"],
            of.get("attempt", 0),
            of["image"],
            ContainerState(of["state"]),
            at,
            {"io.kubernetes.pod.uid": uid},
        )
        self.running.append(box)
        self.details[container_id] = ContainerDetail(
            container_id,
            box.state,
            0.0 if of["state"] == "created" else at,
            at + 5 if of["state"] == "exited" else 0.0,
            of.get("exit", 0),
            of.get("reason", ""),
            of["image"],
            LOG,
            4711 if of["state"] == "running" else 0,
            of.get("args", ()),
            of["env"],
            mounts=of.get("mounts", ()),
        )

    def do_beside(self, rest: str) -> None:
        """NAME STATE IMAGE: another container of the plugin's pod."""
        name, state, image = rest.split()
        self.running.append(
            Container(
                f"{len(self.running) + 0xC0:02x}" * 32,
                POD_ID,
                name,
                0,
                image,
                ContainerState(state),
                REALTIME - 100,
                {"io.kubernetes.pod.uid": "9b2e"},
            )
        )

    # --- link 12

    def do_pod(self, rest: str) -> None:
        """NAME N ok | risk | lost reload, update, never | unread [cgroupfs] [seen T]: GPU N was
        allocated to it."""
        name, minor, now, *words = rest.split()
        container_id = f"{len(self.pods) + 1:02x}" * 32
        self.pods.append(Sandbox(f"pod-{name}", name, "ml", name, 0, True, REALTIME, {}, {}))
        self.running.append(
            Container(
                container_id,
                f"pod-{name}",
                "main",
                0,
                "registry/train:1",
                ContainerState.RUNNING,
                REALTIME,
                {},
            )
        )
        self.rows.append(Allocation("ml", name, "main", "nvidia.com/gpu", (UUIDS[int(minor)],)))
        given = (Device("c", 195, int(minor)), *GIVEN_TO_ALL)
        named = given if now == "ok" else ()
        self._governed(
            container_id,
            5000 + len(self.pods),
            () if now == "lost" else given,
            named,
            "cgroupfs" in words,
            now != "unread",
        )
        if "reload" in words or "update" in words:
            at = self.reload_at if "reload" in words else 20.0
            self.sightings += [
                Sighting(container_id, d, BOOTTIME - 600, BOOTTIME - 100, at) for d in given
            ]

    def _governed(
        self,
        container_id: str,
        pid: int,
        allowed: Sequence[Device],
        named: Sequence[Device],
        cgroupfs: bool = False,
        is_read: bool = True,
        started: float = 0.99,
    ) -> None:
        process, verdict, scope = governed(
            container_id, pid, allowed, named, cgroupfs, is_read, started
        )
        self.process.append(process)
        self.verdicts.append(verdict)
        self.scopes.append(scope)

    # --- whatever else

    def do_cdi(self, rest: str) -> None:
        """FILE NAME… [KIND] [driver VERSION] [lacks PATH]: a CDI spec with these devices, and a
        file of that driver."""
        path, *words = rest.split()
        driver = words[words.index("driver") + 1] if "driver" in words else DRIVER
        lacks = words[words.index("lacks") + 1 :] if "lacks" in words else []
        names = words[
            : min((words.index(w) for w in ("driver", "lacks") if w in words), default=len(words))
        ]
        kind = next((w for w in names if "/" in w), "nvidia.com/gpu")
        folder, _, name = path.rpartition("/")
        self.folders[folder] = (*self.folders.get(folder, ()), Entry(name, "file"))
        edits = {"deviceNodes": [{"path": "/dev/nvidia0"}]}
        self.specs[path] = json.dumps(
            {
                "cdiVersion": "0.5.0",
                "kind": kind,
                "devices": [{"name": n, "containerEdits": edits} for n in names if n != kind],
                "containerEdits": {"mounts": [{"hostPath": f"/usr/lib64/libcuda.so.{driver}"}]},
            }
        ).encode()
        self.gone += lacks

    def do_file(self, rest: str) -> None:
        path, _, text = rest.partition(" ")
        self.files[path] = text.replace("\\n", "\n").encode()

    def do_runtime(self, rest: str) -> None:
        """silent | failed WORDS | the socket that answers."""
        if rest == "silent":
            self.silent = Refusal(Why.TIMED_OUT, "1.2 s")
        elif rest.startswith("failed "):
            self.silent = Refusal(Why.FAILED, rest.removeprefix("failed "))
        else:
            self.socket = rest

    def do_dra(self, rest: str) -> None:
        self.folders[rest] = (Entry("dra.sock", "socket"),)

    def do_set(self, rest: str) -> None:
        name, _, value = rest.partition(" ")
        old = getattr(self.settings, name)
        self.settings = replace(
            self.settings, **{name: tuple(value.split()) if isinstance(old, tuple) else value}
        )
