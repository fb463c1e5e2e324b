"""What a unit's own device list lets its processes do: DevicePolicy= and DeviceAllow= as systemd
reads them.

Facts of systemd v252 (src/core/cgroup.c cgroup_apply_devices, src/core/bpf-devices.c), the same in
v257:

* "strict" allows what the list names; "closed", and "auto" with a list, the usual pseudo devices
  besides; "auto"
  with an empty list everything.
* "/dev/char/MAJOR:MINOR" is taken by its numbers and needs no node; another path is a node of the
  host.
* "char-NAME" is every major of that name (a shell pattern) in /proc/devices; a number does for a
  name.
* Entries add up: a node may be used as all that fit it allow together.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

Number = tuple[str, int, int]
'kind ("c" or "b"), major, minor'
ANY = -1
"in the place of a major or minor: every one"
_PLACE = re.compile(r"/dev/(char|block)/(\d{1,9}):(\d{1,9})")
_GROUP = re.compile(r"(char|block)-(.+)")
CLOSED = (
    ("/dev/char/1:3", "rwm"),
    ("/dev/char/1:5", "rwm"),
    ("/dev/char/1:7", "rwm"),
    ("/dev/char/1:8", "rwm"),
    ("/dev/char/1:9", "rwm"),
    ("/dev/char/5:0", "rwm"),
    ("/dev/char/5:2", "rwm"),
    ("char-pts", "rw"),
)
"null, zero, full, random, urandom, tty, ptmx and the terminals (bpf_devices_allow_list_static)"


def grants(
    policy: str,
    allow: Iterable[tuple[str, str]],
    majors: Mapping[str, int] | None = None,
    nodes: Mapping[str, Number] | None = None,
) -> dict[Number, frozenset[str]]:
    """What the list allows: rights by number, ANY for every major or minor. What it cannot tell
    allows nothing.

    `majors`: character majors by name, of /proc/devices; `nodes`: numbers of other nodes of this
    host by path.
    """
    allow = tuple(allow)
    if policy == "auto" and not allow:
        return {("c", ANY, ANY): frozenset("rwm"), ("b", ANY, ANY): frozenset("rwm")}
    found: dict[Number, frozenset[str]] = {}
    for path, rights in (*(CLOSED if policy in ("closed", "auto") else ()), *allow):
        for number in _numbers(path, majors or {"pts": 136}, nodes or {}):
            found[number] = found.get(number, frozenset()) | (frozenset(rights) & frozenset("rwm"))
    return found


def rights_of(granted: Mapping[Number, frozenset[str]], number: Number) -> frozenset[str]:
    """r, w and m of one node under such grants."""
    kind, major, _ = number
    fitting = (number, (kind, major, ANY), (kind, ANY, ANY))
    return frozenset().union(*(granted.get(each, frozenset()) for each in fitting))


def entry_of(number: Number) -> str:
    """How systemd calls it: /dev/char/195:0, char-195, char-*."""
    kind, major, minor = number
    word = "char" if kind == "c" else "block"
    if major == ANY:
        return f"{word}-*"
    return f"{word}-{major}" if minor == ANY else f"/dev/{word}/{major}:{minor}"


def _numbers(path: str, majors: Mapping[str, int], nodes: Mapping[str, Number]) -> list[Number]:
    if place := _PLACE.fullmatch(path):
        return [("c" if place[1] == "char" else "b", int(place[2]), int(place[3]))]
    if group := _GROUP.fullmatch(path):
        kind, name = "c" if group[1] == "char" else "b", group[2]
        if name == "*":
            return [(kind, ANY, ANY)]
        if name.isdecimal() and len(name) < 10:
            return [(kind, int(name), ANY)]
        return [
            (kind, major, ANY)
            for known, major in majors.items()
            if kind == "c" and fnmatchcase(known, name)
        ]
    return [nodes[path]] if path in nodes else []
