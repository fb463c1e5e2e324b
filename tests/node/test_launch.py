"""CDI and Launch= on a real systemd: the spec is written before the kubelet starts, the plugin
starts after the gate opens.

nvidia-cdi-refresh.service and nvidia-ctk are stand-ins: the unit as the toolkit 1.18 ships it (a
oneshot that stays active, ordered after multi-user.target), its program writes a spec of the GPUs
that the stand-in NVML shows.
"""

from __future__ import annotations

import gate
import repair
from nspawn import Node

SPEC = "/run/cdi/nvidia.yaml"
REFRESH = "nvidia-cdi-refresh.service"
REFRESH_UNIT = """\
[Unit]
ConditionPathExists=/usr/bin/nvidia-ctk
After=multi-user.target
[Service]
Type=oneshot
ExecStart=/usr/bin/nvidia-ctk
RemainAfterExit=yes
[Install]
WantedBy=multi-user.target
"""
CTK = r"""#!/bin/sh
# Writes what nvidia-ctk cdi generate would, or fails where /run/ctk-fails is there.
echo "$(cut -d' ' -f1 /proc/uptime)" >>/run/ctk.calls
[ ! -e /run/ctk-fails ] || exit 1
version=$(sed -n 's/.*Kernel Module  *\([0-9.]*\).*/\1/p' /proc/driver/nvidia/version)
touch "/usr/lib/libcuda.so.$version"
mkdir -p /run/cdi
{
    printf 'cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ncontainerEdits:\n  mounts:\n'
    printf '  - hostPath: /usr/lib/libcuda.so.%s\n    containerPath: /usr/lib/libcuda.so.%s\n' "$version" "$version"
    printf 'devices:\n'
    for n in 0 1; do
        printf -- '- name: "%s"\n  containerEdits:\n    deviceNodes:\n    - path: /dev/nvidia%s\n' "$n" "$n"
    done
} >/run/cdi/.nvidia.yaml.tmp
mv /run/cdi/.nvidia.yaml.tmp /run/cdi/nvidia.yaml
"""
MODE = '[nvidia-container-runtime]\nmode = "cdi"\n'
SOURCE, PLACED = "/etc/gpu-gate/plugin.yaml", "/etc/kubernetes/manifests/gpu-gate-plugin.yaml"
UNIT = "host-plugin.service"
UNIT_FILE = "[Service]\nExecStart=/usr/bin/sleep infinity\n"


def calls(node: Node) -> int:
    return len(node.run("cat /run/ctk.calls", check=False).stdout.split())


def launched(node: Node) -> str:
    return str(repair.finding(node, "PluginLaunched").get("because", ""))


def test_cdi_and_the_plugin_over_two_boots(make_node) -> None:
    node = make_node(boot=False)
    gate.prepare(node, "plug --gpus 2\nnvml init=999\n", f"{gate.QUICK}[Plugin]\nLaunch=manifest\n")
    node.put("/usr/bin/nvidia-ctk", CTK, mode=0o755)
    node.put(f"/etc/systemd/system/{REFRESH}", REFRESH_UNIT)
    node.put(f"/etc/systemd/system/{UNIT}", UNIT_FILE)
    node.put("/etc/nvidia-container-runtime/config.toml", MODE)
    node.run(
        f"mkdir -p /etc/systemd/system/multi-user.target.wants; mv {gate.MANIFEST} {SOURCE};"
        f"ln -s /etc/systemd/system/{REFRESH} /etc/systemd/system/multi-user.target.wants/"
    )
    node.boot()
    opens_with_its_spec(node)
    owners = node.read(PLACED)
    assert owners == node.read(SOURCE) and "placed" in launched(node)

    node.reboot()
    assert not node.exists(PLACED)  # before any kubelet could start it
    opens_with_its_spec(node)
    another_driver(node)
    the_unit_fails(node)
    another_manifest_is_left_alone(node)
    a_unit_is_launched_once(node)

    node.put(PLACED, owners)
    said = node.run("dpkg -r gpu-gate 2>&1", timeout=120).stdout
    assert f"removed {PLACED}" in said and not node.exists(PLACED)
    assert node.is_active("kubelet.service")


def opens_with_its_spec(node: Node) -> None:
    """Nothing starts while NVML fails; then the spec is written first, the kubelet starts second,
    the plugin third."""
    gate.wait_held(node)
    gate.wait_gate(node, reason="NvmlUnknown")
    assert (
        not node.exists(PLACED) and calls(node) == 0
    )  # the unit is ordered after multi-user.target
    node.run("simgpu nvml ok")
    gate.wait_ready(node)
    assert calls(node) == 1
    assert float(node.read("/run/ctk.calls")) < gate.entered(node, "kubelet.service")
    assert repair.finding(node, "CdiSpec")["verdict"] == "holds"
    assert repair.finding(node, "RuntimeHandler")


def another_driver(node: Node) -> None:
    """The spec names another driver than the loaded one: the unit, active since it ran, runs
    again."""
    node.run(f"sed -i s/550.54.15/535.161.07/ {SPEC}")
    gate.wait_why(node, f"{SPEC} names driver 535.161.07, loaded is 550.54.15")
    node.systemctl("restart", "gpu-gate.service")  # which has not asked for it in the last minute
    gate.wait_ready(node)
    assert calls(node) == 2


def the_unit_fails(node: Node) -> None:
    """The finding shows the command; after a repair by hand the agent notices at once."""
    node.run(f"touch /run/ctk-fails; rm {SPEC}")
    gate.wait_why(node, "no CDI spec of kind nvidia.com/gpu")
    node.run(f"rm /run/ctk-fails; systemctl restart {REFRESH}")
    gate.wait_ready(node)


def another_manifest_is_left_alone(node: Node) -> None:
    node.run(f"rm /run/gpu-gate/launched; sed -i '1i# theirs' {PLACED}")
    node.systemctl("restart", "gpu-gate.service")
    gate.until(
        lambda: "so it was not replaced" in gate.agent_log(node), lambda: gate.agent_log(node)
    )
    assert node.read(PLACED).startswith("# theirs") and "not launched yet" in launched(node)


def a_unit_is_launched_once(node: Node) -> None:
    """Not again in this boot, whoever stopped it."""
    gate.configure(node, f"{gate.QUICK}[Plugin]\nLaunch=unit\nUnit={UNIT}\n")
    node.systemctl("restart", "gpu-gate.service")
    node.wait_for(["systemctl", "is-active", UNIT])
    gate.until(lambda: f"{UNIT}: done" in launched(node), lambda: launched(node))
    node.systemctl("stop", UNIT)
    node.systemctl("restart", "gpu-gate.service")
    gate.wait_phase(node, "OPEN")
    gate.wait_first_cycle(node)
    assert not node.is_active(UNIT)
