"""Imports go down only, reasoning stays pure (docs/design.md §2)."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "agent"
FILES = sorted(PACKAGE.rglob("*.py"))
SOURCES = [path for path in FILES if path.read_text().strip()]
MAY_IMPORT = {
    "model": {"model"},
    "core": {"core", "model"},
    "transport": {"transport", "model"},
    "engine": {"engine", "core", "model"},
    "host": {"host", "model", "core", "transport"},
    "barrier": {"barrier", "model", "transport"},
    "service": {"service", "barrier", "engine", "model", "core", "transport", "host", ""},
    "": {"", "service"},
}
"""By floor; "" is the package itself: __init__ holds the version, __main__ starts the app."""
VERSION_ONLY = {("host/evidence/bundle.py", "")}
"""A bundle says which gpu-gate wrote it."""
ROOMS = ("common", "gpu", "access", "plugin", "cdi", "kubelet", "gate", "doctor")
"""Of core, in the order of the chain from the hardware up: a room imports earlier ones only."""
ABOVE_THE_ROOMS = {
    "core.collect": set(ROOMS) - {"doctor"},
    "core.diagnose": set(ROOMS) - {"doctor"},
}
STILL_UP = {
    ("core.access.faults", "core.plugin.log"),
    ("core.access.faults", "core.plugin.candidates"),
}
"""Imports from an earlier room to a later one: the list only shrinks."""
IMPURE = {"os", "socket", "subprocess", "time", "asyncio", "logging", "pathlib"}
STANDS_ALONE = {"host/probes/nvml_probe.py": {"pynvml"}, "host/probes/cuda_probe.py": set()}
"""Exec'd by path: nothing of the agent's is imported there, and these are the libraries it may
use."""
STARTS = {"__init__.py", "__main__.py"}
BANNED_NAMES = {"utils", "util", "helpers", "helper", "manager", "base"}

each_source = pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(PACKAGE)))


def name(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def floor(dotted: str) -> str:
    first = dotted.partition(".")[0]
    return first if first in MAY_IMPORT else ""


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), name(path))


def dotted(path: Path) -> str:
    """A module inside the package: core.rules.nvml; a package by its folder."""
    parts = list(path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {dotted(path): path for path in FILES}


def runs_at_import(module: ast.Module) -> Iterator[ast.AST]:
    """Every node but the bodies of functions."""
    todo: list[ast.AST] = [module]
    while todo:
        node = todo.pop()
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            todo += ast.iter_child_nodes(node)


def inside(path: Path, node: ast.ImportFrom) -> Iterator[str]:
    """The modules of the package that a relative import reads."""
    package = list(path.relative_to(PACKAGE).parts[:-1])
    base = package[: len(package) - (node.level - 1)] + (
        node.module.split(".") if node.module else []
    )
    for alias in node.names:
        whole = ".".join([*base, alias.name])
        yield whole if whole in MODULES else ".".join(base)


def imports(path: Path, nodes: Iterator[ast.AST]) -> tuple[set[str], set[str]]:
    """(modules of this package, top-level names of foreign ones)."""
    own, foreign = set(), set()
    for node in nodes:
        if isinstance(node, ast.Import):
            foreign |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level:
            own |= set(inside(path, node))
        elif isinstance(node, ast.ImportFrom):
            foreign.add((node.module or "").partition(".")[0])
    return own, foreign


@each_source
def test_imports_go_down_only(path: Path) -> None:
    own, _ = imports(path, ast.walk(tree(path)))
    here = floor(dotted(path))
    up = {
        found
        for found in own
        if floor(found) not in MAY_IMPORT[here] and (name(path), floor(found)) not in VERSION_ONLY
    }
    assert not up, f"{here or 'the package'} may not import {up}"


def room(module: str) -> str:
    """core.gpu.nvml lies in gpu; core.collect in no room."""
    floor_of_it, _, rest = module.partition(".")
    return rest.partition(".")[0] if floor_of_it == "core" and "." in rest else ""


def test_rooms_of_core_import_earlier_rooms_only() -> None:
    up = set()
    for path in FILES:
        here = dotted(path)
        if not here.startswith("core.") or path.name == "__init__.py":
            continue
        may = ABOVE_THE_ROOMS.get(here)
        if may is None:
            may = set(ROOMS[: ROOMS.index(room(here)) + 1])
        for found in imports(path, ast.walk(tree(path)))[0]:
            if floor(found) == "core" and room(found) not in may:
                up.add((here, found))
    assert not up - STILL_UP, "these imports run from an earlier room to a later one"
    assert not STILL_UP - up, "these are gone: take them out of STILL_UP"


@each_source
def test_only_relative_imports_inside_the_package(path: Path) -> None:
    _, foreign = imports(path, ast.walk(tree(path)))
    assert not foreign & {"agent", "gpu_gate"}, (
        "the package is called agent in a checkout and gpu_gate installed"
    )


@each_source
def test_model_and_core_do_no_io(path: Path) -> None:
    _, foreign = imports(path, ast.walk(tree(path)))
    if floor(dotted(path)) in ("model", "core"):
        assert not foreign & IMPURE
        assert not {node.id for node in ast.walk(tree(path)) if isinstance(node, ast.Name)} & {
            "open",
            "print",
        }


@each_source
def test_third_party_libraries_stay_in_their_rooms(path: Path) -> None:
    _, foreign = imports(path, ast.walk(tree(path)))
    libraries = foreign - set(sys.stdlib_module_names)
    here = floor(dotted(path))
    if name(path) in STANDS_ALONE:
        assert libraries <= STANDS_ALONE[name(path)]
        assert not imports(path, ast.walk(tree(path)))[0], (
            "it is exec'd by path: no relative import works there"
        )
    elif here == "transport":
        # google.protobuf is grpc's own other half, dbus_fast is dbus_next under its new name, and
        # the Kubernetes library itself talks by urllib3.
        same = {"google": "grpc", "dbus_fast": "dbus_next", "urllib3": "kubernetes"}
        assert len({same.get(one, one) for one in libraries}) <= 1
    else:
        assert not libraries


def test_no_import_cycle() -> None:
    graph = {dotted(path): imports(path, runs_at_import(tree(path)))[0] for path in FILES}
    done: set[str] = set()

    def visit(module: str, above: tuple[str, ...]) -> None:
        assert module not in above, " → ".join([*above, module])
        if module not in done:
            for below in graph.get(module, set()) - {module}:
                visit(below, (*above, module))
            done.add(module)

    for module in graph:
        visit(module, ())


@each_source
def test_annotations_are_never_evaluated(path: Path) -> None:
    # A file of plain constants, such as core/common/paths.py, has nothing to annotate.
    if any(
        isinstance(n, (ast.FunctionDef, ast.ClassDef, ast.AnnAssign)) for n in ast.walk(tree(path))
    ):
        assert "from __future__ import annotations" in path.read_text().splitlines()


@each_source
def test_no_fork_no_shell(path: Path) -> None:
    """os.fork hangs for ever beside a live gRPC channel (docs/design.md §2,
    transport/process.py)."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Attribute):
            assert node.attr not in ("fork", "forkpty", "system", "popen"), (
                f"line {node.lineno}: {node.attr}"
            )
        if isinstance(node, ast.Call):
            for word in node.keywords:
                shell = word.arg == "shell" and not (
                    isinstance(word.value, ast.Constant) and not word.value.value
                )
                assert word.arg != "preexec_fn" and not shell, f"line {node.lineno}: {word.arg}="
    assert not imports(path, ast.walk(tree(path)))[1] & {"multiprocessing", "concurrent"}


@each_source
def test_only_specific_exceptions_are_caught(path: Path) -> None:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ExceptHandler):
            caught = (
                {n.id for n in ast.walk(node.type) if isinstance(n, ast.Name)}
                if node.type
                else {"everything"}
            )
            tidies_up = isinstance(node.body[-1], ast.Raise) and node.body[-1].exc is None
            assert tidies_up or not caught & {"everything", "Exception", "BaseException"}, (
                f"line {node.lineno}"
            )
        if (
            isinstance(node, ast.Call)
            and getattr(node.func, "id", getattr(node.func, "attr", "")) == "suppress"
        ):
            assert not {getattr(a, "id", "") for a in node.args} & {"Exception", "BaseException"}


def test_rooms_are_named_after_their_content() -> None:
    names = {part for path in FILES for part in path.relative_to(PACKAGE).with_suffix("").parts}
    assert not names & BANNED_NAMES
    assert {path.relative_to(PACKAGE).parts[0] for path in FILES} == {*MAY_IMPORT, *STARTS} - {""}
