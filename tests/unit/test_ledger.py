"""The ledger, read: what was done, and what may still be done."""

from __future__ import annotations

import json
import random
from dataclasses import asdict, replace

import pytest

from agent.core.plugin.ledger import (
    BACKOFF_S,
    CURED,
    MAX_BACKOFF_S,
    MAX_TRY_S,
    OUTCOME,
    actions,
    allowed_at,
    by_this_clock,
    is_next_rung,
    next_number,
    outcome_of,
    read,
)
from agent.model.runtime import LedgerEntry

from .snapshots import BOOT_ID, entry

NOW = 1.7e9


def line(found: LedgerEntry) -> bytes:
    return json.dumps(asdict(found)).encode() + b"\n"


def done(*ago_s: float, **changes: str) -> tuple[LedgerEntry, ...]:
    """Actions so many seconds ago, oldest first."""
    return tuple(entry(n, NOW - ago, **changes) for n, ago in enumerate(ago_s, 1))


def outcome(number: int, said: str = CURED) -> LedgerEntry:
    return LedgerEntry(NOW, BOOT_ID, number, OUTCOME, "", "", "", said)


VAIN = "failed: no answer within 15.0 s"


def ladder(hupped_s: float, rebuilt_s: float, **changes: str) -> tuple[LedgerEntry, ...]:
    """SIGHUP, and the new container after it."""
    first, second = done(hupped_s, rebuilt_s, target="c1")
    return replace(first, what="hup", **changes), second


def test_the_next_rung_is_of_the_same_attempt() -> None:
    hup, rebuild = ladder(9, 6)
    assert is_next_rung((hup,), rebuild.cause, rebuild.target)
    assert not is_next_rung((rebuild,), rebuild.cause, rebuild.target)
    assert not is_next_rung((hup,), "another", rebuild.target)
    assert not is_next_rung((hup,), rebuild.cause, "c2")
    assert not is_next_rung((), rebuild.cause, rebuild.target)


ONE, TWO = entry(1), entry(2, cause="é “cause” \u2028 with\nbreaks")


def test_a_written_bundle_can_be_read() -> None:
    assert read(line(ONE) + line(TWO)) == (ONE, TWO)
    assert read(b"") == ()


@pytest.mark.parametrize("cut", range(1, len(line(TWO)) + 1, 7))
def test_a_last_line_that_was_cut_off_was_never_acted_on(cut: int) -> None:
    assert read(line(ONE) + line(TWO)[:-cut]) == (ONE,)


@pytest.mark.parametrize(
    "junk",
    [
        b"junk\n",
        b"\n",
        b"{}\n",
        b"[]\n",
        b"null\n",
        b"\0\0\0\n",
        b"\xff\xfe\n",
        line(ONE)[:-20] + b"\n",
        line(ONE).replace(b'"number": 1', b'"number": "one"'),
        line(ONE).replace(b'"number": 1', b'"number": null'),
        line(ONE).replace(b'"boot_id"', b'"boot"'),
        line(ONE).replace(b'"at": ', b'"at": "x", "b": '),
        line(ONE).replace(b'"at": ', b'"at": NaN, "b": '),
        line(ONE).replace(b'"at": ', b'"at": 1e999, "b": '),
        line(ONE).replace(b'"at": ', b'"at": ' + b"9" * 400 + b', "b": '),
        line(ONE).replace(b'"boottime": null', b'"boottime": "x"'),
        line(ONE).replace(b'"boottime": null', b'"boottime": NaN'),
        b"[" * 100_000 + b"\n",
        line(ONE).replace(b'"number": 1', b'"number": 1e999'),
    ],
)
@pytest.mark.parametrize("before", [b"", line(ONE)])
def test_any_other_line_that_is_none_makes_it_unreadable(before: bytes, junk: bytes) -> None:
    """Half a ledger is no ledger: what is not known of must not be forgotten."""
    assert read(before + junk) is None
    assert read(before + junk + line(TWO)) is None


@pytest.mark.parametrize("seed", range(20))
def test_hostile_bytes(seed: int) -> None:
    rng = random.Random(seed)
    good = line(ONE) + line(TWO)
    torn = bytearray(good)
    for _ in range(rng.randrange(1, 4)):
        torn[rng.randrange(len(torn))] = rng.randrange(256)
    for found in (read(bytes(torn)), read(rng.randbytes(4000)), read(rng.randbytes(4000) + b"\n")):
        assert found is None or all(isinstance(e, LedgerEntry) for e in found)


def test_actions_of_this_boot_only() -> None:
    mine, other = entry(1), entry(2, boot_id="before")
    assert actions((mine, other, outcome(1)), BOOT_ID) == (mine,)


def test_how_an_action_ended() -> None:
    assert outcome_of((ONE, outcome(1, "not cured")), ONE) == "not cured"
    assert outcome_of((ONE, outcome(2)), ONE) == ""
    assert outcome_of((ONE, outcome(1, VAIN), outcome(1)), ONE) == CURED, "the last word counts"


def test_numbers_go_on_over_boots() -> None:
    assert next_number(()) == 1
    assert next_number((entry(7, boot_id="before"), entry(3), outcome(9))) == 10


# actions so many seconds ago, outcomes, per hour, per boot, seconds until one more is allowed
# (None: never)
BUDGET: list[tuple[tuple[LedgerEntry, ...], int, int, float | None]] = [
    ((), 3, 6, 0.0),
    (done(1), 3, 6, BACKOFF_S - 1),
    (done(59), 3, 6, 1.0),
    (done(60), 3, 6, 0.0),
    ((*done(1), outcome(1)), 3, 6, 0.0),  # a cure needs no pause
    ((*done(1), outcome(1, "not cured")), 3, 6, BACKOFF_S - 1),
    (done(500, 1), 3, 6, 2 * BACKOFF_S - 1),  # the pause doubles
    ((*done(500, 1), outcome(1)), 3, 6, BACKOFF_S - 1),  # from the last cure on
    ((*done(500, 1), outcome(2)), 3, 6, 0.0),
    ((*done(3599, 2000, 1000), outcome(3)), 3, 6, 1.0),  # the oldest of three leaves the hour
    ((*done(3601, 2000, 1000), outcome(3)), 3, 6, 0.0),
    ((*done(10, 1), outcome(2)), 1, 6, 3599.0),
    ((*done(9e5, 8e5, 7e5, 6e5, 5e5, 4e5), outcome(6)), 3, 6, None),  # a boot's worth is spent
    ((*done(9e5, 8e5, 7e5, 6e5, 5e5), outcome(5)), 3, 6, 0.0),
    (done(1), 3, 1, None),
    (done(9, 8, 7, 6, 5, 4, 3, 2, 1), 20, 20, MAX_BACKOFF_S - 1),  # and never longer than an hour
    (done(1, boot_id="before"), 3, 1, 0.0),
    (ladder(9, 1), 2, 2, BACKOFF_S - 1),  # a ladder counts once
    ((*ladder(9, 1), outcome(2)), 2, 2, 0.0),
    (ladder(9, 1), 1, 2, 3599.0),
    (ladder(9, 1), 2, 1, None),
    (ladder(9, 1, cause="another"), 3, 6, 2 * BACKOFF_S - 1),  # of another cause: two
    (
        (*done(1), outcome(1, VAIN)),
        1,
        1,
        BACKOFF_S - 1,
    ),  # what did not take is not charged, but waits
    ((*done(60), outcome(1, VAIN)), 1, 1, 0.0),
    ((*done(9, 8, 7, 1), *(outcome(n, VAIN) for n in (1, 2, 3, 4))), 1, 1, MAX_TRY_S - 1),
    ((*done(9, 8, 7, 1), *(outcome(n, VAIN) for n in (1, 2, 3))), 3, 6, 8 * BACKOFF_S - 1),
]


@pytest.mark.parametrize(("entries", "per_hour", "per_boot", "in_s"), BUDGET)
def test_when_one_more_action_is_allowed(
    entries: tuple[LedgerEntry, ...], per_hour: int, per_boot: int, in_s: float | None
) -> None:
    at = allowed_at(entries, BOOT_ID, per_hour, per_boot)
    assert (None if at is None else max(0.0, at - NOW)) == in_s


def test_a_clock_that_is_set_moves_no_line_of_this_boot() -> None:
    """Written by a clock that was eight hours fast. Of an earlier boot or version nothing better is
    known."""
    mine, old = (
        replace(done(10)[0], at=NOW + 28800, boottime=500.0, boot_id=b) for b in (BOOT_ID, "before")
    )
    plain = replace(mine, boottime=None)
    assert [e.at for e in by_this_clock((mine, old, plain), BOOT_ID, NOW - 510)] == [
        NOW - 10,
        old.at,
        plain.at,
    ]
