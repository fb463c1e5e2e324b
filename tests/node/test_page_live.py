"""The page of a live node in a real browser, through the three acts of the demo: loaded once, told
by polling /status.

Each state is held until the page has shown it: nothing here depends on how fast the machine is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import demo
import gate
import pytest
import repair
import tree
from conftest import MakeNode
from demo_access import ONLY_HEAL
from gpu_containers import Rig
from nspawn import Node
from view import viewed

from tests.page.browser import Browser, browser

FAILING = f"plug --gpus {demo.GPUS}\npersistenced: nvml init=999\n"
LATE_DRIVER = f"plug --gpus {demo.GPUS} --no-driver\npersistenced: nvml init=999\n"
SETTLES_LONG = "[Gate]\nStableProbes=20\nStableIntervalSec=5s\nDeadlineSec=1800s\n"


class Page:
    """What the browser shows of a node."""

    def __init__(self, browser: Browser) -> None:
        self.browser = browser

    def text(self, of: str) -> str:
        return str(self.browser.value(f"document.querySelector({of!r}).innerText"))

    def wait(self, of: str, *words: str) -> str:
        """Until that part of the page says all of it; what it says."""
        self.browser.wait(
            f"{list(words)}.every((word) => "
            f"document.querySelector({of!r})?.innerText.includes(word))"
        )
        return self.text(of)


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("chromium")) as found:
        yield found


@contextmanager
def opened(chromium: Browser, node: Node) -> Iterator[Page]:
    """The page, loaded once. At the end nobody complained, and nothing was asked of anybody
    else."""
    gate.wait_first_cycle(node)
    chromium.complaints.clear()
    with viewed(node) as where:
        chromium.asked.clear()
        chromium.look(1280, 900)
        chromium.go(where)
        chromium.wait("document.getElementById('main')?.hidden === false")
        chromium.value("window.loaded = 'once'")
        yield Page(chromium)
        assert chromium.value("window.loaded") == "once"
        assert {url for url in chromium.asked if not url.startswith("data:")} == {
            where,
            f"{where}status",
        }
        assert chromium.complaints == []
        chromium.go("about:blank")
        chromium.wait("location.href === 'about:blank'")


def test_the_page_shows_the_repair_of_a_node_that_missed_the_race(
    chromium: Browser, make_node: MakeNode, deb: Path
) -> None:
    """Act 1."""
    node = make_node(deb=False, boot=False)
    node.put("/etc/simgpu.conf", FAILING)
    demo.make_plugin_old_and_deaf(node)
    node.boot()
    node.wait_for("simcri ps -a")  # basic.target is there before the runtime is
    repair.wait_log(node, repair.plugin(node)["id"], "Failed to initialize NVML")
    node.run("simgpu nvml ok")
    node.put(gate.CONF, "[Plugin]\nRepair=report\n")
    tree.install_deb(node, deb)
    with opened(chromium, node) as page:
        page.wait(
            "#focus", "8 Plugin", "fails", "Failed to initialize NVML", "Links 9 to 14 depend on it"
        )
        assert page.text("h1") == "Not ready"
        assert (
            chromium.value("document.querySelector('#links .is-broken .name').innerText")
            == "Plugin"
        )
        node.run(f"rm {gate.CONF}")
        node.systemctl("reload", "gpu-gate")
        page.wait("h1", "Ready")
        acts = page.wait("#acts", "the kubelet lists every GPU")
        for what in (
            "stopping and removing container",
            "Failed to initialize NVML",
            "disruptive",
            repair.actions(node)[0]["evidence"],
        ):
            assert what in acts
        assert chromium.value("document.querySelectorAll('#links .is-broken').length") == 0
        assert "The kubelet listed every GPU: ready" in page.text("#time")


def test_the_page_shows_a_gated_boot_and_restored_devices(
    chromium: Browser, make_node: MakeNode
) -> None:
    """Acts 2 and 3."""
    node = make_node(boot=False)
    node.run(
        "at=/lib/modules/$(uname -r); mkdir -p $at; echo 'updates/dkms/nvidia.ko:' >$at/modules.dep"
    )
    gate.prepare(node, LATE_DRIVER, SETTLES_LONG)
    node.boot()
    with opened(chromium, node) as page:
        page.wait("#facts", "WAITING", "No, held back")
        node.run("simgpu driver load")
        page.wait("#facts", "PROBING")
        page.wait("#why", "999")
        node.run("simgpu nvml ok")
        page.wait("#facts", "SETTLING", "of 20)", "No, held back")
        assert gate.is_held(node)
        gate.configure(node, gate.QUICK + "[Access]\nPrevent=report\nHeal=no\n")
        node.systemctl("reload", "gpu-gate")
        page.wait("#facts", "OPEN", "Yes, released", "Yes, ready", "8 listed, 8 expected")
        assert page.text("h1") == "Ready"
        _lost_and_given_back(node, page)


def _lost_and_given_back(node: Node, page: Page) -> None:
    rig = Rig(node, "bookworm")
    trainer = rig.legacy("trainer", 1)
    page.wait("#held", "default/trainer-gpu-node", "will lose")
    rig.take_away(trainer)
    page.wait("#held tbody tr", "default/trainer-gpu-node", "denied")
    page.wait("#focus", "12 Workloads", "may not open what was given")
    page.wait("#facts", "1 container may not open what was given")
    gate.configure(node, gate.QUICK + ONLY_HEAL)
    node.systemctl("reload", "gpu-gate")
    held = page.wait("#held", "had lost ", "/dev/nvidiactl", "was given it back at ")
    assert "denied" not in held
    page.wait("#acts", "given back: ")
    assert page.text("h1") == "Ready"
