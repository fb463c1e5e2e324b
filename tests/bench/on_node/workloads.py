"""A hundred GPU containers as a runtime's systemd driver creates them, and the cost of a
daemon-reload with them.

    workloads.py COUNT ROUNDS      JSON: CPU before and with the containers, reload to verdict,
    `test -r` in each

The scopes are real; who lists them is a CRI service of our own: a hundred shims would say nothing
about the agent.
"""

import json
import os
import subprocess
import sys
import time
from concurrent import futures

sys.path.insert(0, "/usr/share/gpu-gate")
import grpc
from gpu_gate.service import ask
from gpu_gate.transport.protos import cri

COUNT, ROUNDS = int(sys.argv[1]), int(sys.argv[2])
SOCKET = "/run/bench-cri.sock"
DEVICES = (("/dev/char/1:3", "rwm"), ("/dev/char/195:0", "rw"), ("/dev/char/195:255", "rw"))
CGROUP = "/sys/fs/cgroup"
REST_S = 4.0
"""within it the agent has finished its work after a reload, except its second snapshot"""


def container(number):
    """One scope with a process in it: (id, pid, folder of its cgroup)."""
    name = f"{number:064x}"
    scope = f"cri-containerd-{name}.scope"
    allow = [word for path, rights in DEVICES for word in ("-p", f"DeviceAllow={path} {rights}")]
    subprocess.Popen(
        [
            "systemd-run",
            "--quiet",
            "--scope",
            f"--unit={scope}",
            "--slice=kubepods.slice",
            "-p",
            "DevicePolicy=strict",
            *allow,
            "sleep",
            "infinity",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # they outlive whoever reads our output
    folder = f"{CGROUP}/kubepods.slice/{scope}"
    while not os.path.exists(f"{folder}/cgroup.procs") or not (
        pids := open(f"{folder}/cgroup.procs").read().split()
    ):
        time.sleep(0.01)
    return name, int(pids[0]), folder


def serve(containers):
    types = cri()
    pids = {name: pid for name, pid, _ in containers}

    def sandboxes(_request, _context):
        return types["ListPodSandboxResponse"](
            items=[
                {
                    "id": f"s{name}",
                    "metadata": {"name": f"train-{n}", "namespace": "ml", "uid": f"u{n}"},
                }
                for n, name in enumerate(pids)
            ]
        )

    def lists(_request, _context):
        return types["ListContainersResponse"](
            containers=[
                {"id": name, "pod_sandbox_id": f"s{name}", "metadata": {"name": "main"}, "state": 1}
                for name in pids
            ]
        )

    def status(request, _context):
        name = request.container_id
        return types["ContainerStatusResponse"](
            status={"id": name, "state": 1}, info={"info": json.dumps({"pid": pids[name]})}
        )

    methods = {
        name: grpc.unary_unary_rpc_method_handler(
            handler, types[f"{name}Request"].FromString, lambda answer: answer.SerializeToString()
        )
        for name, handler in (
            ("ListPodSandbox", sandboxes),
            ("ListContainers", lists),
            ("ContainerStatus", status),
        )
    }
    server = grpc.server(futures.ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("runtime.v1.RuntimeService", methods),)
    )
    server.add_insecure_port(f"unix://{SOCKET}")
    server.start()
    return server


def cpu_s():
    """Of the agent with all its children, those that are gone too."""
    return int(open(f"{CGROUP}/system.slice/gpu-gate.service/cpu.stat").read().split()[1]) / 1e6


def rows():
    return ask.status()["access"]


def reload():
    """(CPU in s, instant at which systemctl came back)."""
    before = cpu_s()
    subprocess.run(["systemctl", "daemon-reload"], check=True)
    at = time.monotonic()
    time.sleep(REST_S)
    return cpu_s() - before, at


def verdicts(at):
    """Seconds from the reload to the last container's new verdict."""
    seen, now = rows(), time.monotonic()
    stamps = [now - row["age_s"] for row in seen if row["age_s"] is not None]
    if (
        len(stamps) < COUNT
        or min(stamps) < at - 1.0
        or any(row["now"] != "allowed" for row in seen)
    ):
        sys.exit(
            f"{len(stamps)} verdicts, the oldest {now - min(stamps, default=now):.1f} s old: "
            f"{seen[:1]}"
        )
    return max(stamps) - at


def test_in_each(containers):
    """(wall, CPU in s): `test -r` by a process that joins each container's cgroup, as an exec does
    at the least."""
    began, before = time.monotonic(), os.times()
    for _, _, folder in containers:
        subprocess.run(
            ["sh", "-c", f"echo 0 >{folder}/cgroup.procs; test -r /dev/nvidiactl"], check=True
        )
    after = os.times()
    spent = (
        after.children_user - before.children_user + after.children_system - before.children_system
    )
    return time.monotonic() - began, spent


def main():
    bare = [reload()[0] for _ in range(ROUNDS)]
    containers = [container(number) for number in range(1, COUNT + 1)]
    server = serve(containers)
    os.makedirs("/etc/gpu-gate/gpu-gate.conf.d", exist_ok=True)
    with open("/etc/gpu-gate/gpu-gate.conf.d/bench.conf", "w") as file:
        file.write(f"[Plugin]\nRuntimeSocket={SOCKET}\n")
    subprocess.run(
        ["systemctl", "kill", "-s", "HUP", "--kill-whom=main", "gpu-gate.service"], check=True
    )
    ends = time.monotonic() + 60
    while sum(row["age_s"] is not None for row in rows()) < COUNT:
        if time.monotonic() > ends:
            sys.exit(f"the agent does not know the containers: {rows()[:1]}")
        time.sleep(0.5)
    time.sleep(REST_S)
    cpu, wall = [], []
    for _ in range(ROUNDS):
        spent, at = reload()
        cpu.append(spent)
        wall.append(verdicts(at))
    idle, began = cpu_s(), time.monotonic()
    time.sleep(62)
    idle_percent = (cpu_s() - idle) / (time.monotonic() - began) * 100
    by_hand = [test_in_each(containers) for _ in range(min(ROUNDS, 3))]
    server.stop(0)
    print(
        json.dumps(
            {
                "bare_cpu": bare,
                "cpu": cpu,
                "wall": wall,
                "idle_percent": idle_percent,
                "test_wall": [w for w, _ in by_hand],
                "test_cpu": [c for _, c in by_hand],
            }
        )
    )


main()
