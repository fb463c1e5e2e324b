"""The access program against real device programs: systemd's, runc's, and others in addition."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import tree
from nspawn import Node
from remains import hierarchies, poll

REPO = Path(__file__).resolve().parents[2]
PROBE = "python3 -I -S /opt/probe/gpu_gate/host/access/access_program.py"
CTL, GPU0, NULL = "/dev/nvidiactl", "c:195:0", "c:1:3"

# What a legacy hook and others do behind the runtime: programs of one's own on a container's
# cgroup.
#   program.py CGROUP deny MAJOR MINOR      one more program, which denies this node
#   program.py CGROUP allow                 this cgroup's own programs, replaced by one that allows all
# include/uapi/linux/bpf.h: struct bpf_insn, struct bpf_cgroup_dev_ctx {access_type, major, minor}.
PROGRAM = r"""
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
NUMBER = {"x86_64": 321, "aarch64": 280}[os.uname().machine]
def bpf(command, form, *words):
    attr = ctypes.create_string_buffer(struct.pack(form, *words), 128)
    done = libc.syscall(ctypes.c_long(NUMBER), ctypes.c_long(command), attr, ctypes.c_long(128))
    assert done >= 0, (command, os.strerror(ctypes.get_errno()))
    return done, attr
def insn(code, dst=0, src=0, off=0, imm=0):
    return struct.pack("=BBhi", code, dst | src << 4, off, imm)
ALLOW = insn(0xb7, 0, imm=1) + insn(0x95)
def deny(major, minor):
    return (insn(0x61, 2, 1, 4) + insn(0x55, 2, off=4, imm=major) + insn(0x61, 2, 1, 8)
            + insn(0x55, 2, off=2, imm=minor) + insn(0xb7, 0, imm=0) + insn(0x95) + ALLOW)
def load(text):
    code, gpl = ctypes.create_string_buffer(text), ctypes.create_string_buffer(b"GPL")
    return bpf(5, "=IIQQ", 15, len(text) // 8, ctypes.addressof(code), ctypes.addressof(gpl))[0]
cgroup = os.open(sys.argv[1], os.O_RDONLY)
if sys.argv[2] == "deny":
    bpf(8, "=IIII", cgroup, load(deny(int(sys.argv[3]), int(sys.argv[4]))), 6, 2)
else:
    ids = (ctypes.c_uint32 * 64)()
    count = struct.unpack_from("=I", bpf(16, "=IIIIQI", cgroup, 6, 0, 0, ctypes.addressof(ids), 64)[1], 24)[0]
    for number in ids[:count]:
        bpf(9, "=III", cgroup, bpf(13, "=I", number)[0], 6)
    bpf(8, "=IIII", cgroup, load(ALLOW), 6, 2)
"""


def prepare(node: Node) -> Node:
    node.copy(REPO / "agent", "/opt/probe/gpu_gate")
    node.put("/opt/probe/program.py", PROGRAM)
    node.run(f"test -e {CTL} || mknod {CTL} c 195 255")
    return node


@pytest.fixture(scope="module", params=tree.SUITES)
def node(request, make_module_node) -> Node:
    return prepare(make_module_node(request.param, deb=False, standins=False))


def ask(node: Node, pid: object, *devices: str, by: str = "", check: bool = True) -> dict:
    """The program's answer; `by` is a command prefix, such as systemd-run with a sandbox."""
    done = node.run(f"{by} {PROBE} --pid {pid} {' '.join(devices)}", check=check)
    assert done.stderr == ""
    return json.loads(done.stdout)


def accesses(node: Node, pid: object, *devices: str, by: str = "") -> list[str]:
    return [answer["access"] for answer in ask(node, pid, *devices, by=by)["answers"]]


@contextlib.contextmanager
def scope(node: Node, *properties: str) -> Iterator[tuple[int, str]]:
    """A scope such as runc's systemd driver makes: (pid, folder of its cgroup)."""
    unit = f"cri-containerd-{os.urandom(4).hex()}.scope"
    words = [
        "systemd-run",
        "--quiet",
        "--scope",
        f"--unit={unit}",
        *(f"--property={p}" for p in properties),
    ]
    with node.spawn([*words, "sh", "-c", "echo $$; exec sleep 1000"]) as sleeper:
        assert sleeper.stdout is not None
        pid = int(sleeper.stdout.readline())
        try:
            yield pid, f"/sys/fs/cgroup{node.show(unit, 'ControlGroup')}"
        finally:
            node.systemctl("kill", "--signal=KILL", unit, check=False)


def leftovers(node: Node) -> str:
    return node.run("find /sys/fs/cgroup /run -name 'gpu-gate-access-*'", check=False).stdout


STRICT = "DevicePolicy=strict", "DeviceAllow=/dev/null rw"


@pytest.mark.parametrize(
    ("properties", "wanted"),
    [
        (STRICT, "denied denied allowed"),
        ((*STRICT, "DeviceAllow=/dev/char/195:255 rw"), "allowed denied allowed"),
        ((*STRICT, "DeviceAllow=/dev/char/195:255 r"), "denied denied allowed"),
        ((*STRICT, "DeviceAllow=/dev/char/195:255 m"), "denied denied allowed"),
        (("DevicePolicy=closed",), "denied denied allowed"),
        (("DevicePolicy=closed", "DeviceAllow=/dev/char/195:0 rwm"), "denied allowed allowed"),
        (("DevicePolicy=auto",), "allowed allowed allowed"),
    ],
)
def test_systemd_policies(node: Node, properties: tuple[str, ...], wanted: str) -> None:
    with scope(node, *properties) as (pid, _):
        assert accesses(node, pid, CTL, GPU0, NULL) == wanted.split()
        # and as a service asks, which is what the agent is
        assert (
            accesses(node, pid, CTL, GPU0, NULL, by="systemd-run --quiet --pipe --wait")
            == wanted.split()
        )
    assert leftovers(node) == ""


def test_the_answer_equals_what_the_process_itself_gets(node: Node) -> None:
    with scope(node, *STRICT) as (pid, cgroup):
        inside = f'sh -c \'echo $$ >{cgroup}/cgroup.procs; exec python3 -c "open(\\"{CTL}\\")"\''
        assert "Operation not permitted" in node.run(inside, check=False).stderr
        answer = ask(node, pid, CTL)
        assert answer["cgroup"] == cgroup.removeprefix("/sys/fs/cgroup")
        assert (answer["v"], answer["pid"], answer["version"], answer["way"]) == (
            1,
            pid,
            "v2",
            "scratch",
        )
        (one,) = answer["answers"]
        assert (one["access"], one["errno"], one["major"], one["minor"]) == ("denied", 1, 195, 255)


def test_every_level_must_allow(node: Node) -> None:
    """crun's sub-cgroup, and a slice that denies above a scope that does not."""
    with scope(node, *STRICT) as (pid, cgroup):
        node.run(f"mkdir {cgroup}/container; echo {pid} >{cgroup}/container/cgroup.procs")
        assert ask(node, pid, CTL)["cgroup"].endswith(".scope/container")
        assert accesses(node, pid, CTL, NULL) == ["denied", "allowed"]
    with scope(node, "Slice=above-x.slice") as (pid, cgroup):
        assert accesses(node, pid, CTL) == ["allowed"]
        node.run(f"python3 /opt/probe/program.py {os.path.dirname(cgroup)} deny 195 255")
        assert accesses(node, pid, CTL, GPU0) == ["denied", "allowed"]


def test_a_second_program_on_the_leaf(node: Node) -> None:
    with scope(
        node, *STRICT, "DeviceAllow=/dev/char/195:255 rw", "DeviceAllow=/dev/char/195:0 rw"
    ) as (pid, cgroup):
        assert accesses(node, pid, CTL, GPU0) == ["allowed", "allowed"]
        node.run(f"python3 /opt/probe/program.py {cgroup} deny 195 255")
        assert accesses(node, pid, CTL, GPU0) == ["denied", "allowed"]


def test_several_processes_in_one_run(node: Node) -> None:
    given = "DeviceAllow=/dev/char/195:255 rw"
    with scope(node, *STRICT) as (denied, _), scope(node, *STRICT, given) as (allowed, _):
        words = [
            f"--pid {pid} {CTL} {NULL}" for pid in (denied, allowed, 999999, 1, denied, allowed)
        ]
        lines = node.run(f"{PROBE} {' '.join(words)}").stdout.splitlines()
    found = [[answer["access"] for answer in json.loads(line)["answers"]] for line in lines]
    assert [one[0] for one in found] == [
        "denied",
        "allowed",
        "unknown",
        "allowed",
        "denied",
        "allowed",
    ]
    assert [one[1] for one in found] == [
        "allowed",
        "allowed",
        "unknown",
        "allowed",
        "allowed",
        "allowed",
    ]


# --- nothing of the container is disturbed


@contextlib.contextmanager
def limits(node: Node, pid: int) -> Iterator[list[Path]]:
    """Put the process at its limits of memory and pids, with the controllers of this machine;
    return the files that count events."""
    files: list[Path] = []
    host_pid = node.host_pid(pid)
    with contextlib.ExitStack() as undo:
        for controller, limit, usage, count in [
            ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "memory.failcnt"),
            ("pids", "pids.max", "pids.current", "pids.events"),
        ]:
            top = Path("/sys/fs/cgroup") / controller
            if not (top / "cgroup.procs").exists():
                continue
            cage = top / f"{node.name}-{pid}"
            cage.mkdir()
            undo.callback(cage.rmdir)
            undo.callback(
                lambda cage=cage: poll(lambda: not (cage / "cgroup.procs").read_text(), 60)
            )
            undo.callback(
                lambda cage=cage: (cage.parent / "cgroup.procs").write_text(str(host_pid))
            )
            (cage / "cgroup.procs").write_text(str(host_pid))
            (cage / limit).write_text(str(max(int((cage / usage).read_text()), 4096)))
            files += [cage / usage, cage / count]
        yield files


def test_a_check_does_not_affect_a_frozen_container_at_its_limits(node: Node) -> None:
    names = "cgroup.procs cgroup.events cgroup.stat cgroup.freeze cgroup.threads"
    with scope(node, *STRICT) as (pid, cgroup), limits(node, pid) as files:
        node.run(f"echo 1 >{cgroup}/cgroup.freeze")
        node.wait_for(f"grep -q 'frozen 1' {cgroup}/cgroup.events")

        def state() -> list[str]:
            inside = node.run(
                f"cd {cgroup}; cat {names}; ls; stat -c %Y .; grep ctxt /proc/{pid}/status"
            ).stdout
            return [inside, *(file.read_text() for file in files)]

        before = state()
        for _ in range(10):
            assert accesses(node, pid, *[CTL, NULL] * 5) == ["denied", "allowed"] * 5
        assert state() == before
        node.run(f"echo 0 >{cgroup}/cgroup.freeze")
    if not files:
        assert "memory" not in {top.name for top in hierarchies()}, (
            "a v1 memory controller was there and not used"
        )


# --- what it says when it cannot look


def test_a_user_other_than_root_gets_unknown(node: Node) -> None:
    answer = ask(node, 1, NULL, by="setpriv --reuid=65534 --clear-groups")["answers"][0]
    assert (answer["access"], answer["errno"]) == ("unknown", 1)
    assert answer["detail"] == "Only root can look at the device access of others."


def test_a_process_that_ends_is_unknown(node: Node) -> None:
    with scope(node, *STRICT) as (pid, _):
        pass
    assert poll(
        lambda: ask(node, pid, CTL)["answers"][0]["detail"] == f"Process {pid} is gone.", 60
    )


def test_a_device_that_does_not_exist_on_this_host(node: Node) -> None:
    for devices in (["/dev/nvidia77"], ["/dev/nvidia77", NULL]):
        missing = ask(node, 1, *devices)["answers"][0]
        assert (missing["access"], missing["errno"]) == ("unknown", 2)
        assert missing["detail"] == "/dev/nvidia77 is not on this host: No such file or directory."


@pytest.mark.parametrize(
    ("sandbox", "sentence"),
    [
        (
            "CapabilityBoundingSet=CAP_NET_ADMIN CAP_MKNOD CAP_DAC_OVERRIDE",
            r"Its device program \d+ cannot be read",
        ),
        (
            "CapabilityBoundingSet=CAP_MKNOD CAP_DAC_OVERRIDE",
            "The device programs of its cgroup cannot be read: ",
        ),
        ("SystemCallFilter=~bpf", "The device programs of its cgroup cannot be read: "),
        (
            "ProtectControlGroups=yes",
            "No scratch cgroup could be used; the service wants Delegate= and no Protect",
        ),
        ("DevicePolicy=closed", "gpu-gate itself may not open it: Operation not permitted."),
    ],
)
def test_a_denial_of_our_own_is_unknown_and_never_denied(
    node: Node, sandbox: str, sentence: str
) -> None:
    run = (
        "systemd-run --quiet --pipe --wait --property=SystemCallErrorNumber=EPERM "
        f"--property='{sandbox}'"
    )
    with scope(node, *STRICT, "DeviceAllow=/dev/char/195:255 rw") as (pid, _):
        answer = ask(node, pid, CTL, by=run)["answers"][0]
    assert answer["access"] == "unknown"
    assert re.match(sentence, answer["detail"]), answer


def test_the_root_is_used_if_our_own_cgroup_allows_no_child(node: Node) -> None:
    with scope(node, *STRICT) as (pid, _):
        shut = (
            "echo 0 >/sys/fs/cgroup$(sed -n 's/^0:://p' /proc/self/cgroup)/cgroup.max.descendants"
        )
        answer = json.loads(node.run(f"{shut}; {PROBE} --pid {pid} {CTL} {NULL}").stdout)
    assert answer["place"] == "/sys/fs/cgroup"
    assert [one["access"] for one in answer["answers"]] == ["denied", "allowed"]
    assert leftovers(node) == ""


def test_without_cap_mknod_the_hosts_own_node_is_checked(node: Node) -> None:
    run = "systemd-run --quiet --pipe --wait --property=CapabilityBoundingSet=~CAP_MKNOD"
    with scope(node, *STRICT) as (pid, _):
        assert accesses(node, pid, CTL, "/dev/null", by=run) == ["denied", "allowed"]
        answer = ask(node, pid, GPU0, by=run)["answers"][0]
    assert answer["detail"] == "No device node of our own could be made: Operation not permitted."


def test_leftovers_of_a_killed_program_are_removed(node: Node) -> None:
    with scope(node, *STRICT) as (pid, _):
        kept = node.run(
            f"""
            own=/sys/fs/cgroup$(sed -n 's/^0:://p' /proc/self/cgroup)
            alive=gpu-gate-access-1-$(sed 's/.*)//' /proc/1/stat | cut -d' ' -f21)
            mkdir $own/gpu-gate-access-999999-5 $own/gpu-gate-access-1-5 $own/$alive $own/gpu-gate-access-x
            mkdir -p /run/gpu-gate/gpu-gate-access-999999-5; mknod /run/gpu-gate/gpu-gate-access-999999-5/node c 1 3
            {PROBE} --pid {pid} {CTL} >/dev/null
            find $own /run/gpu-gate -name 'gpu-gate-access-*'
            rmdir $own/$alive; rm -rf /run/gpu-gate
            """
        ).stdout.split()
    assert [re.sub(r"\d+$", "N", os.path.basename(path)) for path in kept] == [
        "gpu-gate-access-1-N"
    ], "a live one's"


def test_after_any_end_of_a_program_the_next_one_answers_and_cleans_up(node: Node) -> None:
    with scope(node, *STRICT) as (pid, _):
        many = f"--pid {pid} {CTL} " * 200
        lines = node.run(
            f"""
            for signal in TERM KILL TERM KILL TERM KILL TERM KILL; do
                for wait in 0.02 0.05 0.1 0.15; do
                    {PROBE} {many} >/dev/null &
                    sleep $wait; kill -$signal $! || true; wait $! || true
                done
            done
            {PROBE} --pid {pid} {CTL} {NULL}
            """,
            timeout=240,
        ).stdout.splitlines()
    assert [one["access"] for one in json.loads(lines[-1])["answers"]] == ["denied", "allowed"]
    assert leftovers(node) == ""


# --- real containers


CONTAINER = """
    ctr --namespace k8s.io run --detach --snapshotter native --runc-binary /usr/local/sbin/runc-node \
        --runc-systemd-cgroup --cgroup kubepods-x.slice:cri-containerd:{name} {devices} \
        localhost/sim/base:1 {name} /bin/sleep 1000
    ctr --namespace k8s.io task list | awk '$1 == "{name}" {{ print $2 }}'
"""


def test_a_container_loses_devices_that_runc_does_not_know(node: Node) -> None:
    """What libnvidia-container's legacy hook does: its program on the leaf, and systemd knows
    nothing of it."""
    node.wait_for("ctr version")
    pid = int(node.run(CONTAINER.format(name="legacy", devices="")).stdout.split()[-1])
    scope_path = f"/sys/fs/cgroup{ask(node, pid, CTL)['cgroup']}"
    assert scope_path.endswith("/cri-containerd-legacy.scope")
    assert accesses(node, pid, CTL, NULL) == ["denied", "allowed"]
    node.run(f"python3 /opt/probe/program.py {scope_path} allow")
    assert accesses(node, pid, CTL, NULL) == ["allowed", "allowed"]
    node.systemctl("set-property", "--runtime", "cri-containerd-legacy.scope", "CPUWeight=50")
    node.systemctl("daemon-reload")
    assert poll(lambda: accesses(node, pid, CTL, NULL) == ["denied", "allowed"], 60)
    assert leftovers(node) == ""


def test_a_privileged_container(node: Node) -> None:
    node.wait_for("ctr version")
    pid = int(
        node.run(CONTAINER.format(name="privileged", devices="--privileged")).stdout.split()[-1]
    )
    assert accesses(node, pid, CTL, GPU0, NULL) == ["allowed"] * 3


@pytest.mark.parametrize("suite", tree.SUITES)
def test_the_plugins_container_before_and_after_a_denial(make_node, suite: str) -> None:
    node = prepare(make_node(suite, deb=False, standins=True))
    node.wait_for("simcri id nvidia-device-plugin-ctr")
    pid = json.loads(node.run("simcri inspect nvidia-device-plugin-ctr").stdout)["info"]["pid"]
    assert accesses(node, pid, CTL, "/dev/nvidia0") == ["allowed", "allowed"]
    cgroup = f"/sys/fs/cgroup{ask(node, pid, CTL)['cgroup']}"
    node.run(f"python3 /opt/probe/program.py {cgroup} deny 195 255")
    assert accesses(node, pid, CTL, "/dev/nvidia0") == ["denied", "allowed"]
    node.run(f"kill -0 {pid}")


# --- cgroup v1, where this machine itself has it: inside a node it is mounted read-only

V1 = Path("/sys/fs/cgroup/devices")
ASK_ITSELF = (
    "import ctypes, sys; open(sys.argv[1] + '/cgroup.procs', 'w').write('0')"
    "; libc = ctypes.CDLL(None, use_errno=True); print([libc.access(b'/dev/' + n, 6) for n in "
    "(b'null', b'zero')])"
    "; sys.stdin.read()"
)


@pytest.mark.skipif(
    not (V1 / "devices.list").exists(), reason="this machine has no cgroup v1 with devices"
)
@pytest.mark.parametrize(
    ("rules", "wanted"),
    [
        ([], ["allowed", "allowed"]),
        (["a"], ["denied", "denied"]),
        (["a", "c *:* m", "c 1:3 rw"], ["allowed", "denied"]),
        (["a", "c *:* m", "c 1:3 r", "c 1:5 rwm"], ["denied", "allowed"]),
        (["a", "c 1:* rw"], ["allowed", "allowed"]),
    ],
)
def test_v1(rules: list[str], wanted: list[str], tmp_path: Path) -> None:
    cage = V1 / f"gpu-gate-test-{os.getpid()}"
    inner = cage / "inner"
    cage.mkdir()
    try:
        for number, rule in enumerate(rules):  # on the level above: the process is one below
            (cage / ("devices.allow" if number else "devices.deny")).write_text(rule)
        inner.mkdir()
        words = [sys.executable, "-c", ASK_ITSELF, str(inner)]
        with subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as child:
            assert child.stdout is not None
            itself = [
                "denied" if failed else "allowed" for failed in json.loads(child.stdout.readline())
            ]
            probe = [
                sys.executable,
                "-I",
                "-S",
                str(REPO / "agent/host/access/access_program.py"),
                "--pid",
                str(child.pid),
            ]
            line = subprocess.run(
                [*probe, "c:1:3", "c:1:5"], capture_output=True, text=True, check=True
            ).stdout
            child.communicate("")
        answer = json.loads(line)
        assert [one["access"] for one in answer["answers"]] == itself == wanted
        assert answer["way"].startswith("devices.list")
        assert answer["version"] in ("v1", "hybrid")
    finally:
        for folder in (each for each in (inner, cage) if each.exists()):
            poll(lambda folder=folder: not (folder / "cgroup.procs").read_text(), 60)
            folder.rmdir()


# --- the unit


def test_concurrent_reloads_change_no_answer(node: Node) -> None:
    """The programs are replaced during the check, including those of the agent's own service."""
    with (
        scope(node, *STRICT, "DeviceAllow=/dev/zero rw") as (pid, cgroup),
        scope(node) as (free, _),
    ):
        many = f"--pid {pid} {CTL} {NULL} --pid {free} {CTL} {NULL} " * 400
        node.put(
            "/opt/probe/loop", f"#!/bin/sh\nfor i in 1 2 3 4; do {PROBE} {many}; done\n", 0o755
        )
        node.run(
            "systemd-run --quiet --unit=looks --property=StandardOutput=file:/run/looks "
            "/opt/probe/loop"
        )
        node.run(
            f"""
            number=0
            while systemctl is-active --quiet looks; do
                number=$((number + 1))
                systemctl daemon-reload
                systemctl set-property --runtime {os.path.basename(cgroup)} CPUWeight=$((50 + number))
                systemctl set-property --runtime looks CPUWeight=$((50 + number)) || true
                [ $number != 3 ] || systemctl daemon-reexec
            done
            """,
            timeout=240,
        )
        answers = [json.loads(line) for line in node.read("/run/looks").splitlines()]
    found = {(one["pid"], *(each["access"] for each in one["answers"])) for one in answers}
    assert len(answers) == 3200
    assert found == {(pid, "denied", "allowed"), (free, "allowed", "allowed")}


def test_under_the_units_own_sandbox(node: Node) -> None:
    """The unit of this checkout, with the probe in the agent's place."""
    text = (REPO / "systemd/gpu-gate.service").read_text()
    with scope(node, *STRICT) as (pid, _):
        for line in (
            "Type=oneshot",
            f"ExecStart={PROBE} --pid {pid} {CTL} {NULL}",
            "Restart=no",
            "WatchdogSec=0",
        ):
            text = re.sub(rf"(?m)^{line.partition('=')[0]}=.*$", line, text)
        text = text.replace("NotifyAccess=main\n", "").replace("ExecStart=", "ExecStart=/usr/bin/")
        for extra in ("", "Delegate=\n"):
            node.put(
                "/etc/systemd/system/probe.service",
                text.replace("[Service]\n", f"[Service]\n{extra}"),
            )
            node.systemctl("daemon-reload")
            node.systemctl("start", "probe.service")
            said = node.journal(
                "-u", "probe.service", "-o", "cat", "--identifier=python3"
            ).splitlines()[-1]
            answer = json.loads(said)
            assert [one["access"] for one in answer["answers"]] == ["denied", "allowed"], answer
            assert answer["place"] == "/sys/fs/cgroup/system.slice/probe.service"
    assert leftovers(node) == ""
