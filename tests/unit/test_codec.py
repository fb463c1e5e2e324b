"""Model values as JSON and back, and what is refused at the door."""

from __future__ import annotations

import json
import random
from dataclasses import fields, is_dataclass
from enum import Enum
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import pytest

from agent.host.codec import decode, encode
from agent.model import snapshot as parts
from agent.model.errors import BundleError
from agent.model.finding import Finding
from agent.model.reading import Refusal, Seen, Why
from agent.model.snapshot import Clock, Devices, Entry, Manager, ProbeState, Unit

KINDS: tuple[Any, ...] = (
    Clock,
    Finding,
    ProbeState,
    parts.PciFunction,
    parts.DeviceNode,
    Seen[bytes] | Refusal,
    Seen[tuple[Entry, ...]] | Refusal,
    Seen[tuple[Unit, ...]] | Refusal,
    Seen[Manager] | Refusal,
    Seen[ProbeState] | Refusal,
    Seen[tuple[Devices, ...]] | Refusal,
    tuple[str, ...],
)


def made_up(kind: Any, rng: random.Random) -> Any:
    """A random value of a type."""
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return made_up(rng.choice(args), rng)
    if origin is tuple:
        return tuple(made_up(args[0], rng) for _ in range(rng.randrange(4)))
    target = origin or kind
    if target is type(None):
        return None
    if is_dataclass(target):
        hints = get_type_hints(target)
        made = {
            f.name: args[0] if isinstance(hints[f.name], TypeVar) else hints[f.name]
            for f in fields(target)
        }
        return target(**{name: made_up(hint, rng) for name, hint in made.items()})
    if issubclass(target, Enum):
        return rng.choice(list(target))
    return {
        bool: lambda: rng.random() < 0.5,
        int: lambda: rng.choice([0, -1, 195, 2**63]),
        float: lambda: rng.choice([0.0, 1.5, 1.7e9, float(rng.randrange(100))]),
        bytes: lambda: rng.randbytes(rng.randrange(30)),
        str: lambda: rng.choice(["", "0000:07:00.0", 'ä "\\\n\t', "\x00\x1b[31m", "x" * 300]),
    }[target]()


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_encoding_and_decoding_are_inverse(kind: Any) -> None:
    rng = random.Random(5)
    for _ in range(60):
        value = made_up(kind, rng)
        assert decode(kind, json.loads(json.dumps(encode(value)))) == value


def test_a_dictionary_and_an_older_bundle() -> None:
    assert decode(dict[str, int], encode({"nvidia": 195})) == {"nvidia": 195}
    assert decode(Entry, {"name": "nvidia0", "kind": "char"}) == Entry("nvidia0", "char")


# kind, what is in its place, a part of the sentence
REFUSED: list[tuple[Any, Any, str]] = [
    (str, 7, "expected str"),
    (int, True, "expected int"),
    (int, 7.0, "expected int"),
    (bool, 1, "expected bool"),
    (float, "1.5", "expected a number"),
    (float, True, "expected a number"),
    (float, None, "expected a number"),
    (bytes, "x", "expected bytes"),
    (bytes, {"base64": 7}, "expected bytes"),
    (bytes, {"base64": "ä!"}, "invalid base64"),
    (bytes, {"base64": "abc"}, "invalid base64"),
    (tuple[str, ...], "abc", "expected a list"),
    (tuple[str, ...], [1], "expected str"),
    (dict[str, int], [1], "expected an object"),
    (dict[str, int], {"a": "b"}, "expected int"),
    (Why, "tired", "'tired' is not a value of Why"),
    (Why, [], "[] is not a value of Why"),
    (Clock, {}, "Clock lacks a part"),
    (Clock, [], "expected an object"),
    (Clock, {"boottime": 1.0, "monotonic": 2.0}, "realtime"),
    (Seen[bytes] | Refusal, None, "expected a value"),
    (Seen[bytes] | Refusal, {"is": "Rumour"}, "'Rumour' is none of"),
    (Seen[bytes] | Refusal, {"is": ["Seen"]}, "is none of"),
    (Seen[bytes] | Refusal, [], "is none of"),
    (Seen[bytes] | Refusal, {"is": "Seen", "value": "x", "at": 1.0}, "expected bytes"),
    (Seen[bytes] | Refusal, {"is": "Seen", "at": 1.0}, "Seen lacks a part"),
    (Seen[bytes] | Refusal, {"is": "Refusal"}, "Refusal lacks a part"),
    (
        Seen[ProbeState] | Refusal,
        {"is": "Seen", "at": 1.0, "value": {"is": "ProbeState", "last": "soon"}},
        "none of",
    ),
]


@pytest.mark.parametrize(("kind", "data", "says"), REFUSED)
def test_other_content_is_refused_with_a_message(kind: Any, data: Any, says: str) -> None:
    with pytest.raises(BundleError) as refused:
        decode(kind, data)
    assert says in refused.value.sentence
    assert len(refused.value.sentence) < 400


def scramble(data: Any, rng: random.Random) -> Any:
    """The same JSON with one part somewhere replaced by junk."""
    if isinstance(data, dict) and data and rng.random() < 0.8:
        key = rng.choice(sorted(data))
        return {**data, key: scramble(data[key], rng)}
    if isinstance(data, list) and data and rng.random() < 0.8:
        at = rng.randrange(len(data))
        return [*data[:at], scramble(data[at], rng), *data[at + 1 :]]
    return rng.choice(
        [
            None,
            7,
            -1.5,
            "x",
            [],
            {},
            [[]],
            {"is": "Seen"},
            {"base64": "!"},
            True,
            "x" * 10_000,
            1e300,
        ]
    )


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_any_scrambled_answer_is_a_value_or_a_bundle_error(kind: Any) -> None:
    rng = random.Random(7)
    for _ in range(150):
        data = scramble(encode(made_up(kind, rng)), rng)
        try:
            decode(kind, data)
        except BundleError as refused:
            assert refused.sentence


def test_a_number_that_no_float_holds() -> None:
    with pytest.raises(BundleError):
        decode(float, 10**400)


@pytest.mark.parametrize(
    "instant",
    [
        pytest.param("NaN"),
        pytest.param("1e999"),
    ],
)
def test_an_instant_is_a_finite_number(instant: str) -> None:
    with pytest.raises(BundleError):
        decode(float, json.loads(instant))


def test_a_deeply_nested_answer() -> None:
    """As deep as json.loads takes it, in every place where the refusal quotes what it found."""
    for depth in (50, 300, 600, 900, 960, 980):
        try:
            data = json.loads("[" * depth + "]" * depth)
        except RecursionError:
            break
        with pytest.raises(BundleError):
            decode(str, data)
