"""YAML and JSON as JSON text, with PyYAML itself; and what is refused before it could hurt."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agent.transport.yaml import MAX_DEPTH, as_json


@pytest.mark.parametrize(
    ("data", "is_json", "value"),
    [
        (b'{"a": [1, "b"]}', True, {"a": [1, "b"]}),
        (b"---\na:\n- b: 'c'\n  d: 535\n", False, {"a": [{"b": "c", "d": 535}]}),
        (b'{"a": 1}', False, {"a": 1}),  # JSON is YAML
        (b"", False, None),
        (
            b"a: &a [x, &b {c: d}]\ne: [*a, *b]\n",
            False,
            {"a": ["x", {"c": "d"}], "e": [["x", {"c": "d"}], {"c": "d"}]},
        ),
        (b"when: 2026-11-29\n", False, {"when": "2026-11-29"}),
        (b"[" * MAX_DEPTH + b"]" * MAX_DEPTH, False, None),
    ],
)
def test_json_and_yaml_files_are_converted(data: bytes, is_json: bool, value: Any) -> None:
    found = json.loads(as_json(data, is_json))
    assert found == value or value is None


@pytest.mark.parametrize(
    ("data", "is_json", "says"),
    [
        (b"{", True, "it is not valid JSON"),
        (b"\xff\xfe", True, "it is not valid JSON"),
        (b"[" * 100_000, True, "nested too deeply"),
        (b"a: [", False, "it is not valid YAML.* in line 2"),
        (b"\x00", False, "it is not valid YAML"),
        (b"\xff\xff", False, "not valid YAML"),
        (b"a: b\nc: :d: e\n f", False, "in line"),
        (b"- " * 250_000, False, "nested deeper"),  # ends a Python that composes it (libyaml 0.2.5)
        (b"[" * 250_000, False, "nest"),
        (b"{a: " * 100, False, "nested deeper"),
        (b"a\n" * 3 + b"- x: [" + b"1," * 200_000 + b"1]", False, "not valid YAML|parts"),
        (b"[" + b"1," * 200_000 + b"1]", False, "parts"),
        (b"a: &a [*a]\n", False, "refers to itself"),
        (b"a: *b\n", False, "refers to itself|not valid YAML"),
        (
            b"".join(
                b"a%d: &a%d [%s]\n" % (n, n, b", ".join([b"*a%d" % (n - 1) if n else b"x"] * 9))
                for n in range(9)
            ),
            False,
            "parts",
        ),  # 9 to the power of 9
        (
            b"".join(
                b"a%d: &a%d %s%s%s\n"
                % (n, n, b"[" * 30, b"*a%d" % (n - 1) if n else b"x", b"]" * 30)
                for n in range(3)
            ),
            False,
            "nested deeper",
        ),
        (b"a: !!python/object/apply:os.system [x]\n", False, "could not determine a constructor"),
        (b"a: 2026-99-99\n", False, "month"),
        (b"a: !!int x\n", False, "invalid literal"),
        (b"? [a]\n: b\n", False, "unhashable"),
        (b"a: .inf\n", False, ""),
    ],
)
def test_refusals_with_a_message(data: bytes, is_json: bool, says: str) -> None:
    if says:
        with pytest.raises(ValueError, match=says):
            as_json(data, is_json)
    else:
        as_json(data, is_json)


def test_pyyaml_is_imported_only_for_yaml() -> None:
    program = (
        "import sys; from agent.transport.yaml import as_json; as_json(b'{}', True); "
        "sys.exit('yaml' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=Path(__file__).parents[2], timeout=60, check=False
    )
    assert done.returncode == 0
