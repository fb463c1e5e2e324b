"""cloud-init brings gpu-gate to a node at its first boot, by packaging/images' user data as it is:
that boot ends and is not gated, the second one is."""

from __future__ import annotations

from pathlib import Path

import gate
import pytest
import tree
from nspawn import Node

IMAGES = Path(__file__).resolve().parents[2] / "packaging/images"
SEED = "/var/lib/cloud/seed/nocloud-net"
SITE = "/srv/packages.example.com"
# The stand-in for the owner's web server, on the node itself, which has no network: it is up before
# cloud-init.
SERVER = f"""
import http.server, ssl
server = http.server.ThreadingHTTPServer(
    ("127.0.0.1", 443), lambda *a: http.server.SimpleHTTPRequestHandler(*a, directory="{SITE}"))
context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
context.load_cert_chain("/root/server.pem")
server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
"""
SERVER_UNIT = """
[Unit]
DefaultDependencies=no
After=sysinit.target
Before=cloud-final.service
[Service]
ExecStart=/usr/bin/python3 /root/server.py
[Install]
WantedBy=cloud-final.service
"""
CERTIFICATE = """
openssl req -x509 -newkey rsa:2048 -nodes -days 30 -subj /CN=packages.example.com \\
    -addext subjectAltName=DNS:packages.example.com -keyout /root/key.pem -out /root/cert.pem 2>/dev/null
cat /root/key.pem /root/cert.pem >/root/server.pem
mkdir -p /etc/ssl/certs
cat /root/cert.pem >>/etc/ssl/certs/ca-certificates.crt
echo 127.0.0.1 packages.example.com >>/etc/hosts
systemctl enable --quiet packages.service
"""
SLIM = (
    "datasource_list: [NoCloud]\nnetwork: {config: disabled}\nlocale: false\nssh_genkeytypes: []\n"
)
"""What a node has no part for: other sources of data, a network, the locales, an SSH server."""
APT = """
apt-get -qq -o APT::Sandbox::User=root update
apt-get -qq -o APT::Sandbox::User=root install -y --no-install-recommends cloud-init >/dev/null
apt-get clean
rm -rf /var/lib/apt/lists/* /etc/resolv.conf
"""
BROKEN = "plug --gpus 8\nnvml init=999\n"
INCIDENT = "plug --gpus 8\ncalls\npersistenced: nvml init=999 for=4\n"


def install(node: Node) -> None:
    """From the tree's own sources, on the network of this machine."""
    node.copy(Path("/etc/resolv.conf"), "/etc/resolv.conf")
    node.run(APT, env={"DEBIAN_FRONTEND": "noninteractive"}, timeout=240)


@pytest.fixture
def fresh(deb: Path) -> Node:
    """A node that never booted: cloud-init, the driver's and the kubelet's stand-ins, and no
    gpu-gate."""
    node = Node(tree.standins(tree.layer("cloud-init", tree.base("bookworm"), install, APT)))
    node.put("/etc/simgpu.conf", BROKEN)
    # The harder case: the kubelet's start is one of a boot's last jobs, asked for by cloud-init.
    node.systemctl("disable", "--quiet", "kubelet.service")
    node.put(f"{SEED}/meta-data", "instance-id: first\nlocal-hostname: gpu-node\n")
    node.copy(IMAGES / "cloud-init/user-data.yaml", f"{SEED}/user-data")
    node.put("/etc/cloud/cloud.cfg.d/99-test.cfg", SLIM)
    node.copy(deb, f"{SITE}/gpu-gate.deb")
    node.copy(IMAGES / "install", f"{SITE}/install")
    node.put("/root/server.py", SERVER)
    node.put("/etc/systemd/system/packages.service", SERVER_UNIT)
    node.run(CERTIFICATE)
    return node


def test_the_first_boot_ends_ungated_and_the_second_is_gated(fresh: Node) -> None:
    with fresh as node:
        node.boot()
        assert node.wait_booted() == "running", node.systemctl("--failed") + node.console()
        done = node.run("cloud-init status --wait --long", check=False)
        assert done.returncode == 0 and "status: done" in done.stdout, done.stdout + node.console()
        assert node.is_active("kubelet.service") and node.is_active("gpu-gate.service")
        assert "running node" in node.read("/run/gpu-gate/released")
        assert gate.status(node)["gate"]["ready"] is False
        assert "DeadlineSec=180s " in node.run("gpu-gate config").stdout

        node.systemctl("enable", "--quiet", "kubelet.service")
        gate.prepare(node, INCIDENT)
        node.reboot()
        assert node.wait_booted() == "running", node.systemctl("--failed") + node.console()
        gate.wait_ready(node)
        assert gate.entered(node, "kubelet.service") >= gate.entered(node, "gpu-gate.target") > 0
        assert gate.released(node)["kind"] == "Open"
        calls = [
            result
            for at, _, _, call, result in gate.nvml_calls(node)
            if call == "init" and float(at) < gate.entered(node, "gpu-gate.target")
        ]
        assert "999" in calls and calls[-3:] == ["0", "0", "0"], calls


def test_a_failed_installation_is_reported_and_the_kubelet_starts(fresh: Node) -> None:
    with fresh as node:
        node.run(f"rm {SITE}/gpu-gate.deb")
        node.boot()
        node.wait_booted()
        assert "status: error" in node.run("cloud-init status --wait --long", check=False).stdout
        assert node.is_active("kubelet.service") and not node.exists("/run/gpu-gate")
