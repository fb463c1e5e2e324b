"""The daemon's own log: one line per cycle that changed something."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from .. import __version__
from ..core.gate.states import Gate, Phase, Step
from ..engine.ports import LastCycle, Wakes
from ..model.access import GrantResult
from ..model.finding import Diagnosis
from ..model.reason import Reason
from . import config as configuration
from .log import (
    ACCESS_BACK,
    ACCESS_LOST,
    ALLOW_SURPRISE,
    GATE_CLOSED,
    GATE_HELD,
    GATE_OPENED,
    KUBELET_RELEASED,
    PROBE_HUNG,
    facts,
)

log = logging.getLogger(__name__)


def log_cycle(seen: LastCycle, decided: Step, reasons: Wakes, diagnosis: Diagnosis) -> None:
    """One line per cycle that changed something."""
    before, gate = seen.gate, decided.gate
    wake = ", ".join(map(str, reasons))
    values: dict[str, Any] = {
        "phase": gate.phase.value,
        "reason": gate.reason,
        "released": "yes" if gate.released else "no",
        "ready": "yes" if gate.ready else "no",
        "wake": wake,
    }
    if gate.released and not before.released:
        log.info("kubelet released: %s", gate.released, extra=facts(KUBELET_RELEASED, **values))
    if before.paused != gate.paused:
        log.info("%s", gate.paused or "no longer paused", extra=facts(**values))
    _log_access(seen.diagnosis, diagnosis)
    is_worse = not gate.ready and len(gate.troubles) > len(before.troubles)
    if is_worse or _stands(before) != _stands(gate):
        level = logging.WARNING if gate.phase is Phase.BLOCKED else logging.INFO
        log.log(
            level,
            "%s: %s (%s; woken by %s)",
            gate.phase.value,
            gate.why,
            _readiness(gate),
            wake,
            extra=facts(_message_id(gate), **values),
        )
    elif before.counted != gate.counted and before.why != gate.why:
        log.debug("probe %d: %s", gate.counted, gate.why, extra=facts(**values))


def _stands(gate: Gate) -> tuple[Phase, Reason, bool]:
    return gate.phase, gate.reason, gate.ready


def _readiness(gate: Gate) -> str:
    if gate.ready:
        return "ready"
    return "not ready" if gate.ready_why == gate.why else f"not ready: {gate.ready_why}"


def _log_access(before: Diagnosis | None, now: Diagnosis) -> None:
    """Log each container once when it loses its devices, and once when it has them again."""
    lost = {h.id for h in before.gpu_containers if h.denied} if before else set()
    for holder in now.gpu_containers:
        values = {
            "pod": f"{holder.namespace}/{holder.pod}",
            "container": holder.name,
            "container_id": holder.id,
        }
        if holder.denied and holder.id not in lost:
            log.warning(
                "%s/%s %s may not open %s: %s; for good: %s",
                holder.namespace,
                holder.pod,
                holder.name,
                ", ".join(d.name for d in holder.denied),
                holder.loss_why,
                holder.cure,
                extra=facts(ACCESS_LOST, reason=Reason.ACCESS_DENIED, **values),
            )
        elif holder.id in lost and holder.verdict and not holder.denied:
            log.info(
                "%s/%s %s may open its GPUs again",
                holder.namespace,
                holder.pod,
                holder.name,
                extra=facts(ACCESS_BACK, **values),
            )


def log_grants(done: tuple[GrantResult, ...]) -> None:
    """Log the results of DeviceAllow= updates; a device that an update took away is an error."""
    for one in done:
        values = {
            "pod": one.who.partition(" ")[0],
            "container": one.who.rpartition(" ")[2],
            "container_id": one.container_id,
            "unit": one.scope,
        }
        if one.lost:
            log.error(
                "%s LOST %s when devices were added to its scope: nothing is added to any "
                "scope until the next "
                "boot%s",
                one.who,
                ", ".join(one.lost),
                f"; {one.problem}" if one.problem else "",
                extra=facts(ALLOW_SURPRISE, reason=Reason.ALLOW_STOPPED, **values),
            )
        elif one.problem:
            log.warning(
                "could not update DeviceAllow= for %s: %s",
                one.who,
                one.problem,
                extra=facts(
                    reason=Reason.ACCESS_DENIED if one.still_denied else Reason.ACCESS_UNKNOWN,
                    **values,
                ),
            )
        elif one.given_back:
            log.warning(
                "%s had lost %s and has it back after %.3f s: its scope's DeviceAllow= names it",
                one.who,
                ", ".join(one.given_back),
                one.took_s,
                extra=facts(ACCESS_BACK, reason=Reason.ACCESS_DENIED, **values),
            )
        elif one.named:
            log.info(
                "%s keeps its devices at a daemon-reload: %s named in its scope's DeviceAllow=",
                one.who,
                ", ".join(one.named),
                extra=facts(reason=Reason.ACCESS_AT_RISK, **values),
            )


def log_config(config: configuration.Config, known: Sequence[configuration.Problem] = ()) -> None:
    """Log the settings in force and the problems.

    `known`: problems that were logged at the last load. They are only counted: a hundred lines at
    each of a hundred reloads would push everything else out of the journal.
    """
    for problem in config.problems:
        if problem not in known:
            log.warning("configuration: %s", problem)
    changed = [
        f"{key}={value}"
        for _, key, value, origin in configuration.rows(config)
        if origin != "default"
    ]
    wrong = f"; {len(config.problems)} problems: gpu-gate config --check" if config.problems else ""
    log.info(
        "gpu-gate %s, %s%s",
        __version__,
        " ".join(changed) or "every setting at its default",
        wrong,
        extra=facts(version=__version__),
    )


def log_event_sources(before: tuple[str, ...], now: tuple[str, ...]) -> None:
    """Log an event source when it becomes unavailable and when it is back."""
    for gone in set(now) - set(before):
        log.warning("event source unavailable; changes are detected by polling: %s", gone)
    for back in set(before) - set(now):
        log.info("event source is back: %s", back)


def _message_id(gate: Gate) -> str:
    if gate.phase is Phase.OPEN:
        return GATE_OPENED
    if gate.phase is Phase.BLOCKED:
        return GATE_HELD
    return PROBE_HUNG if gate.reason == Reason.PROBE_HUNG else GATE_CLOSED
