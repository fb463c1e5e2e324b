"""No regular expression of the agent takes quadratic time, whatever a log, a file or a peer sends.

A log line comes from whoever runs a container. A pattern such as ``A.*B``, searched in a line of
many A, reads the rest of the line once for each of them: 64 KiB took the agent's loop 42 s, and
the watchdog and HTTP with it. The patterns are found in the modules and, where a function hands one
to ``re``, in the syntax tree. A child with a limit on its CPU time reads the hostile lines.
"""

from __future__ import annotations

import ast
import importlib
import re
import resource
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)] if __name__ == "__main__" else []
AGENT = ROOT / "agent"
SIZES = (16 << 10, 64 << 10, 256 << 10)
"""Characters of a hostile line. Four times the length is four times the work of a linear pattern,
and sixteen times that of a quadratic one."""
FREE, GROWTH = 0.006, 6
"""Seconds of CPU time for the shortest line, below which no longer one is tried; and the growth
from a size to the next that is no longer linear."""
LINE_SECONDS, ALL_SECONDS = 2, 300
"""CPU time that one line may take, and the whole child. A linear pattern takes a line in
milliseconds; the child, all of them in seconds."""
GLOB = ("setting_values.py", "re.compile(translate(part))")
"""An administrator's own globs, which fnmatch makes linear (since Python 3.9)."""

PLAIN = (
    " ",
    '"',
    "'",
    "\\",
    "a",
    "1",
    "/",
    "-",
    ".",
    '\\"',
    "a ",
    "1.",
    "a: ",
    "\t",
    "\n",
    "a\n",
    "=a ",
)
AFTER_A_LEAD = (" ", '"', "\\", "a", "1", ".", "\n")

IS_311 = sys.version_info >= (3, 11)
_constants = importlib.import_module("re._constants" if IS_311 else "sre_constants")
_parser = importlib.import_module("re._parser" if IS_311 else "sre_parse")
REPEATS = (_constants.MAX_REPEAT, _constants.MIN_REPEAT)


def _modules() -> Iterator[tuple[ModuleType, ast.Module]]:
    for path in sorted(AGENT.rglob("*.py")):
        if path.name != "__main__.py":
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            yield importlib.import_module(name), ast.parse(path.read_text())


def _within(value: object) -> Iterator[re.Pattern]:
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, (tuple, list, set, frozenset)):
        for part in value:
            yield from _within(part)
    elif isinstance(value, dict):
        yield from _within((tuple(value), tuple(value.values())))


def _local(call: ast.Call, module: ModuleType) -> str | bytes | None:
    """The pattern that a function passes to re; one letter replaces an unknown part."""
    (first, *_) = call.args
    if isinstance(first, ast.Constant):
        return first.value
    if isinstance(first, ast.Name):
        value = getattr(module, first.id, None)
        return value if isinstance(value, (str, bytes)) else None
    if isinstance(first, ast.JoinedStr):
        parts = []
        for part in first.values:
            if isinstance(part, ast.Constant):
                parts.append(part.value)
            else:
                known = getattr(module, ast.unparse(part.value), "x")
                parts.append(known if isinstance(known, str) else "x")
        return "".join(parts)
    if isinstance(first, ast.BinOp):
        known = [part.value for part in ast.walk(first) if isinstance(part, ast.Constant)]
        return type(known[0])().join(known)
    return None


def patterns() -> dict[str, tuple[re.Pattern, frozenset[str]]]:
    """Where it stands → the pattern, and the methods that it is used by."""
    uses: dict[tuple[str, str], set[str]] = {}
    kept: dict[str, tuple[re.Pattern, str]] = {}
    local: dict[str, tuple[re.Pattern, frozenset[str]]] = {}
    for module, tree in _modules():
        where = Path(module.__file__).relative_to(ROOT).as_posix()
        for name, value in vars(module).items():
            for number, pattern in enumerate(_within(value)):
                kept.setdefault(f"{where} {name} {number}", (pattern, name))
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            of, method = ast.unparse(node.func.value), node.func.attr
            for file in (where, ""):
                uses.setdefault((file, of.rpartition(".")[2]), set()).add(method)
            if of == "re" and method != "escape" and node.col_offset:
                inside_constant = any(
                    node in ast.walk(top)
                    for top in tree.body
                    if isinstance(top, (ast.Assign, ast.AnnAssign))
                )
                if inside_constant or (Path(where).name, ast.unparse(node)) == GLOB:
                    continue
                source = _local(node, module)
                assert source is not None, f"{where}:{node.lineno}: compile it in the module"
                flags = 0
                for extra in (*node.args[1:], *(k.value for k in node.keywords)):
                    for part in ast.walk(extra):
                        if isinstance(part, ast.Attribute) and ast.unparse(part.value) == "re":
                            flags |= getattr(re, part.attr)
                local[f"{where}:{node.lineno}"] = (re.compile(source, flags), frozenset({method}))
    found = {}
    seen: dict[int, str] = {}
    for where, (pattern, name) in kept.items():
        if id(pattern) not in seen:
            seen[id(pattern)] = where
            own = uses.get((where.partition(" ")[0], name)) or uses.get(("", name), set())
            methods = {method for method in own if hasattr(pattern, method)}
            found[where] = pattern, frozenset(methods or {"finditer"})
    return found | local


def _sample(tree: object, most: int) -> str:
    """Something that the pattern's tree matches, or nearly: its repetitions so many times."""
    out = ""
    for op, arg in tree:
        out += _one(op, arg, most)
    return out


def _letter(members: list) -> str:
    negated = members and members[0][0] is _constants.NEGATE
    for char in "aA1 \".-_/:x\\'=\t~!":
        if _is_in(char, members) != negated:
            return char
    for op, arg in members:
        if op is _constants.LITERAL:
            return chr(arg)
        if op is _constants.RANGE:
            return chr(arg[0])
    return "a"


def _is_in(char: str, members: list) -> bool:
    for op, arg in members:
        if op is _constants.LITERAL and ord(char) == arg:
            return True
        if op is _constants.RANGE and arg[0] <= ord(char) <= arg[1]:
            return True
        if op is _constants.CATEGORY and re.match(
            {"DIGIT": r"\d", "NOT_DIGIT": r"\D", "SPACE": r"\s", "NOT_SPACE": r"\S",
             "WORD": r"\w", "NOT_WORD": r"\W"}[str(arg).replace("CATEGORY_", "")], char
        ):  # fmt: skip
            return True
    return False


def _one(op: object, arg: object, most: int, branch: int = 0) -> str:
    c = _constants
    if op is c.LITERAL:
        return chr(arg)
    if op is c.NOT_LITERAL:
        return "b" if arg == ord("a") else "a"
    if op is c.ANY:
        return "a"
    if op is c.IN:
        return _letter(arg)
    if op is c.BRANCH:
        return _sample(arg[1][branch % len(arg[1])], most)
    if op is c.SUBPATTERN:
        return _sample(arg[-1], most)
    if op in REPEATS:
        low, high, inner = arg
        return _sample(inner, most) * max(low, min(int(high), most))
    if str(op) == "ATOMIC_GROUP":
        return _sample(arg, most)
    return ""


def _prefixes(tree: object) -> Iterator[tuple[str, str]]:
    """(what leads there, what repeats there) for each place of the tree, in each branch."""
    c = _constants
    before = ""
    for op, arg in tree:
        inner: tuple[object, ...] = ()
        if op is c.BRANCH:
            inner = tuple(arg[1])
        elif op is c.SUBPATTERN:
            inner = (arg[-1],)
        elif op in (c.ASSERT, c.ASSERT_NOT):
            inner = (arg[1],)
        elif op in REPEATS:
            yield before, _sample(arg[2], 1)
            inner = (arg[2],)
        for part in inner:
            for lead, again in _prefixes(part):
                yield before + lead, again
        before += _one(op, arg, 1)
    yield before, ""


def hostile(pattern: re.Pattern, size: int) -> Iterator[tuple[str, str | bytes]]:
    """(how it is made, a line of so many characters): beginnings of a match, over and over."""
    source = pattern.pattern
    places = list(dict.fromkeys(_prefixes(_parser.parse(source, pattern.flags & ~re.DEBUG))))
    repeated = dict.fromkeys(["", *(lead for lead, again in places if again)])
    units = dict.fromkeys([*PLAIN, *(lead + end for lead, _ in places for end in ("", " "))])
    wanted = [("", unit, tail) for unit in units for tail in ("\0", "\n\0")]
    wanted += [(lead, again, "\0") for lead, again in places if lead]
    wanted += [(lead, unit, "\0") for lead in repeated if lead for unit in AFTER_A_LEAD]
    for lead, unit, tail in dict.fromkeys(wanted):
        if unit:
            line = lead + (unit * (size // len(unit) + 1))[:size] + tail
            is_bytes = isinstance(source, bytes)
            yield (
                f"{lead!r} + {unit!r} * n + {tail!r}",
                line.encode("latin-1", "replace") if is_bytes else line,
            )


def _cpu(pattern: re.Pattern, method: str, line: str | bytes) -> float:
    arguments = (line[:0], line) if method in ("sub", "subn") else (line,)
    began = time.process_time()
    found = getattr(pattern, method)(*arguments)
    if method == "finditer":
        deque(found, maxlen=0)
    return time.process_time() - began


class _TooLong(Exception):
    pass


def _too_long(*_: object) -> None:
    raise _TooLong


def quadratic(pattern: re.Pattern, methods: frozenset[str]) -> str:
    """How a line is made for which the pattern takes more than linear time; "" for none."""
    signal.signal(signal.SIGVTALRM, _too_long)
    for method in sorted({"search" if m == "compile" else m for m in methods}):
        for number, (how, line) in enumerate(hostile(pattern, SIZES[0])):
            signal.setitimer(signal.ITIMER_VIRTUAL, LINE_SECONDS)
            try:
                took = _cpu(pattern, method, line)
                if took >= FREE:  # a busy machine adds to one of them, not to all
                    took = min(took, *(_cpu(pattern, method, line) for _ in range(3)))
                for size in SIZES[1:]:
                    if took < FREE:
                        break
                    longer = next(islice(hostile(pattern, size), number, None))[1]
                    before, took = took, min(_cpu(pattern, method, longer) for _ in range(2))
                    if took < GROWTH * before:
                        break
                else:
                    return f"{method} of {how}"
            except _TooLong:
                return f"{method} of {how}"
            finally:
                signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    return ""


@pytest.mark.parametrize(
    ("pattern", "method"),
    [
        (r"(?=.*unhealthy)(?:Error waiting for event)", "search"),
        (r"GPU.*fallen off the bus", "search"),
        (r"x:[ \t]*([\x20-\x7e\t]*)", "fullmatch"),
    ],
)
def test_a_quadratic_pattern_is_found(pattern: str, method: str) -> None:

    assert quadratic(re.compile(pattern), frozenset({method}))


def test_no_pattern_of_the_agent_takes_quadratic_time() -> None:
    done = subprocess.run(
        [sys.executable, __file__], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CPU, (ALL_SECONDS, ALL_SECONDS))
    everything = patterns()
    assert len(everything) > 100, "where are the patterns?"
    bad = [f"{where}: {how}" for where, use in everything.items() if (how := quadratic(*use))]
    print(*bad, sep="\n")
    sys.exit(bool(bad))
