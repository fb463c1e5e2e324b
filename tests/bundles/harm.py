"""One recorded answer in another's place: missing, refused, truncated, garbage, huge, of the wrong
type."""

from __future__ import annotations

import base64
import copy
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from agent.model.reading import Why

JUNK = (
    b"",
    b"\0" * 99,
    b"\xff\xfe\xc3\x28 99\n",
    b"[" * 40_000,
    b"null",
    b"[]",
    b'{"Data": 7}',
    b"{}",
    b"-1",
    b"NaN",
    b'{"Data":{"RegisteredDevices":{"nvidia.com/gpu":7}}}',
    b'{"at": 1e999, "reason": 7}',
    b"\x1b[2J\r\n" * 9,
)
TEXTS = ("", "x" * 70_000, "\0", "\ud800", "-1", "\x1b]0;\x07", "nvidia", "0000:07:00.0", "None")
NUMBERS = (0, -1, 1, 255, 1 << 31, (1 << 63) - 1)
SECONDS = (0.0, -1.0, 1e-9, 4e9, 9.9e17, 34_560_000.0)
HUGE_BYTES, HUGE_LIST = 1 << 20, 400
OTHERS: tuple[Any, ...] = (None, 7, "x", [], {}, [[]], {"is": "Seen"}, True, 1.5)


@dataclass(frozen=True)
class Harm:
    """What was done to the answer, and the answer then; None: it is gone."""

    kind: str
    answer: Any
    is_fact: bool = False
    "the node itself could have answered so: what is concluded from it need not be careful"


def harms(answer: Any, dice: random.Random) -> Iterator[Harm]:
    """Every kind once or a few times."""
    yield Harm("missing", None)
    if isinstance(answer, dict) and answer.get("is") in ("Seen", "Refusal"):
        for why in Why:
            yield Harm(
                f"refused {why.value}",
                {"is": "Refusal", "why": why.value, "detail": dice.choice(TEXTS[2:])},
                why is Why.MISSING,
            )
    if isinstance(answer, dict) and answer.get("is") == "Seen":
        yield from (
            Harm(h.kind, {**answer, "value": h.answer}, h.is_fact)
            for h in _of_value(answer["value"], dice)
        )
        yield Harm("at another time", {**answer, "at": dice.choice(SECONDS)})
    for other in dice.sample(OTHERS, 3):
        yield Harm("wrong type", other)
    for _ in range(3):
        yield Harm("another word in it", _with_another_leaf(answer, dice), is_fact=True)


def _of_value(value: Any, dice: random.Random) -> Iterator[Harm]:
    if isinstance(value, bytes):
        yield Harm("truncated", value[: dice.randrange(len(value) + 1)])
        yield Harm("its end", value[dice.randrange(len(value) + 1) :])
        for junk in dice.sample(JUNK, 4):
            yield Harm("garbage", junk)
        at = dice.randrange(len(value) + 1)
        yield Harm("garbage within", value[:at] + dice.choice(JUNK) + value[at:])
        yield Harm("huge", (value or b"\n") * (HUGE_BYTES // max(len(value), 1)))
        yield Harm("huge line", value + b"x" * HUGE_BYTES)
    elif isinstance(value, list):
        yield Harm("truncated", value[: dice.randrange(len(value) + 1)], is_fact=True)
        yield Harm("huge", (value * HUGE_LIST)[:HUGE_LIST])
        yield Harm("twice", [*value, *value])
    for other in dice.sample(OTHERS, 2):
        yield Harm(
            "wrong type", other, is_fact=other == [] and isinstance(value, list)
        )  # none of them


def _with_another_leaf(answer: Any, dice: random.Random) -> Any:
    """One part of it is another one of its type."""
    changed = copy.deepcopy(answer)
    places = list(_leaves(changed))
    if not places:
        return changed
    holder, key = dice.choice(places)
    old = holder[key]
    if isinstance(old, bool):
        holder[key] = not old
    elif isinstance(old, int):
        holder[key] = dice.choice(NUMBERS)
    elif isinstance(old, float):
        holder[key] = dice.choice(SECONDS)
    elif isinstance(old, str):
        holder[key] = dice.choice(TEXTS)
    return changed


def _leaves(of: Any) -> Iterator[tuple[Any, Any]]:
    items = of.items() if isinstance(of, dict) else enumerate(of) if isinstance(of, list) else ()
    for key, value in items:
        if isinstance(value, (dict, list)):
            yield from _leaves(value)
        elif key != "is":
            yield of, key


def plain(answer: Any) -> Any:
    """File contents as bytes, as a tape on disk holds them."""
    if isinstance(answer, dict):
        if set(answer) == {"base64"}:
            return base64.b64decode(answer["base64"])
        return {key: plain(value) for key, value in answer.items()}
    return [plain(part) for part in answer] if isinstance(answer, list) else answer


def question(key: str) -> str:
    return str(json.loads(key)[0])
