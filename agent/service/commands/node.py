"""`gpu-gate node BOOT_ID`: the scheduling barrier, as gpu-gate-node.service starts it."""

from __future__ import annotations

from uuid import UUID

from ...model.errors import GateError
from ...model.settings import Settings
from .. import ask, log


def run(settings: Settings, boot_id: str, verbose: bool) -> int:
    """Run the barrier until SIGTERM.

    `boot_id` comes from systemd (%b): /proc of a node that is a container may show another one.
    Raises GateError if the Kubernetes client library is missing or `boot_id` is malformed.
    """
    try:
        from ...barrier import barrier
    except ModuleNotFoundError as exc:
        raise GateError(
            f"this verb needs the Kubernetes client library ({exc}): apt-get install gpu-gate-node"
        ) from exc
    try:
        boot_id = str(UUID(boot_id))
    except ValueError as exc:
        raise GateError(
            "gpu-gate node BOOT_ID is run by gpu-gate-node.service: systemctl start it"
        ) from exc
    log.set_up(verbose, "gpu-gate-node")
    agent = barrier.Agent(
        lambda: ask.get("/readyz", listen=settings.listen),
        lambda: ask.status(listen=settings.listen),
        ask.NoAgent,
    )
    return barrier.run(settings, agent, boot_id)
