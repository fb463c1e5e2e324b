"""Queries the metric store and the alert manager about this node, for `gpu-gate doctor --cluster`.

Prometheus and VictoriaMetrics answer /api/v1/query alike. Alerts come from Alertmanager's
/api/v2/alerts, or from Nightingale (n9e), which evaluates its own rules:
/api/n9e/alert-cur-events/list (center/router of ccfos/nightingale).
"""

from __future__ import annotations

import http.client
import json
import math
import os
import socket
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ..model.cluster import Alert, ClusterReport, Sample
from ..model.reading import Reading, Refusal, Seen, Why
from ..model.settings import Settings
from ..transport.clock import boottime

T = TypeVar("T")

WITHIN_S = 3.0
"""To connect, and between two parts of a response: the doctor must not wait long for a cluster."""
MOST_BYTES = 4 << 20
_NODE_LABELS = (
    "node",
    "instance",
    "ident",
    "hostname",
    "nodename",
    "kubernetes_node",
    "target_ident",
)


def ask(settings: Settings) -> ClusterReport:
    """Query both servers; each answer is a reading of its own."""
    node = settings.node_name or socket.gethostname().lower()
    return ClusterReport(_samples(settings, node), _alerts(settings, node))


def _samples(settings: Settings, node: str) -> Reading[Sequence[Sample]]:
    if not settings.prometheus:
        return Refusal(Why.NOT_ASKED, "[Cluster] Prometheus= names no metric store")

    def both() -> list[Sample]:
        selector = f'kube_node_status_allocatable{{node="{_quoted(node)}"}}'
        scraped = {
            _key(row): _finite(row["value"][1])
            for row in _query(settings, f"timestamp({selector})")
        }
        rows = _query(settings, selector)
        return [
            Sample(
                row["metric"]["resource"],
                _finite(row["value"][1]),
                scraped.get(_key(row), _finite(row["value"][0])),
            )
            for row in rows
        ]

    return _reading(both)


def _finite(value: str | float) -> float:
    """Parse a sample. Raises ValueError for NaN and +Inf, which Prometheus writes as well."""
    found = float(value)
    if not math.isfinite(found):
        raise ValueError(f"a sample is {value}")
    return found


def _key(row: dict[str, Any]) -> tuple[str, str]:
    return str(row["metric"].get("resource", "")), str(row["metric"].get("instance", ""))


def _query(settings: Settings, expression: str) -> list[dict[str, Any]]:
    query = urllib.parse.urlencode({"query": expression})
    found = _get(f"{settings.prometheus.rstrip('/')}/api/v1/query?{query}", "")
    rows: list[dict[str, Any]] = found["data"]["result"]
    return rows


def _alerts(settings: Settings, node: str) -> Reading[Sequence[Alert]]:
    if settings.alertmanager:
        return _reading(lambda: _of_alertmanager(settings.alertmanager, node))
    if settings.n9e:
        return _reading(lambda: _of_n9e(settings, node))
    return Refusal(Why.NOT_ASKED, "[Cluster] Alertmanager= or N9e= names no alert manager")


def _of_alertmanager(address: str, node: str) -> list[Alert]:
    rows = _get(f"{address.rstrip('/')}/api/v2/alerts?active=true&silenced=true&inhibited=true", "")
    return [
        Alert(str(row["labels"].get("alertname", "?")), str(row["startsAt"]))
        for row in rows
        if _is_ours(row["labels"], node)
    ]


def _of_n9e(settings: Settings, node: str) -> list[Alert]:
    token = ""
    if settings.n9e_token_file:
        with open(settings.n9e_token_file, encoding="utf-8") as file:
            token = file.read().strip()
    query = urllib.parse.urlencode({"limit": 1000, "query": node})
    found = _get(f"{settings.n9e.rstrip('/')}/api/n9e/alert-cur-events/list?{query}", token)
    if found.get("err"):
        raise ValueError(f"Nightingale returned an error: {found['err']}")
    alerts = []
    for row in found["dat"]["list"]:
        labels = dict(part.partition("=")[::2] for part in row.get("tags") or ())
        if _is_ours({**labels, "ident": row.get("target_ident") or labels.get("ident", "")}, node):
            alerts.append(Alert(str(row["rule_name"]), str(row["trigger_time"])))
    return alerts


def _is_ours(labels: dict[str, Any], node: str) -> bool:
    """True if a label names the node. `instance` is often host:port."""
    return any(
        str(labels.get(name, "")).rsplit(":", 1)[0] == node or str(labels.get(name, "")) == node
        for name in _NODE_LABELS
    )


def _get(address: str, token: str) -> Any:
    headers = {"Accept": "application/json", **({"X-User-Token": token} if token else {})}
    try:
        # The address comes from the configuration file, which only root can write.
        request = urllib.request.Request(address, headers=headers)  # noqa: S310
        with urllib.request.urlopen(request, timeout=WITHIN_S) as answer:  # noqa: S310
            data = answer.read(MOST_BYTES + 1)
    except urllib.error.HTTPError as refused:
        refused.close()  # the error holds an open response
        raise
    if len(data) > MOST_BYTES:
        raise ValueError(f"{address}: more than {MOST_BYTES >> 20} MiB")
    return json.loads(data)


def _reading(ask_it: Callable[[], Sequence[T]]) -> Reading[Sequence[T]]:
    """Call `ask_it`; turn every error of the server or the network into a refusal."""
    try:
        return Seen(ask_it(), boottime())
    except TimeoutError as exc:
        return Refusal(Why.TIMED_OUT, str(exc))
    except OSError as exc:  # urllib's errors are OSErrors
        reason = getattr(exc, "reason", None) or (os.strerror(exc.errno) if exc.errno else exc)
        return Refusal(
            Why.TIMED_OUT if isinstance(reason, TimeoutError) else Why.FAILED, str(reason)
        )
    except (
        ValueError,
        KeyError,
        TypeError,
        IndexError,
        AttributeError,
        RecursionError,
        http.client.HTTPException,
    ) as exc:  # which is neither an OSError nor a ValueError
        return Refusal(Why.FAILED, f"malformed response: {type(exc).__name__} {exc}"[:200])


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
