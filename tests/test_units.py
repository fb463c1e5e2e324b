"""The unit files match docs/design.md, section 4, and systemd accepts them without a warning."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from agent.core.common.layouts import manifest_folders
from agent.core.common.paths import MANIFEST_NAME
from agent.model.settings import Settings

REPO = Path(__file__).resolve().parent.parent
UNITS = REPO / "systemd"
AGENT, WAIT, TARGET = "gpu-gate.service", "gpu-gate-wait.service", "gpu-gate.target"
BARRIER = "gpu-gate-node.service"
GATED = ("kubelet.service", "k3s-agent.service", "rke2-agent.service", "k0sworker.service")
OPT_IN = (
    "k3s.service",
    "rke2-server.service",
    "k0scontroller.service",
    "snap.microk8s.daemon-kubelite.service",
)
PLUGIN = "nvidia-device-plugin.service"
DROP_INS = [UNITS / f"{unit}.d" / "10-gpu-gate.conf" for unit in GATED]
EXAMPLES = [UNITS / "examples" / f"{unit}.d" / "10-gpu-gate.conf" for unit in (*OPT_IN, PLUGIN)]
ALL = [UNITS / AGENT, UNITS / WAIT, UNITS / TARGET, *DROP_INS, *EXAMPLES]

# What each file says, comments apart. "Unit.After": None means the key may not be there at all.
SAYS: dict[str, dict[str, str | None]] = {
    AGENT: {
        "Unit.ConditionKernelCommandLine": "!gpu-gate=off",
        "Unit.StartLimitIntervalSec": "0",
        "Unit.DefaultDependencies": "no",  # else multi-user.target waits for the agent
        "Unit.Wants": None,
        "Unit.Requires": "sysinit.target",
        "Unit.After": "sysinit.target basic.target",
        "Unit.Conflicts": "shutdown.target",
        "Unit.Before": "shutdown.target",
        "Service.Type": "notify",
        "Service.ExecStart": "/usr/bin/gpu-gate run",
        "Service.ExecReload": "/bin/kill -HUP $MAINPID",
        "Service.Restart": "always",
        "Service.WatchdogSec": "90",
        "Service.TimeoutStopSec": "10s",
        "Service.KillMode": "mixed",
        "Service.RuntimeDirectory": "gpu-gate",
        "Service.RuntimeDirectoryMode": "0755",
        "Service.RuntimeDirectoryPreserve": "yes",
        "Service.StateDirectory": "gpu-gate",
        "Service.StateDirectoryMode": "0700",
        "Install.WantedBy": "multi-user.target",
    },
    WAIT: {
        "Unit.Wants": "gpu-gate.service",
        "Unit.After": None,  # a hung agent must not add its own timeout
        "Unit.Requires": None,
        "Unit.Before": None,
        "Unit.ConditionPathExists": "!/run/gpu-gate/released",
        "Unit.ConditionKernelCommandLine": "!gpu-gate=off",
        "Unit.PartOf": "gpu-gate.target",
        "Service.Type": "oneshot",
        "Service.RemainAfterExit": "yes",
        "Service.ExecStart": "-/usr/bin/gpu-gate wait",  # "-": a crash, too, counts as done
        "Service.TimeoutStartSec": "32min",
        "Service.Restart": None,  # before systemd 254 the first failure would release
        "Install.WantedBy": None,
    },
    BARRIER: {
        "Unit.ConditionKernelCommandLine": "!gpu-gate=off",
        "Unit.After": "network.target",  # never the kubelet: an API server that is away must hold nobody
        "Unit.Before": None,
        "Unit.Wants": None,
        "Unit.Requires": None,
        "Service.Type": "notify",
        "Service.ExecStart": "/usr/bin/gpu-gate node %b",
        "Service.User": "gpu-gate-node",
        "Service.CapabilityBoundingSet": "",
        "Service.Restart": "always",
        "Service.RuntimeDirectory": "gpu-gate-node",
        "Install.WantedBy": "multi-user.target",
    },
    TARGET: {
        "Unit.Requires": "gpu-gate-wait.service",
        "Unit.After": "gpu-gate-wait.service",
        "Unit.Wants": None,
        "Unit.Before": None,
        "Unit.JobTimeoutSec": None,
        "Install.WantedBy": None,  # wanted by multi-user.target it would hold up cloud-init
    },
}
# Each was tried and breaks the agent (docs/units.md), or is the very fault that the agent looks
# for.
FORBIDDEN = (
    "PrivateDevices",
    "DevicePolicy",
    "DeviceAllow",
    "ProtectControlGroups",
    "ProtectClock",
    "ProtectKernelModules",
    "ProtectKernelLogs",
    "PrivateNetwork",
    "DynamicUser",
    "User",
    "FailureAction",
    "JobTimeoutAction",
    "BindsTo",
    "StopWhenUnneeded",
    "RestartMode",
)
ORDERS = ("After", "Before", "Wants", "Requires", "PartOf")
DEFAULTS = {"sysinit.target", "basic.target", "shutdown.target"}
"""The default dependencies of every service; the agent lists them itself, with
DefaultDependencies=no."""
CAPABILITIES = {
    "CAP_SYS_ADMIN",
    "CAP_BPF",
    "CAP_NET_ADMIN",
    "CAP_DAC_OVERRIDE",
    "CAP_DAC_READ_SEARCH",
    "CAP_SYS_PTRACE",
    "CAP_KILL",
    "CAP_SYSLOG",
    "CAP_SYS_MODULE",
    "CAP_MKNOD",
    "CAP_CHOWN",
    "CAP_FOWNER",
}

# The orders that these units carry where they come from; the programs are not needed to verify an
# order.
SHAPES = {
    "kubelet.service": """
        [Unit]
        Description=kubelet as kubeadm's package has it
        Wants=network-online.target
        After=network-online.target
        [Service]
        ExecStart=/bin/true
        Restart=always
        [Install]
        WantedBy=multi-user.target""",
    "containerd.service": """
        [Unit]
        Description=containerd
        After=network.target local-fs.target dbus.service
        [Service]
        Type=notify
        ExecStart=/bin/true
        Delegate=yes
        Restart=always
        [Install]
        WantedBy=multi-user.target""",
    "k3s.service": """
        [Unit]
        Description=k3s, server
        Wants=network-online.target
        After=network-online.target
        [Service]
        Type=notify
        ExecStart=/bin/true
        Delegate=yes
        Restart=always
        [Install]
        WantedBy=multi-user.target""",
    "k3s-agent.service": """
        [Unit]
        Description=k3s, agent
        Wants=network-online.target
        After=network-online.target
        [Service]
        Type=notify
        ExecStart=/bin/true
        Delegate=yes
        Restart=always
        [Install]
        WantedBy=multi-user.target""",
    "nvidia-persistenced.service": """
        [Unit]
        Description=persistenced
        After=syslog.target
        [Service]
        Type=forking
        ExecStart=/bin/true
        PIDFile=/run/nvidia-persistenced/nvidia-persistenced.pid
        [Install]
        WantedBy=multi-user.target""",
    "nvidia-cdi-refresh.service": """
        [Unit]
        Description=CDI refresh, with the order that once closed a cycle
        After=multi-user.target
        [Service]
        Type=oneshot
        ExecStart=/bin/true
        [Install]
        WantedBy=multi-user.target""",
    "cloud-final.service": """
        [Unit]
        Description=runs user data, which may install the driver
        After=multi-user.target
        [Service]
        Type=oneshot
        ExecStart=/bin/true
        TimeoutSec=0""",
}


def settings(path: Path) -> list[tuple[str, str]]:
    """`Section.Key` and value of each line; comments and blanks apart."""
    section, found = "", []
    for line in path.read_text(encoding="ascii").splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found.append((f"{section}.{key}", value))
    return found


def tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        if os.environ.get("CI"):
            pytest.fail(f"{name} is missing")
        pytest.skip(f"{name} is missing")
    return found


@pytest.mark.parametrize("name", SAYS)
def test_units_match_the_design(name: str) -> None:
    said = dict(settings(UNITS / name))
    wrong = {key: said.get(key) for key, value in SAYS[name].items() if said.get(key) != value}
    assert not wrong


@pytest.mark.parametrize("path", ALL, ids=str)
def test_no_directive_breaks_the_agent_or_a_node(path: Path) -> None:
    keys = {key.partition(".")[2] for key, _ in settings(path)}
    assert not keys & set(FORBIDDEN)
    orders = [v for k, v in settings(path) if k.partition(".")[2] in ORDERS]
    named = {unit for value in orders for unit in value.split()}
    own = {AGENT, WAIT, TARGET} | (DEFAULTS if path.name == AGENT else set())
    assert named <= own, "ordered on something that is not ours"


@pytest.mark.parametrize("path", [*DROP_INS, *EXAMPLES], ids=str)
def test_drop_in_wants_and_waits_and_never_requires(path: Path) -> None:
    assert settings(path) == [("Unit.Wants", TARGET), ("Unit.After", TARGET)]


def test_every_drop_in_is_known() -> None:
    assert set(UNITS.rglob("*.conf")) == {*DROP_INS, *EXAMPLES}
    assert {path.name for path in UNITS.iterdir() if path.is_file()} == {
        AGENT,
        WAIT,
        TARGET,
        BARRIER,
    }


def test_every_layouts_folder_of_static_pods_is_known() -> None:
    """Launch=manifest writes there, and tmpfiles removes its file at the next boot."""
    folders = set(manifest_folders(Settings()))
    written = {
        word
        for key, value in settings(UNITS / AGENT)
        if key == "Service.ReadWritePaths"
        for word in value.split()
    }
    assert written == {f"-{folder}" for folder in folders}
    lines = (REPO / "packaging/deb/gpu-gate.tmpfiles").read_text().splitlines()
    assert {line for line in lines if line[:1] != "#"} == {
        f"r! {folder}/{MANIFEST_NAME}" for folder in folders
    }


def test_capabilities() -> None:
    words = [
        word
        for key, value in settings(UNITS / AGENT)
        if key == "Service.CapabilityBoundingSet"
        for word in value.split()
    ]
    assert sorted(words) == sorted(CAPABILITIES)


# What systemd.exec(5) offers to close, and this agent could have closed or says why not.
SANDBOX = (
    "ProtectSystem",
    "ProtectHome",
    "PrivateTmp",
    "ProtectKernelTunables",
    "ProtectControlGroups",
    "ProtectKernelModules",
    "ProtectKernelLogs",
    "ProtectClock",
    "PrivateDevices",
    "DevicePolicy",
    "DeviceAllow",
    "PrivateNetwork",
    "RestrictAddressFamilies",
    "RestrictNamespaces",
    "RestrictRealtime",
    "RestrictSUIDSGID",
    "LockPersonality",
    "MemoryDenyWriteExecute",
    "NoNewPrivileges",
    "User",
    "CapabilityBoundingSet",
    "SystemCallArchitectures",
    "SystemCallFilter",
)
MOST_EXPOSED = "60"
"""Tenths; 5.4 on systemd 252. The scale differs a little from version to version."""


def test_every_loose_setting_of_the_sandbox_has_a_reason() -> None:
    keys = {key.partition(".")[2] for key, _ in settings(UNITS / AGENT)}
    comments = " ".join(
        line for line in (UNITS / AGENT).read_text().splitlines() if line.startswith("#")
    )
    assert not {
        name for name in SANDBOX if name not in keys and not re.search(rf"\b{name}\b", comments)
    }


def test_systemd_does_not_call_the_agent_exposed() -> None:
    argv = [
        tool("systemd-analyze"),
        "security",
        "--offline=true",
        f"--threshold={MOST_EXPOSED}",
        UNITS / AGENT,
    ]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout[-200:]


def test_every_early_end_of_the_wait_writes_the_mark() -> None:
    command = dict(settings(UNITS / WAIT))["Service.ExecStopPost"]
    assert command.startswith("-/bin/sh -c ")
    assert ">/run/gpu-gate/released" in command


@pytest.mark.parametrize("path", [*ALL, UNITS / BARRIER], ids=str)
def test_every_file_begins_with_its_purpose(path: Path) -> None:
    assert path.read_text(encoding="ascii").startswith("# ")


def node(folder: Path, more: dict[str, str] | None = None) -> Path:
    """A unit folder as it looks on a node with everything installed, opt-in drop-ins as well."""
    folder.mkdir(exist_ok=True)
    for path in [UNITS / AGENT, UNITS / WAIT, UNITS / TARGET, UNITS / BARRIER]:
        text = path.read_text().replace("/usr/bin/gpu-gate", "/bin/true")
        (folder / path.name).write_text(text)
    for path in [*DROP_INS, *EXAMPLES]:
        shutil.copytree(path.parent, folder / path.parent.name, dirs_exist_ok=True)
    wants = folder / "multi-user.target.wants"
    wants.mkdir(exist_ok=True)
    for name, text in {**SHAPES, **(more or {})}.items():
        target = folder / name
        target.parent.mkdir(exist_ok=True)
        target.write_text("\n".join(line.strip() for line in text.splitlines()).strip() + "\n")
        if "WantedBy" in text:
            (wants / name).symlink_to(target)
    (wants / AGENT).symlink_to(folder / AGENT)
    return folder


def verify(folder: Path, *units: str | Path) -> subprocess.CompletedProcess[str]:
    env = {
        **os.environ,
        "SYSTEMD_UNIT_PATH": f"{folder}:/usr/lib/systemd/system:/lib/systemd/system",
    }
    argv = [tool("systemd-analyze"), "verify", "--man=no", *(str(folder / unit) for unit in units)]
    return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False)


def test_systemd_reports_nothing(tmp_path: Path) -> None:
    gated = ("kubelet.service", "k3s.service", "k3s-agent.service")
    done = verify(node(tmp_path / "units"), AGENT, WAIT, TARGET, BARRIER, *gated)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


CYCLE = re.compile("cycle", re.IGNORECASE)


def test_no_ordering_cycle_in_a_whole_boot(tmp_path: Path) -> None:
    done = verify(node(tmp_path / "units"), *SHAPES, "/usr/lib/systemd/system/multi-user.target")
    assert not CYCLE.search(done.stdout + done.stderr)


def test_an_ordering_cycle_would_be_detected(tmp_path: Path) -> None:
    more = {f"{WAIT}.d/x.conf": "[Unit]\nAfter=kubelet.service"}
    done = verify(node(tmp_path / "units", more), "kubelet.service")
    assert CYCLE.search(done.stdout + done.stderr)
