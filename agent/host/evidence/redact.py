"""Removes what must not leave a node in a bundle: secrets, and environment values that are not the
device plugin's own.

Secrets are found by their form, and by the name before them. It hides too much rather than too
little: "token: denied" loses its second word. What the rules read (names, device nodes, NVML's
messages) has none of these forms.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple

HIDDEN = "[redacted]"
KEPT_ENV = (
    "NVIDIA_",
    "MIG_STRATEGY",
    "DEVICE_",
    "PASS_DEVICE_SPECS",
    "FAIL_ON_INIT_ERROR",
    "CONFIG_FILE",
    "KUBELET_SOCKET",
)
"""Prefixes of the device plugin's own settings (its main.go, 0.9 to 0.20). Others may be
secrets."""

_NAMED = re.compile(
    "token|passwd|password|passphrase|secret|api[_-]?key|access[_-]?key|private[_-]?key|credential"
    "|authorization"
)
"""For text in lower case: without IGNORECASE a long log is searched ten times as fast."""
_QUOTED = r'\\?"(?:[^"\\]|\\(?!").)*\\?"|' r"'[^'\n]*'"


class _Form(NamedTuple):
    """A form that secrets have."""

    hints: str
    """text without any of these words, in lower case, has no such secret"""
    pattern: re.Pattern[str]
    replace: Callable[[re.Match[str]], str]


def _hide(value: str) -> str:
    """Keep the quotes of the value, escaped ones too, so that JSON stays valid."""
    for quote in ('\\"', '"', "'"):
        if value.startswith(quote):
            return f"{quote}{HIDDEN}{quote}"
    return HIDDEN


_FORMS: tuple[_Form, ...] = (
    _Form(
        "bearer basic",
        re.compile(r"\b(Bearer|Basic)(\s+)[\w.~+/=-]{8,}", re.I | re.A),
        lambda m: f"{m[1]}{m[2]}{HIDDEN}",
    ),
    _Form(
        "akia asia eyj gh glpat- sk- xox nvapi- hf_",
        re.compile(
            r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b|\beyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?"
            r"|\b(?:gh[pousr]_|glpat-|sk-|xox[abprs]-|nvapi-|hf_)[\w-]{16,}",
            re.A,
        ),
        lambda _: HIDDEN,
    ),
    _Form(
        "://", re.compile(r"(\w://)[^/\s:@\"']*:[^/\s@\"']+@", re.A), lambda m: f"{m[1]}{HIDDEN}@"
    ),
    # "name: X", then "value: Y": a variable in a pod's manifest, as YAML or JSON.
    _Form(
        "value",
        re.compile(
            r"""(\bname\\?["']?\s*:\s*\\?["']?)([\w.-]+)(\\?["']?[ \t]*(?:,\s*|\n\s*)\\?["']?"""
            rf"""value\\?["']?\s*:[ \t]*)({_QUOTED}|[^\s|>][^\n,}}]*)""",
            re.A,
        ),
        lambda m: m[0] if m[2].startswith(KEPT_ENV) else m[1] + m[2] + m[3] + _hide(m[4]),
    ),
    _Form(
        "value",
        re.compile(
            r"(\bname:[ \t]*[\"']?)([\w.-]+)([\"']?\n([ \t]*)value:[ \t]*)"
            r"[|>][-+0-9]*(?:\n\4[ \t]+.*|\n[ \t]*(?=\n))*",
            re.A,
        ),
        lambda m: m[0] if m[2].startswith(KEPT_ENV) else m[1] + m[2] + m[3] + HIDDEN,
    ),
    _Form(
        "-----begin",
        re.compile(r"-----BEGIN ([A-Z ]*PRIVATE KEY)-----.*?(?:-----END \1-----|\Z)", re.S),
        lambda _: HIDDEN,
    ),
)


_ASSIGNED = re.compile(
    rf"([\w.-]{{0,40}}\\?[\"']?\s{{0,4}}[:=]\s{{0,4}})"
    rf"({_QUOTED}|(?!true\b|false\b|null\b|\d+\b)[^\s,;&\"'\\\[\]{{}}]+)",
    re.I | re.A,
)
_FLAG = re.compile(r"--[\w-]{0,40}\Z", re.A)
_ITS_WORD = re.compile(r"([\w-]{0,40}\s+)([^\s\"'-][^\s\"']*)", re.A)


def text(content: str) -> str:
    """The text without its secrets."""
    low = content.lower()
    for form in _FORMS:
        if any(hint in low for hint in form.hints.split()):
            content = form.pattern.sub(form.replace, content)
    return _by_name(content)


def _by_name(words: str) -> str:
    """Hide the value after a name that stands for a secret: "token: x", "--token x"."""
    low = words.lower()
    if len(low) != len(words):  # a letter that is two in lower case
        low = "".join(c.lower() if c.isascii() else c for c in words)
    parts, done = [], 0
    for name in _NAMED.finditer(low):
        if name.start() < done:
            continue
        found = _ASSIGNED.match(words, name.end())
        if found is None and _FLAG.search(words, max(0, name.start() - 42), name.start()):
            found = _ITS_WORD.match(words, name.end())
        if found is not None:
            parts += [words[done : found.start(2)], _hide(found[2])]
            done = found.end(2)
    return "".join(parts) + words[done:]


def data(content: bytes) -> bytes:
    """The content of any file. latin-1 has a character for each byte, so that every byte is
    kept."""
    return text(content.decode("latin-1")).encode("latin-1")


def document(content: bytes) -> bytes:
    """A JSON document, such as a CDI spec, with its lists of variables."""
    try:
        held = json.loads(content)
        hidden = answer(held)
    except (ValueError, RecursionError):
        return data(content)
    return content if hidden == held else json.dumps(hidden).encode()


def answer(value: Any) -> Any:
    """JSON, part by part."""
    if isinstance(value, str):
        return text(value)
    if isinstance(value, list):
        return _after_their_flags([answer(v) for v in value])
    if isinstance(value, dict):
        return {key: _part(key, part) for key, part in value.items()}
    return value


def _part(key: str, part: Any) -> Any:
    if key == "env" and isinstance(part, dict):
        return {k: v if k.startswith(KEPT_ENV) else HIDDEN for k, v in part.items()}
    if key in ("env", "envs") and isinstance(part, list):
        return [_variable(v) if isinstance(v, str) else answer(v) for v in part]
    if isinstance(part, str) and part and _NAMED.search(key.lower()):
        return HIDDEN
    return answer(part)


def _variable(pair: str) -> str:
    name, separator, _ = pair.partition("=")
    return pair if not separator or name.startswith(KEPT_ENV) else f"{name}={HIDDEN}"


def _after_their_flags(words: list[Any]) -> list[Any]:
    """Hide the value of "--token" where it is a separate argument."""
    for number in range(1, len(words)):
        flag, value = words[number - 1], words[number]
        if (
            isinstance(flag, str)
            and isinstance(value, str)
            and flag.startswith("-")
            and "=" not in flag
            and _NAMED.search(flag.lower())
            and not value.startswith("-")
        ):
            words[number] = HIDDEN
    return words
