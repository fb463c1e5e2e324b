"""A reading is a value or a refusal: "could not read it" can never become "nothing is wrong"."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Generic, NoReturn, TypeVar, Union

T = TypeVar("T")
D = TypeVar("D")


class Why(str, Enum):
    """Why there is no value. The first three are facts about the node, the others about
    gpu-gate."""

    MISSING = "missing"
    FAILED = "failed"
    TIMED_OUT = "timed-out"
    NOT_ASKED = "not-asked"
    NOT_RECORDED = "not-recorded"
    NOT_PERMITTED = "not-permitted"


@dataclass(frozen=True, slots=True)
class Refusal:
    """The host did not answer."""

    why: Why
    detail: str = ""

    @property
    def is_telling(self) -> bool:
        """True where the refusal itself is a fact about the node; with the others, its state is
        unknown."""
        return self.why in (Why.MISSING, Why.FAILED, Why.TIMED_OUT)

    @property
    def is_missing(self) -> bool:
        return self.why is Why.MISSING

    def value_or(self, default: D) -> D:
        """The default: for callers that treat a refusal like that value."""
        return default

    def __str__(self) -> str:
        return f"{self.why.value}: {self.detail}" if self.detail else self.why.value


NOT_ASKED = Refusal(Why.NOT_ASKED)


@dataclass(frozen=True, slots=True)
class Seen(Generic[T]):
    """An answer of the host."""

    value: T
    at: float
    """boottime, seconds, when this was true"""

    def value_or(self, _: D) -> T | D:
        return self.value


Reading = Union[Seen[T], Refusal]


def unreachable(value: NoReturn) -> NoReturn:
    """End a match over a closed union (typing.assert_never is Python 3.11)."""
    raise AssertionError(f"not a member of the union: {value!r}")
