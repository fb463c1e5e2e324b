"""Rules, dashboards and /metrics agree, as checked by Prometheus's own tools."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent.service.metrics import families, render
from tests.service.test_metrics import BEFORE

ROOT = Path(__file__).resolve().parents[1]
MONITORING = ROOT / "packaging" / "monitoring"
NAMES = {name for name, *_ in families(BEFORE)}
RULES: list[dict[str, Any]] = yaml.safe_load((MONITORING / "gpu-gate.rules.yml").read_text())[
    "groups"
][0]["rules"]
SEVERITIES = {"critical": 1, "warning": 2, "info": 3}


@pytest.fixture(scope="module")
def promtool() -> str:
    words = [str(ROOT / "tests/tools/fetch-program"), "prometheus", "usr/bin/promtool"]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()


def passes(*words: str, text: str = "") -> None:
    done = subprocess.run(
        words, input=text, capture_output=True, text=True, cwd=MONITORING, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_rules_are_valid_and_fire_as_tested(promtool: str):
    passes(promtool, "check", "rules", "gpu-gate.rules.yml")
    passes(promtool, "test", "rules", "gpu-gate.rules.test.yml")


def test_the_metrics_follow_prometheus_naming(promtool: str):
    passes(promtool, "check", "metrics", text=render(BEFORE))


def test_every_alert_has_a_runbook_and_uses_existing_metrics():
    pages = re.findall(r"^## (\w+)$", (ROOT / "docs/alerts.md").read_text(), re.MULTILINE)
    assert pages == [rule["alert"] for rule in RULES]
    for rule in RULES:
        assert rule["annotations"]["runbook_url"] == f"docs/alerts.md#{rule['alert'].lower()}"
        assert set(re.findall(r"gpu_gate_\w+", rule["expr"])) <= NAMES


def test_the_scrape_example_labels_each_node(promtool: str, tmp_path: Path):
    said = (ROOT / "docs/alerts.md").read_text().partition("```yaml\n")[2].partition("```")[0]
    (target,) = yaml.safe_load(said)["scrape_configs"][0]["static_configs"]
    assert target["targets"] == ["127.0.0.1:9477"] and target["labels"]["instance"]
    (tmp_path / "prometheus.yml").write_text(said)
    passes(promtool, "check", "config", str(tmp_path / "prometheus.yml"))


def test_nightingale_has_the_same_rules():
    told = {row["name"]: row for row in json.loads((MONITORING / "n9e-rules.json").read_text())}
    assert list(told) == [rule["alert"] for rule in RULES]
    for rule in RULES:
        (query,) = told[rule["alert"]]["rule_config"]["queries"]
        assert query["prom_ql"] == " ".join(rule["expr"].split())
        assert query["severity"] == SEVERITIES[rule["labels"]["severity"]]
        number, unit = re.fullmatch(r"(\d+)([smh])", rule.get("for", "0s")).groups()  # type: ignore[union-attr]
        assert (
            told[rule["alert"]]["prom_for_duration"]
            == int(number) * {"s": 1, "m": 60, "h": 3600}[unit]
        )


def test_the_dashboard_uses_existing_metrics_and_its_panels_do_not_overlap():
    board = json.loads((MONITORING / "grafana-dashboard.json").read_text())
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        for target in panel["targets"]:
            asked = set(re.findall(r"gpu_gate_\w+", target["expr"]))
            assert asked and asked <= NAMES, target["expr"]
        if panel["type"] == "stat":
            # Grafana's own default is green below 80: one node that is not ready is none of that.
            well, ill = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
            assert (well["value"], well["color"], ill["value"]) == (None, "green", 1) and ill[
                "color"
            ] != "green"
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken and place["x"] + place["w"] <= 24
        taken |= cells
