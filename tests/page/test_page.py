"""The page in a real headless Chromium: its content, its updates, and that it runs no data from the
node."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.engine.history import ActionHistory
from agent.model.access import GrantResult
from agent.service import http as http_room
from agent.service.status_parts import actions

from .browser import Browser, browser
from .served import Served, served
from .told import Telling, story

DESK, WIDE, PHONE, SMALL = (1280, 900), (1600, 1000), (390, 844), (360, 780)
LOST_GPU = """settings Prevent=report Heal=no
world gpus=8
do wait starts
do access is watched
do trainer holds 0 1 behind
run until ready
in 1 kernel xid 79 of gpu 3
in 1 gpu 3 gone
run 100
"""
LOST_DEVICES = """settings Prevent=report Heal=no
world gpus=8
do access is watched
do trainer holds 0 1 behind
do kubelet starts
run until ready
run 3
do daemon-reload
run 12
"""
HOSTILE = (
    "<img src=x onerror=window.hit=1>",
    "</script><script>window.hit=2</script>",
    "javascript:window.hit=3",
    "\u202egpj.exe",
    "'\"><svg onload=window.hit=4>",
    "${window.hit=5}",
    "a" * 5000,
    "\x00\x1b[31m",
)


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("chromium")) as found:
        yield found


@pytest.fixture(autouse=True)
def unix_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_room, "SOCKET", str(tmp_path / "agent.sock"))


@pytest.fixture
def shown(chromium: Browser) -> Iterator[Any]:
    """shown(status) serves it and opens the page; at the end there must be no error."""
    opened = []
    chromium.look(*DESK)
    chromium.complaints.clear()

    def show(body: dict[str, Any]) -> Served:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        opened.append(served(body, port))
        answers = opened[-1].__enter__()
        chromium.go(f"http://127.0.0.1:{port}/")
        chromium.wait("document.getElementById('main')?.hidden === false")
        return answers

    yield show
    assert chromium.complaints == []
    chromium.go("about:blank")
    for one in opened:
        one.__exit__(None, None, None)


def text_of(page: Browser, selector: str) -> str:
    return str(page.value(f"document.querySelector({selector!r}).innerText"))


def test_a_broken_node(chromium: Browser, shown: Any) -> None:
    shown(Telling(LOST_GPU).status())
    assert text_of(chromium, "h1") == "Not ready"
    assert "BLOCKED" in text_of(chromium, "#facts") and "GpuFellOffBus" in text_of(
        chromium, "#facts"
    )
    focus = text_of(chromium, "#focus")
    assert focus.startswith("5 NVML") and "0000:1f:00.0" in focus and "reboot the node" in focus
    assert chromium.value("[...document.querySelectorAll('#links li')].map(l => l.className)") == [
        "",
        "",
        "",
        "",
        "is-broken",
        *["is-after"] * 9,
    ]
    assert "0000:1f:00.0\tnot shown" in text_of(chromium, "#gpus").replace("\n", "")
    held = text_of(chromium, "#held")
    assert (
        "kube-system/trainer-0" in held and "will lose" in held and "the legacy NVIDIA hook" in held
    )
    assert "Not ready: 7 of 8" in text_of(chromium, "#spoken")
    assert chromium.value("document.title").startswith("✕ Not ready")


def test_a_healthy_node_with_its_repairs(chromium: Browser, shown: Any) -> None:
    shown(story("repair_seed_003").status())
    assert text_of(chromium, "h1") == "Ready"
    assert (
        chromium.value("document.querySelectorAll('#links .is-broken, #links .is-after').length")
        == 0
    )
    assert chromium.value("document.querySelectorAll('#gpus tbody tr').length") == 8
    acts = text_of(chromium, "#acts")
    assert (
        "Failed to initialize NVML: Unknown Error" in acts and "the kubelet lists every GPU" in acts
    )
    assert "/var/lib/gpu-gate/evidence/" in acts and "disruptive" in acts
    boot = text_of(chromium, "#time")
    for what in ("kubelet.service", "NVML was stable", "The kubelet listed every GPU: ready"):
        assert what in boot


def test_a_container_that_lost_its_gpus_and_got_them_back(chromium: Browser, shown: Any) -> None:
    telling = Telling(LOST_DEVICES)
    answers = shown(telling.status())
    assert text_of(chromium, "h1") == "Ready"
    assert "1 container may not open what was given" in text_of(chromium, "#facts")
    focus = text_of(chromium, "#focus")
    assert focus.startswith("12 Workloads") and "AccessDenied: fails" in focus
    assert chromium.value("document.querySelectorAll('#links .is-broken').length") == 1
    assert "denied" in text_of(chromium, "#held tbody tr") and "given it back" not in text_of(
        chromium, "#held"
    )
    body = telling.status()
    lost = next(row for row in body["access"] if row["now"] == "denied")
    lost.update(now="allowed", after_reload="allowed")
    history = ActionHistory()
    history.added(
        tuple(
            GrantResult(
                lost["id"], lost["unit"], "kube-system/trainer-0 trainer", 0.0, given_back=(name,)
            )
            for name in ("/dev/nvidia0", "/dev/nvidiactl")
        ),
        body["boot"]["at_s"] + 60,
    )
    body["actions"] += actions(None, history.recent)
    answers.say(body)
    words = "had lost /dev/nvidia0, /dev/nvidiactl, and was given it back at "
    chromium.wait(f"document.querySelector('#held').innerText.includes('{words}')")
    assert "denied" not in text_of(chromium, "#held") and "may not open" not in text_of(
        chromium, "#facts"
    )


def test_names_of_gpus_stay_on_one_line_if_there_is_room(chromium: Browser, shown: Any) -> None:
    body = Telling(LOST_DEVICES).status()
    for gpu in body["probe"]["last"]["gpus"]:
        gpu["name"] = "NVIDIA H100 80GB HBM3"
    shown(body)
    for size in (DESK, WIDE):
        chromium.look(*size)
        assert chromium.value(LINES) == [1] * 8


LINES = """[...document.querySelectorAll('td.gpu')].map((cell) => {
    const range = document.createRange();
    range.selectNodeContents(cell.lastChild);
    return range.getClientRects().length; })"""


def test_the_page_follows_the_node(chromium: Browser, shown: Any) -> None:
    """From a boot that waits to ready, and back, without being loaded again."""
    telling = Telling(
        "world gpus=8\ndo plugin is version=0.9\ndo nvml 999\nat 1 kubelet starts\nrun 5\n"
    )
    answers = shown(telling.status())
    chromium.value("window.mine = 1")
    assert "999" in text_of(chromium, "#why") and text_of(chromium, "#focus").startswith("5 NVML")
    telling.do("do nvml ok\nrun until ready\nrun 60\n")
    answers.say(telling.status())
    chromium.wait("document.querySelector('h1').innerText === 'Ready'")
    assert "stopping and removing container" in text_of(chromium, "#acts")
    telling.do("do gpu 3 gone\ndo kernel xid 79 of gpu 3\nrun 100\n")
    answers.say(telling.status())
    chromium.wait("document.querySelector('h1').innerText === 'Not ready'")
    assert chromium.value("window.mine") == 1


def test_data_of_the_node_is_inserted_as_text(chromium: Browser, shown: Any) -> None:
    for word in HOSTILE:
        shown(hostile(Telling(LOST_GPU).status(), word))
        chromium.wait("!document.getElementById('held').innerText.includes('trainer-0')")
        for n in range(14):
            chromium.value(f"document.querySelectorAll('#links button')[{n}].click()")
        assert chromium.value("window.hit") is None
        assert chromium.value("document.images.length + document.scripts.length") == 1
        assert chromium.value("document.documentElement.scrollWidth <= innerWidth")


def hostile(value: Any, word: str, name: str = "") -> Any:
    """The status with every free text of it turned into `word`; what has a closed set of values
    stays."""
    if isinstance(value, dict):
        return {key: hostile(inside, word, key) for key, inside in value.items()}
    if isinstance(value, list):
        return [hostile(inside, word, name) for inside in value]
    closed = (
        "is",
        "phase",
        "verdict",
        "now",
        "after_reload",
        "at_risk",
        "end",
        "heals",
        "loss",
        "given",
    )
    return word if isinstance(value, str) and name not in closed else value


def test_the_policy_allows_nothing_else(chromium: Browser, shown: Any) -> None:
    """Were something from the node ever to become markup, it would still not be run."""
    shown(story("repair_seed_003").status())
    chromium.value("""(() => {
        const script = document.createElement('script');
        script.textContent = 'window.hit = 1';
        document.body.append(script);
        document.body.insertAdjacentHTML('beforeend', '<img src=x onerror="window.hit = 2"><base href="http://evil/">'
            + '<style>body { color: red }</style><iframe src="/status"></iframe>');
    })()""")
    said = chromium.value("fetch('http://127.0.0.2:1/').then(() => 'fetched', () => 'refused')")
    assert (chromium.value("window.hit"), said) == (None, "refused")
    assert chromium.value("getComputedStyle(document.body).color") != "rgb(255, 0, 0)"
    assert len([c for c in chromium.complaints if "Content Security Policy" in c]) >= 5
    chromium.complaints.clear()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESK, WIDE, PHONE, SMALL])
def test_themes_and_sizes(chromium: Browser, shown: Any, theme: str, size: tuple[int, int]) -> None:
    """Nothing is wider than the screen, and every text stands out from what is behind it (WCAG
    1.4.3: 4.5 to 1)."""
    chromium.look(*size, theme, is_phone=size in (PHONE, SMALL), prefers_reduced_motion="reduce")
    shown(Telling(LOST_GPU).status())
    assert chromium.value("document.documentElement.scrollWidth") == size[0]
    assert chromium.value("matchMedia('(prefers-color-scheme: dark)').matches") is (theme == "dark")
    assert (
        chromium.value("getComputedStyle(document.querySelector('#links .dot')).transitionDuration")
        == "0s"
    )
    assert chromium.value(CONTRAST) == []


CONTRAST = """(() => {
    const parse = (colour) => (colour.match(/[\\d.]+/g) || []).map(Number);
    const light = ([r, g, b]) => { const f = (v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
        return 0.2126 * f(r) + 0.7152 * f(g) + 0.0722 * f(b); };
    const ground = (node) => { for (let at = node; at; at = at.parentElement) {
        const found = parse(getComputedStyle(at).backgroundColor);
        if (found.length === 3 || found[3] > 0.9) return found; }
        return [255, 255, 255]; };
    const found = [];
    for (const node of document.querySelectorAll('main *, header *, footer *')) {
        const has = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
        if (!has || !node.getClientRects().length || node.closest('.unseen, .is-after')) continue;
        const [a, b] = [light(parse(getComputedStyle(node).color)), light(ground(node))].sort((x, y) => y - x);
        if ((a + 0.05) / (b + 0.05) < 4.5) found.push(node.textContent.slice(0, 40) + ' ' + (a + 0.05) / (b + 0.05));
    }
    return found; })()"""


def test_keyboard_and_screen_reader(chromium: Browser, shown: Any) -> None:
    shown(Telling(LOST_GPU).status())
    chromium.press("Tab")
    assert "PCI" in chromium.value("document.activeElement.innerText")
    chromium.press("ArrowRight")
    chromium.press("Enter")
    chromium.wait("document.querySelector('#focus h3').innerText.startsWith('2 Driver')")
    nodes = chromium.tell("Accessibility.getFullAXTree")["nodes"]
    heard = [node for node in nodes if "role" in node and not node["ignored"]]
    said = {(node["role"]["value"], node.get("name", {}).get("value", "")) for node in heard}
    roles = {role for role, _ in said}
    assert {
        "main",
        "banner",
        "contentinfo",
        "heading",
        "list",
        "table",
        "region",
        "status",
    } <= roles
    buttons = {name for role, name in said if role == "button"}
    assert len(buttons) == 14
    assert "5 NVML, fails, the first broken link" in {
        " ".join(b.split()).replace(" ,", ",") for b in buttons
    }
    assert ("heading", "Not ready") in said


def test_without_javascript_the_page_lists_the_addresses(chromium: Browser, shown: Any) -> None:
    answers = shown(story("no_gpu").status())
    chromium.tell("Emulation.setScriptExecutionDisabled", value=True)
    try:
        chromium.go(f"http://{answers.where}/?again")
        chromium.wait("document.body?.innerText.includes('gpu-gate status')")
    finally:
        chromium.tell("Emulation.setScriptExecutionDisabled", value=False)


def test_a_missing_agent_is_shown_until_it_returns(chromium: Browser, shown: Any) -> None:
    answers = shown(story("repair_seed_003").status())
    chromium.wait("document.getElementById('live').innerText.startsWith('live')")
    assert answers.faces is not None
    answers.loop.call_soon_threadsafe(answers.faces.close)
    chromium.wait("document.getElementById('live').innerText.startsWith('no answer')")
    with served(answers.body, int(answers.where.rpartition(":")[2])):
        chromium.wait("document.getElementById('live').innerText.startsWith('live')")
        chromium.go("about:blank")
    chromium.complaints[:] = [c for c in chromium.complaints if "ERR_" not in c]
