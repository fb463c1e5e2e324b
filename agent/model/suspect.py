"""A known fault that one snapshot shows, and how certain it is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from .condition import Link


class Strength(str, Enum):
    """How well the observations support a cause."""

    CONFIRMED = "confirmed"
    """the sign that only this fault has was observed"""
    CONSISTENT = "consistent"
    """the observations fit it, and fit other faults as well"""


@dataclass(frozen=True, slots=True)
class Suspect:
    """One cause that fits."""

    id: str
    link: Link
    title: str
    strength: Strength
    seen: str
    """the observations"""
    decide: str
    """what would confirm it or rule it out; empty where it is confirmed"""
    capture: str
    """the command that shows that"""
    remedy: str
    do: str
    """the remedy as a command to paste; empty where there is none"""
    is_not: str
    """what it is often mistaken for, or what does not help; may be empty"""
    source: str
    is_cause: bool
    """it explains a broken link; otherwise it follows from one, or keeps one broken"""
