"""The part of JSON Schema (2020-12) that docs/status.schema.json is written in; any other keyword
is an error.

Stricter than its readers may be: a member that the schema does not name is a fault, so that nothing
is added to /status and not to its schema.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

TYPES: dict[str, Any] = {
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
    "null": type(None),
    "array": list,
    "object": dict,
}
KNOWN = {
    "type",
    "properties",
    "required",
    "additionalProperties",
    "items",
    "maxItems",
    "enum",
    "const",
    "anyOf",
    "$ref",
    "minimum",
    "maximum",
    "description",
    "title",
    "$schema",
    "$defs",
}


def faults(
    value: Any, schema: dict[str, Any], root: dict[str, Any], at: str = "$"
) -> Iterator[str]:
    """What does not fit, and where."""
    assert schema.keys() <= KNOWN, (
        f"{at}: this checker does not know {sorted(schema.keys() - KNOWN)}"
    )
    if "$ref" in schema:
        yield from faults(value, root["$defs"][schema["$ref"].removeprefix("#/$defs/")], root, at)
    if "anyOf" in schema and all(list(faults(value, one, root, at)) for one in schema["anyOf"]):
        yield (
            f"{at}: {str(value)[:60]} fits none: "
            f"{[list(faults(value, one, root, at)) for one in schema['anyOf']]}"
        )
    if "enum" in schema and value not in schema["enum"]:
        yield f"{at}: {value!r} is none of {schema['enum']}"
    if "const" in schema and value != schema["const"]:
        yield f"{at}: {value!r} is not {schema['const']!r}"
    if "type" in schema:
        names = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
        if not any(
            isinstance(value, TYPES[n]) and (n == "boolean" or not isinstance(value, bool))
            for n in names
        ):
            yield f"{at}: {value!r} is no {'/'.join(names)}"
            return
    if isinstance(value, (int, float)) and not schema.get("minimum", value) <= value <= schema.get(
        "maximum", value
    ):
        yield f"{at}: {value} is out of bounds"
    if isinstance(value, dict) and schema.get("type") == "object":
        yield from _of_object(value, schema, root, at)
    if isinstance(value, list):
        if len(value) > schema.get("maxItems", len(value)):
            yield f"{at}: {len(value)} are too many"
        for n, item in enumerate(value):
            yield from faults(item, schema.get("items", {}), root, f"{at}[{n}]")


def _of_object(
    value: dict[str, Any], schema: dict[str, Any], root: dict[str, Any], at: str
) -> Iterator[str]:
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{at}: lacks {name}"
    others = schema.get("additionalProperties", False)
    for name, item in value.items():
        inside = schema.get("properties", {}).get(name, others)
        if inside is False:
            yield f"{at}: {name} is not in the schema"
        else:
            yield from faults(item, inside, root, f"{at}.{name}")
