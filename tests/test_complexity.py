"""A function has few ways through it, boolean operands counted.

ruff's C901 (mccabe) counts branches and not the operands of a condition, so that a decision of
nine operands passes as one branch.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 15
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
BRANCHES = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.IfExp, ast.match_case)


def within(function: ast.AST) -> Iterator[ast.AST]:
    """Every node of a function, without the functions inside it: those count for themselves."""
    for node in ast.iter_child_nodes(function):
        if not isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            yield node
            yield from within(node)


def complexity(function: ast.AST) -> int:
    """1, and 1 for each branch, further boolean operand, comprehension and condition of one."""
    total = 1
    for node in within(function):
        if isinstance(node, BRANCHES):
            total += 1
        elif isinstance(node, ast.BoolOp):
            total += len(node.values) - 1
        elif isinstance(node, ast.comprehension):
            total += 1 + len(node.ifs)
    return total


def functions(node: ast.AST, name: str) -> Iterator[tuple[str, ast.AST]]:
    for inner in ast.iter_child_nodes(node):
        if isinstance(inner, (*FUNCTIONS, ast.ClassDef)):
            here = f"{name}{inner.name}"
            if isinstance(inner, FUNCTIONS):
                yield here, inner
            yield from functions(inner, f"{here}.")
        else:
            yield from functions(inner, name)


def too_complex() -> dict[str, int]:
    """Function → its complexity; by its name alone, so that a file may be renamed."""
    found: dict[str, int] = {}
    for path in sorted((ROOT / "agent").rglob("*.py")):
        for name, function in functions(ast.parse(path.read_text()), ""):
            if (number := complexity(function)) > LIMIT:
                found[name] = max(number, found.get(name, 0))
    return found


def test_functions_are_simple() -> None:
    assert not too_complex(), f"more than {LIMIT}: split the function"


def test_the_operands_of_a_condition_count() -> None:
    (body,) = ast.parse(
        "def f(a):\n"
        "    if a and a.b or not a:\n"
        "        return [x for x in a if x if x.y]\n"
        "    try:\n"
        "        return a if a else None\n"
        "    except ValueError:\n"
        "        pass\n"
    ).body
    assert complexity(body) == 1 + 3 + 3 + 1 + 1
