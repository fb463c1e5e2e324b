"""YAML and JSON files as JSON text. PyYAML is imported when the first YAML file is read (1.3 MiB,
12 ms; 6.0).

Hostile files are refused first: libyaml's composer recurses in C, and 250,000 nested lists end the
process (PyYAML 6.0, libyaml 0.2.5). So depth and number are counted on the parser's events, which
do not recurse.
"""

from __future__ import annotations

import json
from typing import Any

MAX_DEPTH = 32
MAX_PARTS = 100_000


def as_json(data: bytes, is_json: bool) -> bytes:
    """The document as JSON text. Raises ValueError, with a sentence, if it is malformed."""
    if is_json:
        try:
            return json.dumps(json.loads(data)).encode()
        except RecursionError as exc:
            raise ValueError("it is nested too deeply") from exc
        except ValueError as exc:
            raise ValueError(f"it is not valid JSON: {exc}") from exc
    try:
        import yaml
    except ImportError as exc:
        raise ValueError("python3-yaml is not installed, so YAML files cannot be read") from exc
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        _bounded(yaml, data, loader)
        return json.dumps(yaml.load(data, Loader=loader), default=str).encode()  # noqa: S506 - a safe loader
    except yaml.YAMLError as exc:
        mark = getattr(exc, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark else ""
        raise ValueError(
            f"it is not valid YAML: {getattr(exc, 'problem', None) or 'unreadable'}{where}"
        ) from exc
    except (TypeError, OverflowError) as exc:
        raise ValueError(f"it has a value that JSON cannot hold: {exc}") from exc


def _bounded(yaml: Any, data: bytes, loader: Any) -> None:
    """Check depth and number of the parts, with every alias expanded, because JSON has none. Raises
    ValueError."""
    parts = 0
    stack: list[tuple[str | None, int, int]] = [
        (None, 0, 0)
    ]  # per open collection: its anchor, parts before, height
    known: dict[str | None, tuple[int, int]] = {}  # per anchor: parts and height
    for event in yaml.parse(data, Loader=loader):
        parts += 1
        height = 0
        if isinstance(event, yaml.CollectionStartEvent):
            stack.append((event.anchor, parts, 0))
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor not in known:
                raise ValueError("a part of it refers to itself")
            more, height = known[event.anchor]
            parts += more
        elif isinstance(event, yaml.ScalarEvent):
            known[event.anchor] = 1, 0
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, began, inner = stack.pop()
            height = inner + 1
            known[anchor] = parts - began, height
        anchor, began, inner = stack[-1]
        stack[-1] = anchor, began, max(inner, height)
        if len(stack) + height > MAX_DEPTH + 1 or parts > MAX_PARTS:
            raise ValueError(
                f"it is nested deeper than {MAX_DEPTH}, or has more than {MAX_PARTS} parts"
            )
