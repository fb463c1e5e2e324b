"""Model values as JSON, and back. Decoding checks every part."""

from __future__ import annotations

import base64
import functools
from dataclasses import fields, is_dataclass
from enum import Enum
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from ..model.errors import BundleError


def encode(value: Any) -> Any:
    """A model value as JSON. Dataclasses have their name under "is"; bytes are base64."""
    if is_dataclass(value) and not isinstance(value, type):
        parts = {f.name: encode(getattr(value, f.name)) for f in fields(value)}
        return {"is": type(value).__name__, **parts}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, (tuple, list)):
        return [encode(v) for v in value]
    if isinstance(value, dict):
        return {k: encode(v) for k, v in value.items()}
    return value


def decode(kind: Any, data: Any) -> Any:
    """A value of type `kind`. Raises BundleError, which names what was found instead."""
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return _decode_union(args, data)
    if origin is tuple:
        _want(isinstance(data, list), "a list", data)
        if args[-1] is not Ellipsis:
            _want(len(data) == len(args), f"a list of {len(args)}", data)
            return tuple(decode(arg, item) for arg, item in zip(args, data, strict=True))
        return tuple(decode(args[0], item) for item in data)
    if origin is dict:
        _want(isinstance(data, dict), "an object", data)
        return {str(k): decode(args[1], v) for k, v in data.items()}
    target = origin or kind
    if is_dataclass(target):
        return _decode_dataclass(target, args, data)
    if isinstance(target, type) and issubclass(target, Enum):
        try:
            return target(data)
        except ValueError as exc:
            raise BundleError(f"{data!r} is not a value of {target.__name__}") from exc
    return _decode_plain(target, data)


def _decode_union(args: tuple[Any, ...], data: Any) -> Any:
    if data is None:
        _want(type(None) in args, "a value", data)
        return None
    named = data.get("is") if isinstance(data, dict) else None
    for arg in args:
        target = get_origin(arg) or arg
        if target is type(None):
            continue
        if not is_dataclass(target) or getattr(target, "__name__", "") == named:
            return decode(arg, data)
    raise BundleError(f"{str(named or data)[:60]!r} is none of {', '.join(map(str, args))[:120]}")


def _decode_dataclass(target: Any, args: tuple[Any, ...], data: Any) -> Any:
    _want(isinstance(data, dict), "an object", data)
    hints = _hints(target)
    parts = {}
    for part in fields(target):
        if part.name in data:  # an older bundle lacks newer parts: their defaults mean "not asked"
            hint = args[0] if isinstance(hints[part.name], TypeVar) and args else hints[part.name]
            parts[part.name] = decode(hint, data[part.name])
    try:
        return target(**parts)
    except TypeError as exc:
        raise BundleError(f"{target.__name__} lacks a part: {exc}") from exc


@functools.lru_cache(maxsize=64)
def _hints(target: Any) -> dict[str, Any]:
    return get_type_hints(target)


def _decode_plain(target: Any, data: Any) -> Any:
    if target is bytes:
        if isinstance(data, bytes):
            return data
        _want(isinstance(data, dict) and isinstance(data.get("base64"), str), "bytes", data)
        try:
            return base64.b64decode(data["base64"], validate=True)
        except ValueError as exc:
            raise BundleError("invalid base64") from exc
    if target is float:
        _want(isinstance(data, (int, float)) and not isinstance(data, bool), "a number", data)
        _want(abs(data) < 1e18, "a finite number", data)
        return float(data)
    _want(type(data) is target, target.__name__, data)
    _want(target is not int or -(1 << 63) <= data < 1 << 64, "a number of 64 bits", data)
    return data


def _want(holds: bool, what: str, data: Any) -> None:
    if not holds:
        raise BundleError(f"expected {what}, found {str(data)[:60]!r}")
