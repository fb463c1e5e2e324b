"""How long a kubelet waits at most. The gate and the wait unit each compute it, in the same way."""

from __future__ import annotations

from ...model.settings import Settings

MAX_HOLD_S = 1800.0


def hold_limit_s(settings: Settings, control_plane: bool) -> float:
    """Seconds that the kubelet of this node waits at most.

    `control_plane`: the node carries a control plane, whose API server must not wait long."""
    if settings.on_deadline == "hold":
        limit = min(max(settings.hold_s, settings.deadline_s), MAX_HOLD_S)
    else:
        limit = min(settings.deadline_s, MAX_HOLD_S)
    return min(limit, settings.control_plane_deadline_s) if control_plane else limit
