"""The package and packaging/images/install in a chroot, as in an image build: nothing starts, no
state of the build machine remains, and a removal leaves no trace. piuparts' checks, on the nodes'
own trees."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO / "tests" / "node"))
import tree  # noqa: E402
from nspawn import Node  # noqa: E402

IMAGES = REPO / "packaging" / "images"
pytestmark = pytest.mark.node
# What a package manager writes about every package, and the clocks of folders.
TRACES = re.compile(
    r"^/(var/(lib/(dpkg|apt|systemd/deb-systemd-helper)|log|cache)|proc|sys|dev|run|tmp|root)(/|$)|"
    r"__pycache__|/etc/ld.so.cache|/etc/(machine-id|hostname|hosts|resolv.conf)$"
)


@pytest.fixture(scope="module")
def debs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """This version's package, and one with an older version number: the same files but one."""
    new = tree.build_deb()
    folder = tmp_path_factory.mktemp("old")
    subprocess.run(["dpkg-deb", "--raw-extract", new, folder / "tree"], check=True)
    control = folder / "tree" / "DEBIAN" / "control"
    control.write_text(re.sub(r"^Version: .*$", "Version: 0.0.1", control.read_text(), flags=re.M))
    (folder / "tree/usr/share/gpu-gate/gone.py").write_text("")
    pack = ["dpkg-deb", "--root-owner-group", "--build", folder / "tree", folder / "old.deb"]
    subprocess.run(pack, check=True, stdout=subprocess.DEVNULL)
    return new, folder / "old.deb"


@pytest.fixture(params=["bookworm", "trixie"])
def chroot(request: pytest.FixtureRequest, debs: tuple[Path, Path]) -> Iterator[Any]:
    """The disk of a node that never boots; new.deb, old.deb and the images folder lie in /root."""
    with Node(tree.layers(request.param, None, sim=False)) as node:
        node.copy(debs[0], "/root/new.deb")
        node.copy(debs[1], "/root/old.deb")
        node.copy(
            debs[0].with_name(debs[0].name.replace("gpu-gate_", "gpu-gate-node_")),
            "/root/barrier.deb",
        )
        node.copy(IMAGES, "/root/images")
        yield node


def files(node: Any) -> set[str]:
    """Names and, of links, where they lead."""
    listing = node.run("find / -xdev -printf '%p %l\\n'").stdout.splitlines()
    return {line for line in listing if not TRACES.search(line.split(" ")[0])}


LIFE = r"""
export DEBIAN_FRONTEND=noninteractive
wanted=/etc/systemd/system/multi-user.target.wants/gpu-gate.service
state() { test "$(dpkg-query -W -f '${db:Status-Status} ${Version}' gpu-gate)" = "$1"; }
dpkg --install /root/old.deb; state 'installed 0.0.1'
dpkg --install /root/new.deb; test ! -e /usr/share/gpu-gate/gone.py
dpkg --install /root/old.deb; state 'installed 0.0.1'
# Unpacked and no more, then a postinst that fails: both are ended by the ordinary command.
dpkg --unpack /root/new.deb; state "unpacked $NEW"
printf '#!/bin/sh\nexit 1\n' >/usr/local/sbin/py3compile; chmod +x /usr/local/sbin/py3compile
! dpkg --configure gpu-gate; state "half-configured $NEW"
rm /usr/local/sbin/py3compile
dpkg --configure --pending; state "installed $NEW"
test -h $wanted
test ! -e /run/gpu-gate
# What the agent and Launch=manifest leave on the disk of a machine.
mkdir -p /var/lib/gpu-gate /etc/kubernetes/manifests; touch /etc/kubernetes/manifests/gpu-gate-plugin.yaml
echo /etc/kubernetes/manifests/gpu-gate-plugin.yaml >/var/lib/gpu-gate/manifest
dpkg --remove gpu-gate
# What remains leads nowhere: dpkg remembers by it that the unit was enabled.
test "$(find /etc/systemd /usr/lib/systemd -name '*gpu-gate*')" = $wanted; test ! -e $wanted
dpkg --purge gpu-gate
"""


def test_install_upgrade_downgrade_half_configured_remove_purge_leave_nothing(chroot: Any) -> None:
    before = files(chroot)
    new = chroot.run("dpkg-deb --field /root/new.deb Version").stdout.strip()
    chroot.run(["bash", "-exc", LIFE], env={"NEW": new}, timeout=240)
    assert files(chroot) ^ before <= {"/etc/kubernetes ", "/etc/kubernetes/manifests "}


KUBELET = "[Unit]\nAfter=network-online.target\n[Service]\nExecStart=/bin/true\n"


def install(
    node: Any, *words: str, before: str = ":", check: bool = True
) -> subprocess.CompletedProcess[str]:
    """The script, in one go with what is said about /run, which a chroot's next command has
    anew."""
    script = f'{before}; "$@"; rc=$?; ls /run/gpu-gate 2>/dev/null; exit $rc'
    done: subprocess.CompletedProcess[str] = node.run(
        ["sh", "-c", script, "sh", "/root/images/install", *words], check=check, timeout=240
    )
    return done


def test_the_script_makes_an_image(chroot: Any) -> None:
    chroot.put("/usr/lib/systemd/system/kubelet.service", KUBELET)
    chroot.put("/etc/systemd/system/snap.kubelet-eks.daemon.service", KUBELET)
    chroot.put("/usr/bin/nvidia-ctk", "#!/bin/sh\n", 0o755)
    chroot.put("/etc/machine-id", "0123456789abcdef0123456789abcdef\n")
    chroot.put("/var/lib/gpu-gate/ledger", "{}")
    words = (
        "--expected-gpus",
        "8",
        "--set",
        "Gate.OnDeadline=hold",
        "--kubelet",
        "snap.kubelet-eks.daemon",
        "/root/new.deb",
    )
    # The /run of a running host: nothing may be started there, and no kubelet released.
    done = install(chroot, *words, before="mkdir -p /run/systemd/system")
    assert "released" not in done.stdout.splitlines()
    assert not chroot.exists("/usr/sbin/policy-rc.d")
    assert chroot.read("/etc/machine-id") == ""
    assert "ExpectedGPUs=8 " in chroot.run("gpu-gate config").stdout
    assert "create-dev-char-symlinks" in chroot.read("/etc/udev/rules.d/71-nvidia-dev-char.rules")
    said = chroot.run("gpu-gate image-check", check=False)
    assert said.returncode == 4, said.stdout
    assert "kubelet.service is held back by /usr/lib" in said.stdout
    assert "snap.kubelet-eks.daemon.service is held back by /etc" in said.stdout
    # Once more, by the script that the package brings, and without a package: nothing changes.
    before = files(chroot)
    chroot.run(
        "/usr/share/gpu-gate/images/install --expected-gpus 8 --set Gate.OnDeadline=hold",
        timeout=120,
    )
    assert files(chroot) == before
    assert "already there: /root/new.deb" in install(chroot, "/root/new.deb").stdout
    assert "installed gpu-gate 0.0.1" in install(chroot, "/root/old.deb").stdout
    assert "installed gpu-gate" in install(chroot, "/root/new.deb").stdout
    # The barrier goes with its own version alone: it is not silently taken away.
    install(chroot, "/root/new.deb", "/root/barrier.deb")
    refused = install(chroot, "/root/old.deb", check=False)
    assert refused.returncode == 1 and "name its .deb as well" in refused.stderr
    chroot.run("dpkg-query -W gpu-gate-node && dpkg --purge gpu-gate-node", timeout=120)
    chroot.run("systemctl mask gpu-gate.service")
    masked = install(chroot, "/root/new.deb", check=False)
    assert masked.returncode == 1 and "systemctl unmask gpu-gate.service" in masked.stderr
    chroot.run("systemctl unmask gpu-gate.service")
    # What the script wrote goes with the package, what a person wrote stays.
    mine = "/etc/gpu-gate/gpu-gate.conf.d/90-mine.conf"
    chroot.put(mine, "[Gate]\n")
    chroot.run("dpkg --purge gpu-gate", timeout=120)
    left = chroot.run(
        "find /etc -name '*gpu-gate*' -o -name '*nvidia-dev-char*' -o -name 90-mine.conf"
    ).stdout
    assert set(left.split()) == {"/etc/gpu-gate", "/etc/gpu-gate/gpu-gate.conf.d", mine}
    assert not chroot.exists("/etc/systemd/system/snap.kubelet-eks.daemon.service.d")


WRONG = (
    (("--fly",), 2, "unknown option"),
    (("--expected-gpus", "many"), 2, "needs a number"),
    (("--set", "deadline"), 2, "SECTION.KEY=VALUE"),
    (("--kubelet", "../x"), 2, "name of a unit"),
    (("/nothing.deb",), 1, "does not exist"),
    ((), 1, "no gpu-gate_*_all.deb"),
    (("--set", "Gate.DeadlineSec=soon", "/root/new.deb"), 1, "a setting is wrong"),
)


def test_impossible_requests_are_reported(chroot: Any) -> None:
    for words, status, sentence in WRONG:
        done = install(chroot, *words, check=False)
        assert done.returncode == status and sentence in done.stderr, done
        assert not chroot.exists("/usr/sbin/policy-rc.d")
