"""Link 11 as gpu-gate-node.service last read it: a file, for the API server is never asked from
here."""

from __future__ import annotations

from ...model.host import Host
from ...model.reading import Reading
from ...model.snapshot import NodeObject
from ..common import parse
from ..common.files import parsed_file
from ..common.paths import NODE_OBJECT

VERSION = 1


async def node_object(host: Host) -> Reading[NodeObject]:
    return await parsed_file(host, NODE_OBJECT, report)


def report(data: bytes) -> NodeObject | None:
    found = parse.json_object(data)
    if found is None or found.get("version") != VERSION:
        return None
    return NodeObject(
        seen_at=parse.number(found.get("seen_at")),
        trouble=str(found.get("trouble") or "")[:300],
        name=str(found.get("node") or ""),
        boot_id=str(found.get("boot_id") or ""),
        kubelet_heartbeat_at=parse.number(found.get("kubelet_heartbeat_at")),
        capacity=_quantities(found.get("capacity")),
        allocatable=_quantities(found.get("allocatable")),
    )


def _quantities(value: object) -> dict[str, str]:
    return (
        {str(name): str(quantity) for name, quantity in value.items()}
        if isinstance(value, dict)
        else {}
    )
