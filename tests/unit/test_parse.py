"""Parsing: real output of kernels and distributions, and malformed output."""

from __future__ import annotations

import random

import pytest

from agent.core.common import parse
from agent.model.mark import Mark

PROPRIETARY = b"""NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024
GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)
"""
OPEN = b"""NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (dvs-builder@U16-I3-C03)
GCC version:  gcc version 13.3.0 (Ubuntu 13.3.0-6ubuntu2~24.04)
"""
DEVICES = b"""Character devices:
  1 mem
195 nvidia
195 nvidia-modeset
195 nvidiactl
508 nvidia-uvm
509 nvidia-caps

Block devices:
  8 sd
195 not-a-character-device
"""


@pytest.mark.parametrize(
    ("data", "version"),
    [
        (PROPRIETARY, "550.54.15"),
        (OPEN, "570.86.15"),
        (b"NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.54  Sun Jun 11", "535.54"),
        (
            b"NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  1000.12.03  Release Build",
            "1000.12.03",
        ),
        (b"NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.256.02  Thu May  2", "470.256.02"),
        (b"", None),
        (b"GCC version:  gcc version 550.54.15", None),
        (b"\xff\xfe\x00 Kernel Module \x80", None),
    ],
)
def test_driver_version(data: bytes, version: str | None) -> None:
    assert parse.driver_version(data) == version


@pytest.mark.parametrize(
    ("written", "bus_id"),
    [
        ("0000:07:00.0", "0000:07:00.0"),
        ("00000000:07:00.0", "0000:07:00.0"),
        ("0000:E4:00.0", "0000:e4:00.0"),
        ("00000000:AE:00.0\n", "0000:ae:00.0"),
        ("10000:e1:00.0", "10000:e1:00.0"),  # a VMD domain does not fit four digits
        ("00010000:E1:00.0", "10000:e1:00.0"),
        ("0001:00:00.7", "0001:00:00.7"),
        ("07:00.0", None),
        ("0000:07:00.8", None),
        ("0000:07:00.0 ; reboot", None),
        ("0000:07:00.0\n0000:08:00.0", None),
        ("", None),
    ],
)
def test_bus_id(written: str, bus_id: str | None) -> None:
    assert parse.bus_id(written) == bus_id


@pytest.mark.parametrize(
    ("data", "number"),
    [
        (b"0x10de\n", 0x10DE),
        (b"0x030200\n", 0x030200),
        (b"10de", 0x10DE),
        (b"", None),
        (b"0x", None),
        (b"NVIDIA", None),
        (b"\xff", None),
        (b"0x10de 0x1002", None),
    ],
)
def test_hex_number(data: bytes, number: int | None) -> None:
    assert parse.hex_number(data) == number


def test_majors_are_read_up_to_the_block_devices() -> None:
    assert parse.majors(DEVICES) == {
        "mem": 1,
        "nvidia": 195,
        "nvidia-modeset": 195,
        "nvidiactl": 195,
        "nvidia-uvm": 508,
        "nvidia-caps": 509,
    }


@pytest.mark.parametrize(
    "data", [b"", b"\n\n", b"195\n", b"nvidia 195\n", b"-1 nvidia\n", b"1.5 nvidia", b"\xff\xff x"]
)
def test_lines_without_a_major_are_ignored(data: bytes) -> None:
    assert parse.majors(data) == {}


@pytest.mark.parametrize(
    "line",
    [
        "updates/dkms/nvidia-current.ko",  # Debian
        "updates/dkms/nvidia-current-open.ko.xz",  # Debian, open kernel modules
        "updates/dkms/nvidia-tesla-535.ko.xz",  # Debian, tesla branch
        "updates/dkms/nvidia-legacy-390xx.ko",  # Debian, legacy branch
        "updates/dkms/nvidia.ko.zst",  # Ubuntu, dkms
        "kernel/nvidia-550/nvidia.ko",  # Ubuntu, signed by Canonical
        "extra/nvidia.ko.xz",  # RHEL, precompiled
        "weak-updates/nvidia-550/nvidia.ko",  # RHEL, kmod
        "/usr/lib/modules/6.1.0/extramodules/nvidia.ko.gz",
    ],
)
def test_module_file_under_every_distributions_name(line: str) -> None:
    dep = (
        f"kernel/fs/ext4/ext4.ko:\n{line}: "
        "kernel/drivers/char/ipmi/ipmi_msghandler.ko\nkernel/lib/crc16.ko:\n"
    )
    assert parse.module_file(dep.encode()) == line


@pytest.mark.parametrize(
    "dep",
    [
        "",
        "kernel/fs/ext4/ext4.ko:\n",
        "kernel/drivers/usb/typec/altmodes/typec_nvidia.ko: x\n",
        "kernel/drivers/net/ethernet/nvidia/forcedeth.ko:\n",
        "kernel/drivers/platform/x86/nvidia-wmi-ec-backlight.ko:\n",
        "updates/dkms/nvidia-uvm.ko: updates/dkms/nvidia.ko\n",
        "updates/dkms/nvidia-drm.ko:\nupdates/dkms/nvidia-modeset.ko:\nupdates/dkms/nvidia-peermem.ko:\n",
        "updates/dkms/nvidia-current-uvm.ko:\nupdates/dkms/nvidia-current-open-uvm.ko:\n",
    ],
)
def test_relatives_of_the_module_are_not_the_module(dep: str) -> None:
    assert parse.module_file(dep.encode()) is None


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b'{"a": 1}', {"a": 1}),
        (b"{}", {}),
        (b"", None),
        (b"{", None),
        (b"[1]", None),
        (b"null", None),
        (b'"x"', None),
        (b"\xff{}", None),
        (b"[" * 100_000, None),
        (b'{"a":' * 100_000, None),
        (b"9" * 5000, None),
    ],
)
def test_json_object(data: bytes, value: object) -> None:
    assert parse.json_object(data) == value


@pytest.mark.parametrize(
    ("data", "mark"),
    [
        (b'{"reason": "open", "at": 12.5}', Mark("open", 12.5)),
        (b'{"reason": "open", "at": 12}', Mark("open", 12.0)),
        (b"", Mark("set by hand", 0.0)),
        (b" \n", Mark("set by hand", 0.0)),
        (b"by me, for the demo\n", Mark("by me, for the demo", 0.0)),
        (b"{", Mark("{", 0.0)),
        (b'{"at": "soon"}', Mark("no reason given", 0.0)),
        (b'{"reason": 7, "at": null}', Mark("7", 0.0)),
        (b'{"reason": "%s", "at": 1}' % (b"x" * 999), Mark("x" * 200, 1.0)),
        (b"y" * 999, Mark("y" * 200, 0.0)),
    ],
)
def test_mark(data: bytes, mark: Mark) -> None:
    assert parse.mark(data) == mark


PARSERS = (
    parse.driver_version,
    parse.hex_number,
    parse.majors,
    parse.module_file,
    parse.json_object,
    parse.mark,
    parse.text,
)


@pytest.mark.parametrize("parser", PARSERS, ids=lambda p: p.__name__)
def test_no_parser_raises_on_torn_or_mixed_up_input(parser: object) -> None:
    """Real files cut, spliced and sprinkled with junk: a part or None, never an exception."""
    rng = random.Random(2)
    wholes = [
        PROPRIETARY,
        OPEN,
        DEVICES,
        b'{"reason": "x", "at": 1}',
        b"0x10de\n",
        b"a/nvidia.ko: b.ko\n",
    ]
    for _ in range(400):
        whole = bytearray(
            rng.choice(wholes)[: rng.randrange(80)] + rng.choice(wholes)[rng.randrange(80) :]
        )
        for _ in range(rng.randrange(6)):
            whole.insert(rng.randrange(len(whole) + 1), rng.randrange(256))
        parser(bytes(whole))  # type: ignore[operator]


@pytest.mark.parametrize(
    ("parser", "data"),
    [
        (parse.majors, "² nvidia\n".encode()),
        (parse.majors, b"9" * 5000 + b" nvidia\n"),
        (parse.mark, b'{"reason": "x", "at": 1' + b"0" * 400 + b"}"),
    ],
    ids=[
        "a digit that is no number",
        "more digits than int() takes",
        "a number that no float holds",
    ],
)
def test_numbers_that_python_refuses(parser: object, data: bytes) -> None:
    parser(data)  # type: ignore[operator]


@pytest.mark.parametrize("at", ["NaN", "Infinity", "1e999", "-1e999"])
def test_an_instant_of_a_mark_is_a_finite_number(at: str) -> None:
    """A deadline counted from such an instant would never come."""
    assert parse.mark(b'{"reason": "x", "at": %s}' % at.encode()) == Mark("x", 0.0)
