"""How long a kubelet is held at most. The gate and the wait unit count alike, each by itself."""

from __future__ import annotations

from ...model.settings import Settings

MAX_HOLD_S = 1800.0


def hold_limit_s(settings: Settings, control_plane: bool) -> float:
    """The longest this node's kubelet is held, in seconds."""
    if settings.on_deadline == "hold":
        limit = min(max(settings.hold_s, settings.deadline_s), MAX_HOLD_S)
    else:
        limit = min(settings.deadline_s, MAX_HOLD_S)
    return min(limit, settings.control_plane_deadline_s) if control_plane else limit
