"""No secret leaves a node in a bundle; what the rules read does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent.host.codec import encode
from agent.host.evidence import bundle, redact
from agent.host.tape import Tape
from agent.model.reading import Seen

from .snapshots import container, detail
from .test_bundle import tape

SECRET = "S3cr3tS3cr3tS3cr3tS3"
BLOCKED = [
    f"Authorization: Bearer {SECRET}",
    f'{{"token": "{SECRET}"}}',
    f"password={SECRET}",
    f"kubelet --api-key {SECRET} -v",
    f'level=info msg="pull" password="{SECRET}"',
    f"https://user:{SECRET}@registry/x",
    f"aws_secret_access_key = {SECRET}",
    f"-----BEGIN RSA PRIVATE KEY-----\n{SECRET}\n-----END RSA PRIVATE KEY-----",
    f"-----BEGIN PRIVATE KEY-----\n{SECRET}",
    f"- name: DB\n  value: {SECRET}\n",
    f'- name: "DB"\n  value: "{SECRET} and {SECRET}"\n',
    f'{{"name":"DB","value":"{SECRET}"}}',
    f'{{"a": "{{\\"name\\":\\"DB\\",\\"value\\":\\"{SECRET}\\"}}"}}',
    f"- name: DB\n  value: |\n    {SECRET}\n    {SECRET}\n",
    f"X-Auth-Token: '{SECRET}'",
]


@pytest.mark.parametrize("text", BLOCKED)
def test_a_secret_is_hidden(text: str) -> None:
    assert SECRET not in redact.text(text)
    assert SECRET not in json.dumps(redact.answer({"labels": {"a": text}, "env": {"DB": text}}))


@pytest.mark.parametrize(
    "word",
    [
        "AKIAIOSFODNN7EXAMPLE",
        "ghp_" + "a" * 36,
        "nvapi-" + "b" * 40,
        "eyJhbGciOiJIUzI1.eyJzdWIiOiIxMjM0.SflKxwRJSMeKKF2",
    ],
)
def test_keys_are_redacted_by_their_form(word: str) -> None:
    assert redact.text(f"x {word} y") == "x [redacted] y"


@pytest.mark.parametrize(
    "text",
    [
        "I0627 main.go:1] Failed to initialize NVML: Unknown Error.",
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module",
        "nvidia: module verification failed: signature and/or required key missing - tainting "
        "kernel",
        '{"automountServiceAccountToken": false, "secretKeyRef": {"x": 1}, '
        '"tokenExpirationSeconds": 3607}',
        "- name: NVIDIA_VISIBLE_DEVICES\n  value: all\n",
        "restartPolicy: Always",
        "195 nvidia\n",
    ],
)
def test_text_without_secrets_is_unchanged(text: str) -> None:
    assert redact.text(text) == text


@pytest.mark.parametrize(
    "args", [["--token", SECRET], ["-x", f"--db-password={SECRET}"], ["--secret", SECRET, "-v"]]
)
def test_a_value_after_its_flag_is_redacted(args: list[str]) -> None:
    assert SECRET not in json.dumps(redact.answer({"args": args}))


def test_json_stays_json() -> None:
    for text in BLOCKED:
        if text.startswith("{"):
            json.loads(redact.text(text))
    assert json.loads(
        redact.document(b'{"containerEdits": {"env": ["A=b", "NVIDIA_X=void"]}}')
    ) == {"containerEdits": {"env": ["A=[redacted]", "NVIDIA_X=void"]}}


def test_other_bytes_stay_as_they_are() -> None:
    assert redact.data(b"\xff\x00 token=abc \xfe") == b"\xff\x00 token=[redacted] \xfe"


def test_no_secret_is_written_to_disk(tmp_path: Path) -> None:
    held = tape()
    held.answers[Tape.key("tail", "/var/log/pods/x/0.log")] = encode(
        Seen(f"token={SECRET}\n".encode(), 1.0)
    )
    held.answers[Tape.key("container", "/s", "c")] = encode(
        Seen(
            detail(
                container(),
                args=("plugin", "--token", SECRET),
                env={"NVIDIA_VISIBLE_DEVICES": "all"},
            ),
            1.0,
        )
    )
    bundle.write(held, tmp_path / "b", {"journal.txt": f"Bearer {SECRET}".encode()})
    text = b"".join(p.read_bytes() for p in (tmp_path / "b").rglob("*") if p.is_file())
    assert SECRET.encode() not in text and b'"NVIDIA_VISIBLE_DEVICES": "all"' in text
    assert all(p.stat().st_mode & 0o077 == 0 for p in (tmp_path / "b").rglob("*"))
