"""The .deb: built, clean to lintian, with the files expected and no others, and one version in one
place."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent import __version__
from agent.model.settings import Settings
from agent.service import cli, log

REPO = Path(__file__).resolve().parent.parent
DEB = REPO / "packaging" / "deb"
SCRIPTS = (
    "build",
    "fetch-pynvml",
    "preinst",
    "postinst",
    "prerm",
    "postrm",
    "gpu-gate-node.postinst",
    "gpu-gate-node.prerm",
    "tests/smoke",
)
KUBELETS = ("kubelet", "k3s-agent", "rke2-agent", "k0sworker")
OPT_IN = ("k3s", "rke2-server", "k0scontroller", "snap.microk8s.daemon-kubelite")

EXPECTED = {
    "usr/bin/gpu-gate",
    "etc/gpu-gate/gpu-gate.conf",
    "usr/share/gpu-gate/pynvml.py",
    "usr/share/lintian/overrides/gpu-gate",
    "usr/share/doc/gpu-gate/changelog.gz",
    "usr/share/doc/gpu-gate/copyright",
    "usr/share/man/man5/gpu-gate.conf.5.gz",
    "usr/share/man/man8/gpu-gate.8.gz",
    "usr/share/python3/runtime.d/gpu-gate.rtupdate",
    "usr/lib/systemd/system/gpu-gate.service",
    "usr/lib/systemd/system/gpu-gate-wait.service",
    "usr/lib/systemd/system/gpu-gate.target",
    "usr/lib/systemd/system-preset/50-gpu-gate.preset",
    "usr/lib/tmpfiles.d/gpu-gate.conf",
    *(f"usr/lib/systemd/system/{unit}.service.d/10-gpu-gate.conf" for unit in KUBELETS),
    *(
        f"usr/share/doc/gpu-gate/examples/{unit}.service.d/10-gpu-gate.conf"
        for unit in (*OPT_IN, "nvidia-device-plugin")
    ),
    *(
        f"usr/share/doc/gpu-gate/examples/monitoring/{name}"
        for name in (
            "gpu-gate.rules.yml",
            "gpu-gate.rules.test.yml",
            "n9e-rules.json",
            "grafana-dashboard.json",
        )
    ),
}

OPERATORS = {
    "access.md",
    "alerts.md",
    "evidence.md",
    "http.md",
    "images.md",
    "launch.md",
    "metrics.md",
    "plugins.md",
    "reasons.md",
    "status.schema.json",
    "terms.md",
}
"""The pages for operators on a node, as plain text."""


def tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        if os.environ.get("CI"):
            pytest.fail(f"{name} is missing")
        pytest.skip(f"{name} is missing")
    return found


def run(*argv: str | Path) -> str:
    words = [str(word) for word in argv]
    done = subprocess.run(words, cwd=REPO, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def deb() -> Path:
    tool("dpkg-buildpackage")
    tool("dh_python3")
    return Path(run(DEB / "build").strip())


def version() -> str:
    found = re.search(r'^version = "(.+)"$', (REPO / "pyproject.toml").read_text(), re.MULTILINE)
    assert found
    return found[1]


def test_one_version_everywhere() -> None:
    assert __version__ == version()
    first = (DEB / "changelog").read_text().splitlines()[0]
    assert first.startswith(f"gpu-gate ({version()}) ")
    assert re.findall(r"^## (.+)$", (REPO / "NEWS.md").read_text(), re.MULTILINE)[0] == version()


def test_a_wheel_contains_every_folder() -> None:
    listed = (REPO / "pyproject.toml").read_text().partition("\npackages = ")[2].partition("]")[0]
    said = re.findall(r'"(gpu_gate[\w.]*)"', listed)
    folders = {
        file.parent.relative_to(REPO / "agent") for file in (REPO / "agent").rglob("__init__.py")
    }
    assert sorted(said) == sorted(".".join(["gpu_gate", *folder.parts]) for folder in folders)


def test_built_package_carries_that_version_for_all_machines(deb: Path) -> None:
    lines = run("dpkg-deb", "--field", deb).splitlines()
    fields = dict(line.split(": ", 1) for line in lines if ": " in line)
    assert (fields["Package"], fields["Version"], fields["Architecture"]) == (
        "gpu-gate",
        version(),
        "all",
    )
    # Nothing that brings a driver along: it is the node's owner who chooses one.
    assert (fields.get("Recommends"), fields["Suggests"]) == (None, "zstd")
    assert "nvidia" not in fields["Depends"].lower()


def test_files(deb: Path) -> None:
    listing = [line.split(None, 5) for line in run("dpkg-deb", "--contents", deb).splitlines()]
    paths = {line[5].removeprefix("./") for line in listing if not line[0].startswith("d")}
    folders = {line[5].removeprefix("./") for line in listing if line[0].startswith("d")}
    assert all(line[1] == "root/root" for line in listing)
    program = {path for path in paths if path.startswith("usr/share/gpu-gate/gpu_gate/")}
    kinds = ("agent/**.py", "agent/*.py", "agent/**.html")
    tracked = run("git", "-c", f"safe.directory={REPO}", "ls-files", *kinds).split()
    there = {path.removeprefix("agent/") for path in tracked if (REPO / path).exists()}
    assert program == {f"usr/share/gpu-gate/gpu_gate/{path}" for path in there}
    images = run("git", "-c", f"safe.directory={REPO}", "ls-files", "packaging/images").split()
    pages = {
        path.removeprefix("usr/share/doc/gpu-gate/")
        for path in paths
        if path.endswith((".md", "schema.json"))
    }
    assert pages == OPERATORS | {f"faults/{p.name}" for p in REPO.glob("docs/faults/*")}
    assert paths - program - {f"usr/share/doc/gpu-gate/{page}" for page in pages} == EXPECTED | {
        f"usr/share/gpu-gate/{path.removeprefix('packaging/')}" for path in images
    }
    assert "etc/gpu-gate/gpu-gate.conf.d/" in folders


@pytest.fixture
def barrier(deb: Path) -> Path:
    """The second package, built with the first."""
    return deb.with_name(deb.name.replace("gpu-gate_", "gpu-gate-node_"))


def test_the_barrier_is_a_package_of_its_own_and_off(barrier: Path) -> None:
    listing = [line.split(None, 5) for line in run("dpkg-deb", "--contents", barrier).splitlines()]
    paths = {line[5].removeprefix("./") for line in listing if not line[0].startswith("d")}
    doc = "usr/share/doc/gpu-gate-node"
    assert paths == {
        "usr/lib/systemd/system/gpu-gate-node.service",
        "usr/lib/sysusers.d/gpu-gate-node.conf",
        "usr/lib/systemd/system-preset/50-gpu-gate-node.preset",
        f"{doc}/examples/gpu-gate-node.yaml",
        f"{doc}/barrier.md",
        f"{doc}/changelog.gz",
        f"{doc}/copyright",
    }
    depends = run("dpkg-deb", "--field", barrier, "Depends")
    assert f"gpu-gate (= {version()})" in depends and "python3-kubernetes" in depends
    postinst = run("dpkg-deb", "--info", barrier, "postinst")
    assert "try-restart 'gpu-gate-node.service'" in postinst and postinst.count("invoke start") == 1
    assert "was-enabled" in postinst, "enabled by nobody but its owner"
    assert run(tool("lintian"), "--allow-root", "--fail-on=error,warning", barrier) == ""


def test_the_client_library_stays_off_nodes_without_the_barrier(deb: Path) -> None:
    depends = run("dpkg-deb", "--field", deb, "Depends")
    assert "kubernetes" not in depends and "urllib3" not in depends


def test_conffile(deb: Path) -> None:
    assert run("dpkg-deb", "--info", deb, "conffiles").split() == ["/etc/gpu-gate/gpu-gate.conf"]


def test_an_upgrade_restarts_only_the_agent(deb: Path) -> None:
    postinst = run("dpkg-deb", "--info", deb, "postinst")
    acted_on = re.findall(r"deb-systemd-(?:invoke|helper)\b[^\n']*'([^\n]*)'", postinst)
    assert set(acted_on) == {"gpu-gate.service"}
    # Each daemon-reload is what can take devices from running containers: no more than one.
    assert len(re.findall(r"^\s*systemctl .*daemon-reload", postinst, re.MULTILINE)) == 1
    postrm = run("dpkg-deb", "--info", deb, "postrm")
    assert len(re.findall(r"^\s*systemctl .*daemon-reload", postrm, re.MULTILINE)) == 1


def test_lintian(deb: Path) -> None:
    said = run(tool("lintian"), "--allow-root", "--fail-on=error,warning", deb)
    assert said == ""


def test_same_inputs_same_package(deb: Path, tmp_path: Path) -> None:
    again = Path(run(DEB / "build", tmp_path).strip())
    first, second = (hashlib.sha256(path.read_bytes()).hexdigest() for path in (deb, again))
    assert first == second


def test_shellcheck() -> None:
    run(tool("shellcheck"), *(DEB / name for name in SCRIPTS))


def test_manual_pages_format_without_a_warning() -> None:
    groff = tool("groff")
    for page in sorted((REPO / "docs" / "man").iterdir()):
        argv = [groff, "-man", "-Tutf8", "-ww", "-z", str(page)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert done.stderr == ""


UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0}


def as_written(value: object) -> set[str]:
    """The ways in which a default may stand in the file."""
    if isinstance(value, bool):
        return {"yes" if value else "no"}
    if isinstance(value, tuple):
        return {" ".join(value)}
    if isinstance(value, float):
        return {f"{value / factor:g}{name}" for name, factor in UNITS.items()}
    return {str(value)}


def shipped() -> dict[tuple[str, str], str]:
    section, found = "", {}
    for line in (DEB / "conf" / "gpu-gate.conf").read_text().splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif re.match(r"#\w+=", line):
            key, _, value = line[1:].partition("=")
            found[section, key] = value
    return found


def test_shipped_settings_are_the_defaults_and_all_commented_out() -> None:
    fields = {(f.metadata["section"], f.metadata["key"]): f for f in dataclasses.fields(Settings)}
    said = shipped()
    assert said.keys() == fields.keys()
    defaults = {key: as_written(field.default) for key, field in fields.items()}
    wrong = {key: value for key, value in said.items() if value not in defaults[key]}
    assert not wrong
    lines = (DEB / "conf" / "gpu-gate.conf").read_text().splitlines()
    assert all(not line or line[0] in "#[" for line in lines)


def manual(name: str) -> str:
    return (REPO / "docs" / "man" / name).read_text().replace("\\-", "-")


def test_manual_names_every_setting_with_its_default_and_no_other() -> None:
    page = manual("gpu-gate.conf.5").partition(".SH [")[2].partition(".SH EXAMPLE")[0]
    said: dict[tuple[str, str], str] = {}
    for section in page.split(".SH ["):
        heads = re.findall(r"^\.TP\n\.I (\w+)=(.*)$", section, re.MULTILINE)
        said |= {(section.partition("]")[0], key): value for key, value in heads}
    assert said == {(section.upper(), key): value for (section, key), value in shipped().items()}


def test_manual_names_every_verb_and_no_other() -> None:
    verbs = manual("gpu-gate.8").partition(".SH VERBS")[2].partition(".SH OPTIONS")[0]
    heads = re.findall(r"^\.TP\n\.BR? (.*)$", verbs, re.MULTILINE)
    named = {
        word for head in heads for word in re.findall(r"[a-z]+(?:-[a-z]+)*", head.partition("[")[0])
    }
    wanted = re.findall(r"^  ([a-z]+(?:-[a-z]+)*(?:, [a-z]+)*) ", cli.VERBS, re.MULTILINE)
    assert named == {verb for line in wanted for verb in line.split(", ")}


def test_manual_names_the_lines_operators_look_for() -> None:
    page = manual("gpu-gate.8").partition(".SH LOG")[2].partition(".SH FILES")[0]
    ids = {
        value
        for name, value in vars(log).items()
        if name.isupper() and re.fullmatch("[0-9a-f]{32}", str(value))
    }
    assert len(ids) == 8
    assert {
        page.partition("MESSAGE_ID=")[2][:30] + ending for ending in re.findall(r"\b0\d\b", page)
    } == ids


def test_the_program_names_pages_that_the_packages_install() -> None:
    named = {
        path
        for file in (REPO / "agent").rglob("*.py")
        for path in re.findall(r"/usr/share/doc/(gpu-gate(?:-node)?/[\w./-]*\w)", file.read_text())
    }
    node = {"gpu-gate-node/barrier.md", "gpu-gate-node/examples/gpu-gate-node.yaml"}
    assert named and named <= {f"gpu-gate/{page}" for page in OPERATORS} | node


def test_manual_names_every_option_and_exit_status_and_no_other() -> None:
    options, _, statuses = (
        manual("gpu-gate.8").partition(".SH OPTIONS")[2].partition(".SH EXIT STATUS")
    )
    heads = re.findall(r"^\.TP\n(.*)$", options, re.MULTILINE)
    has = re.findall(r"^  (?:-h, )?(--[a-z]+)", cli._parser().format_help(), re.MULTILINE)
    assert sorted(re.findall(r"--[a-z]+", " ".join(heads))) == sorted(has)
    numbers = re.findall(r"^\.TP\n\.B (\d)$", statuses.partition(".SH UNITS")[0], re.MULTILINE)
    assert numbers == re.findall(r"\b(\d) ", (cli.__doc__ or "").partition("Exit status: ")[2])


# --- on a node: installed, upgraded, removed, purged (what was seen is written down in
# docs/units.md) ---

KUBELET = """[Unit]
Wants=network-online.target
After=network-online.target
[Service]
ExecStart=/bin/sleep infinity
Restart=always
"""
# Stands for a gate that stays closed, whatever hardware the node shows.
BLOCKED = "[Service]\nExecStart=\nExecStart=-/bin/sleep 600\n"
HELD_PATH = "/etc/systemd/system/gpu-gate-wait.service.d/test.conf"


@pytest.fixture(scope="module", params=["bookworm", "trixie"])
def node(request: pytest.FixtureRequest, deb: Path) -> Iterator[Any]:
    """A booted node with a running kubelet unit and without gpu-gate; the .deb lies in /root."""
    tool("systemd-nspawn")
    tool("mmdebstrap")
    sys.path.insert(0, str(REPO / "tests" / "node"))
    import tree
    from nspawn import Node

    with Node(tree.layers(request.param, None, sim=False)) as node:
        node.put("/etc/systemd/system/kubelet.service", KUBELET)
        node.copy(deb, "/root/gpu-gate.deb")
        node.boot()
        node.wait_booted()
        node.systemctl("start", "kubelet.service")
        yield node


def dpkg(node: Any, *words: str) -> None:
    node.run(["dpkg", *words], env={"DEBIAN_FRONTEND": "noninteractive"}, timeout=120)


def invocation(node: Any) -> str:
    return str(node.show("kubelet.service", "InvocationID"))


def start_held(node: Any) -> None:
    """The kubelet's start is queued and waits, as in a boot without working GPUs."""
    node.systemctl(
        "stop", "kubelet.service", "gpu-gate.target", "gpu-gate-wait.service", check=False
    )
    node.systemctl("stop", "gpu-gate.service", check=False)
    node.put(HELD_PATH, BLOCKED)
    node.run("rm -f /run/gpu-gate/released")
    node.systemctl("daemon-reload")
    node.systemctl("start", "--no-block", "kubelet.service")
    node.wait_for("systemctl show -P ActiveState gpu-gate-wait.service | grep -qx activating")
    assert not node.is_active("kubelet.service")


@pytest.mark.node
def test_life_of_the_package_on_a_running_node(node: Any) -> None:
    before = invocation(node)
    dpkg(node, "--install", "/root/gpu-gate.deb")
    assert node.is_active("gpu-gate.service")
    assert invocation(node) == before
    assert "running node" in node.read("/run/gpu-gate/released")

    # The present boot is not gated, even by a wait that would never end.
    node.put(HELD_PATH, BLOCKED)
    node.systemctl("daemon-reload")
    node.systemctl("restart", "kubelet.service", timeout=60)
    assert invocation(node) != before

    before, agent = invocation(node), node.show("gpu-gate.service", "InvocationID")
    dpkg(node, "--install", "/root/gpu-gate.deb")
    assert node.show("gpu-gate.service", "InvocationID") != agent
    assert invocation(node) == before

    # A root agent does not outlive its package, and comes back with it.
    dpkg(node, "--remove", "gpu-gate")
    assert not node.is_active("gpu-gate.service")
    dpkg(node, "--install", "/root/gpu-gate.deb")
    assert node.is_active("gpu-gate.service")
    node.systemctl("disable", "--now", "gpu-gate.service")
    dpkg(node, "--install", "/root/gpu-gate.deb")
    assert not node.is_active("gpu-gate.service"), "who disabled it means it"
    node.systemctl("enable", "--now", "gpu-gate.service")
    assert invocation(node) == before


@pytest.mark.node
def test_autopkgtest(node: Any) -> None:
    """What a distribution's own test bed would run, on the machine on which the package was just
    installed."""
    node.copy(DEB / "tests" / "smoke", "/root/smoke")
    node.run("rm -r " + str(Path(HELD_PATH).parent))
    node.systemctl("daemon-reload")
    node.run("/root/smoke", timeout=120)


@pytest.mark.node
def test_an_upgrade_keeps_the_wait_and_stopping_the_target_ends_it(node: Any) -> None:
    start_held(node)
    waits = node.show("gpu-gate-wait.service", "InvocationID")
    # Without the agent: it would see no GPU and release.
    node.systemctl("mask", "--runtime", "gpu-gate.service")
    dpkg(node, "--install", "/root/gpu-gate.deb")
    assert node.show("gpu-gate-wait.service", "InvocationID") == waits
    assert not node.is_active("kubelet.service")
    node.systemctl("stop", "gpu-gate.target")
    node.wait_for("systemctl is-active kubelet.service")
    # The operator's word holds for later starts in this boot.
    node.wait_for("test -e /run/gpu-gate/released")
    node.systemctl("restart", "kubelet.service", timeout=60)
    node.systemctl("unmask", "--runtime", "gpu-gate.service")


@pytest.mark.node
def test_removal_releases_a_waiting_kubelet_and_purge_leaves_nothing(node: Any) -> None:
    start_held(node)
    dpkg(node, "--remove", "gpu-gate")
    node.wait_for("systemctl is-active kubelet.service")
    assert not node.is_active("gpu-gate.service")
    node.run(f"rm -r {Path(HELD_PATH).parent}")
    node.systemctl("daemon-reload")
    node.systemctl("restart", "kubelet.service", timeout=60)
    assert "gpu-gate" not in node.show("kubelet.service", "After")
    dpkg(node, "--purge", "gpu-gate")
    find = "find /etc /usr /var /run -xdev -name '*gpu-gate*'"
    # systemd takes a service's private folder in /var/tmp away some time after its end.
    skip = (
        "-not -path '/run/systemd/*' -not -path '/var/lib/containerd/*' -not -path "
        "'/var/tmp/systemd-private-*'"
    )
    left = node.run(f"{find} {skip}; find /run/gpu-gate", check=False).stdout
    assert left == ""
