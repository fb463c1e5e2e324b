"""A unit's device list, as systemd reads it."""

from __future__ import annotations

import pytest

from agent.core.access.device_list import ANY, entry_of, grants, rights_of

RUNC = (
    ("/dev/char/1:3", "rwm"),
    ("char-136", "rwm"),
    ("char-*", "m"),
    ("block-*", "m"),
    ("/dev/char/195:0", "rw"),
)
MAJORS = {"nvidia": 195, "nvidia-uvm": 510, "nvidia-caps": 511, "pts": 136}


@pytest.mark.parametrize(
    ("policy", "allow", "number", "wanted"),
    [
        ("strict", RUNC, ("c", 1, 3), "rwm"),
        ("strict", RUNC, ("c", 195, 0), "rwm"),  # "char-* m" adds to its "rw"
        ("strict", RUNC, ("c", 195, 255), "m"),
        ("strict", RUNC, ("c", 136, 7), "rwm"),
        ("strict", RUNC, ("b", 8, 0), "m"),
        ("strict", (), ("c", 1, 3), ""),
        ("closed", (), ("c", 1, 3), "rwm"),
        ("closed", (), ("c", 136, 0), "rw"),
        ("closed", (), ("c", 195, 0), ""),
        ("closed", (("/dev/block/7:0", "r"),), ("b", 7, 0), "r"),
        ("auto", (), ("c", 195, 0), "rwm"),
        ("auto", (("/dev/char/195:0", "rw"),), ("c", 195, 255), ""),
        ("strict", (("char-nvidia*", "rw"),), ("c", 511, 1), "rw"),
        ("strict", (("char-nvidia", "rw"),), ("c", 511, 1), ""),
        ("strict", (("block-nvidia", "rw"),), ("b", 195, 1), ""),
        ("strict", (("/dev/fuse", "rw"),), ("c", 10, 229), "rw"),
        (
            "strict",
            (("/dev/gone", "rw"), ("", "rw"), ("char-", "rw"), ("char-99999999999", "rw")),
            ("c", 10, 229),
            "",
        ),
        ("strict", (("/dev/char/195:0", "r"), ("/dev/char/195:0", "w?")), ("c", 195, 0), "rw"),
        ("an unknown policy", (), ("c", 195, 0), ""),
    ],
)
def test_rights_that_a_device_list_grants(policy, allow, number, wanted):
    granted = grants(policy, allow, MAJORS, {"/dev/fuse": ("c", 10, 229)})
    assert rights_of(granted, number) == set(wanted)


@pytest.mark.parametrize(
    ("number", "entry"),
    [
        (("c", 195, 0), "/dev/char/195:0"),
        (("b", 8, 1), "/dev/block/8:1"),
        (("c", 195, ANY), "char-195"),
        (("b", ANY, ANY), "block-*"),
    ],
)
def test_an_entry_names_what_it_grants(number, entry):
    assert entry_of(number) == entry
    assert rights_of(grants("strict", [(entry, "rw")]), number) == set("rw")
