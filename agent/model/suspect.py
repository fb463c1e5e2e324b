"""A known fault as one look shows it, and how sure that is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from .condition import Link


class Strength(str, Enum):
    """How well what was seen carries a cause."""

    CONFIRMED = "confirmed"
    "its own mark was observed"
    CONSISTENT = "consistent"
    "what was observed fits it, and fits others as well"


@dataclass(frozen=True, slots=True)
class Suspect:
    """One cause that fits."""

    id: str
    link: Link
    title: str
    strength: Strength
    seen: str
    "what was observed of it"
    decide: str
    'what would confirm it or rule it out; "" where it is confirmed'
    capture: str
    "the command that captures that"
    remedy: str
    do: str
    'the remedy as a command to paste; "" where there is none'
    is_not: str
    'what it is taken for, or what does not help; "" where nothing is'
    source: str
    is_cause: bool
    "of a broken link; else what follows from one, or keeps it so"
