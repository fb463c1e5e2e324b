"""The kernel log: the event in each line, how it is read, and which conclusions follow."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.core.common import xids
from agent.core.common.kernel_log import word, words
from agent.core.gate.states import Phase
from agent.core.gate.transitions import step
from agent.core.gpu import kernel_events as kernel_log
from agent.host.kmsg import KEPT, Kmsg
from agent.model.actions import StartProbe
from agent.model.fault import Cure
from agent.model.finding import Diagnosis, Heals, Verdict
from agent.model.gpu import GpuState
from agent.model.kernel import KernelEvent, KernelLine
from agent.model.settings import Settings
from agent.model.snapshot import Clock

from .snapshots import (
    BUSES,
    DEFAULTS,
    DENIED,
    FAILED_LOG,
    GPUS,
    MISSING,
    NO_DRIVER,
    NOW,
    OFFSET,
    container,
    diagnosed,
    failing,
    finding,
    function,
    probed,
    seen,
    sight,
    snapshot,
    unit,
)
from .test_gate import after_probes, boot, gate, kinds

LOADING = "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024"
XID_79 = (
    "NVRM: Xid (PCI:0000:0f:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
)
GSP = (
    "NVRM: Xid (PCI:0000:0f:00): 119, pid=4711, name=python3, Timeout after 6s of waiting for "
    "RPC response from "
    "GPU1 GSP! Expected function 76 (GSP_RM_CONTROL) (0x20808a5f 0x0)."
)
INIT = "NVRM: GPU 0000:0f:00.0: RmInitAdapter failed! (0x24:0x72:1568)"
UNSIGNED = "Loading of unsigned module is rejected"
TOO_OLD = (
    "NVRM: The NVIDIA GPU 0000:0f:00.0 (PCI ID: 10de:1180) NVRM: installed in this system is "
    "not supported "
    "by the NVRM: NVIDIA 535.54.03 driver release."
)
UNCONTAINED = (
    "NVRM: Xid (PCI:0000:0f:00): 95, pid=7, name=python3, Uncontained: LTC TAG (0x2,0x0). RST: Yes"
)
API = (
    "NVRM: API mismatch: the client has the version 550.90.07, but NVRM: this kernel module "
    "has the version "
    "550.54.15."
)
REGION = (
    "NVRM: This PCI I/O region assigned to your NVIDIA device is invalid: NVRM: BAR1 is 0M @ 0x0 "
    "(PCI:0000:0f:00.0)"
)
MAGIC = "nvidia: version magic '5.4.18-100 SMP mod_unload ' should be '5.4.18-200 SMP mod_unload '"
UVM = "nvidia_uvm: Unknown symbol radix_tree_preloads (err -2)"
LINES = [
    (LOADING, KernelEvent.LOADED, ""),
    (
        "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build",
        KernelEvent.LOADED,
        "",
    ),
    (XID_79, KernelEvent.LOST, BUSES[1]),
    (
        "NVRM: Xid (PCI:0000:AE:00): 79, GPU has fallen off the bus.",
        KernelEvent.LOST,
        "0000:ae:00.0",
    ),
    ("NVRM: Xid (0000:0f:00): 79, GPU has fallen off the bus.", KernelEvent.LOST, BUSES[1]),
    (
        "NVRM: Xid (PCI:0000:0f:00 GPU-I:05): 94, pid=7194, Contained: CE User Channel (0x9). "
        "RST: No, D-RST: No",
        KernelEvent.XID,
        BUSES[1],
    ),
    (
        "NVRM: Xid (PCI:0000:0f:00 GPU-I:01 GPU-CI:02): 119, pid=9, name=a, Timeout",
        KernelEvent.GSP,
        BUSES[1],
    ),
    ("NVRM: GPU 0000:0f:00.0: GPU has fallen off the bus.", KernelEvent.LOST, BUSES[1]),
    ("NVRM: GPU at PCI:0000:0f:00: GPU has fallen off the bus.", KernelEvent.LOST, BUSES[1]),
    (GSP, KernelEvent.GSP, BUSES[1]),
    (
        "NVRM: Xid (PCI:0000:0f:00): 120, GSP Error: Task 1 raised error code 0x5",
        KernelEvent.GSP,
        BUSES[1],
    ),
    (INIT, KernelEvent.INIT_FAILED, BUSES[1]),
    (
        "NVRM: GPU 0000:0a:00.0: rm_init_adapter failed, device minor number 5",
        KernelEvent.INIT_FAILED,
        "0000:0a:00.0",
    ),
    (TOO_OLD, KernelEvent.UNSUPPORTED, BUSES[1]),
    (
        "NVRM: The NVIDIA GPU 0000:0f:00.0 (PCI ID: 10de:2901) NVRM: installed in this system "
        "requires use of the "
        "NVIDIA open kernel modules.",
        KernelEvent.UNSUPPORTED,
        BUSES[1],
    ),
    (UNSIGNED, KernelEvent.REJECTED, ""),
    ("Loading of module with unavailable key is rejected", KernelEvent.REJECTED, ""),
    ("nvidia: loading of unsigned module is rejected", KernelEvent.REJECTED, ""),
    (
        "Lockdown: modprobe: unsigned module loading is restricted; see man kernel_lockdown.7",
        KernelEvent.REJECTED,
        "",
    ),
    (
        "modprobe: ERROR: could not insert 'nvidia': Key was rejected by service",
        KernelEvent.REJECTED,
        "",
    ),
    (
        "modprobe: ERROR: could not insert 'nvidia': Required key not available",
        KernelEvent.REJECTED,
        "",
    ),
    (API, KernelEvent.MISMATCH, ""),
    (
        "NVRM: Xid (PCI:0000:0f:00): 63, pid=1, Row Remapper: New row marked for remapping",
        KernelEvent.XID,
        BUSES[1],
    ),
    ("NVRM: Xid (PCI:0000:0f:00): 64, Row Remapper Error", KernelEvent.XID, BUSES[1]),
    (
        "NVRM: Xid (PCI:0000:0f:00): 48, pid=1, An uncorrectable double bit error (DBE) has "
        "been detected",
        KernelEvent.XID,
        BUSES[1],
    ),
    ("NVRM: Xid (PCI:0000:0f:00): 94, Contained: SM", KernelEvent.XID, BUSES[1]),
    (
        "NVRM: Xid (PCI:0000:0f:00): 74, pid=1, NVLink: fatal error detected on link 3",
        KernelEvent.XID,
        BUSES[1],
    ),
    (
        "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
        KernelEvent.XID,
        "0000:05:00.0",
    ),
    (
        "NVRM: The NVIDIA GPU 0000:0f:00.0 NVRM: (PCI ID: 10de:26b5) installed in this system "
        "has NVRM: fallen off the "
        "bus and is not responding to commands.",
        KernelEvent.DEAD,
        BUSES[1],
    ),
    (
        "NVRM: The NVIDIA GeForce GT 710 GPU installed in this system is NVRM:  supported "
        "through the NVIDIA 470.xx "
        "Legacy drivers. Please NVRM:  visit …",
        KernelEvent.UNSUPPORTED,
        "",
    ),
    (
        f"nvidia {BUSES[1]}: Direct firmware load for nvidia/550.54.15/gsp_ga10x.bin failed "
        "with error -2",
        KernelEvent.FIRMWARE,
        BUSES[1],
    ),
    (
        f"nvidia {BUSES[1]}: Direct firmware load for nvidia/515.43.04/gsp.bin failed with "
        "error -2",
        KernelEvent.FIRMWARE,
        BUSES[1],
    ),
    (
        f"nvidia {BUSES[1]}: loading /lib/firmware/nvidia/570.133.20/gsp_ga10x.bin failed with "
        "error -4",
        None,
        "",
    ),
    (
        f"nvidia {BUSES[1]}: Direct firmware load for nvidia/595.71.05/gsp_log_ga10x.bin "
        "failed with error -2",
        None,
        "",
    ),
    (
        f"nvidia {BUSES[1]}: Unable to change power state from D3cold to D0, device inaccessible",
        KernelEvent.LOST,
        BUSES[1],
    ),
    (
        f"nvidia {BUSES[1]}: can't change power state from D3cold to D0 (config space "
        "inaccessible)",
        KernelEvent.LOST,
        BUSES[1],
    ),
    (REGION, KernelEvent.REGION, BUSES[1]),
    (
        f"NVRM: GPU {BUSES[1]}: GPU does not have the necessary power cables connected.",
        KernelEvent.POWER,
        BUSES[1],
    ),
    (
        f"nvidia {BUSES[1]}: AER: can't recover (no error_detected callback)",
        KernelEvent.XID,
        BUSES[1],
    ),
    (
        f"nvidia {BUSES[1]}: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer",
        KernelEvent.XID,
        BUSES[1],
    ),
    (
        "NVRM: Xid (PCI:0000:0f:00): 143, GPU Initialization Error",
        KernelEvent.INIT_FAILED,
        BUSES[1],
    ),
    (MAGIC, KernelEvent.UNFIT, ""),
    ("nvidia: disagrees about version of symbol module_layout", KernelEvent.UNFIT, ""),
    (UVM, KernelEvent.UNFIT, ""),
    ("nvidia-uvm: Unknown symbol radix_tree_preloads (err -2)", KernelEvent.UNFIT, ""),
    ("modprobe: ERROR: could not insert 'nvidia': Exec format error", KernelEvent.UNFIT, ""),
    (
        "systemd-modules-load[412]: Failed to insert module 'nvidia': Exec format error",
        KernelEvent.UNFIT,
        "",
    ),
    (
        "systemd-modules-load[412]: Failed to insert module 'nvidia': Key was rejected by service",
        KernelEvent.REJECTED,
        "",
    ),
    # Not about GPUs, or only about a program that used one.
    ("nvidia_drm: Unknown symbol drm_gem_object_put_unlocked (err -2)", None, ""),
    ("nvidia-modeset: version magic '5.4.18' should be '5.4.19'", None, ""),
    ("nvidia_uvm: module uses symbols from proprietary module nvidia, inheriting taint.", None, ""),
    (
        f"nvidia {BUSES[1]}: PCIe Bus Error: severity=Corrected, type=Data Link Layer, "
        "(Receiver ID)",
        None,
        "",
    ),
    (
        f"snd_hda_intel {BUSES[1]}: can't change power state from D3cold to D0 (config space "
        "inaccessible)",
        None,
        "",
    ),
    (
        "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress "
        "non-posted PRIV error",
        None,
        "",
    ),
    ("NVRM: Xid (PCI:0000:0f:00): 13, pid=1, Graphics SM Warp Exception", None, ""),
    ("NVRM: Xid (PCI:0000:0f:00): 31, pid=1, name=python3, MMU Fault", None, ""),
    ("NVRM: Xid (PCI:0000:0f:00): 43, pid=1, Ch 00000008", None, ""),
    ("zfs: loading of unsigned module is rejected", None, ""),
    ("modprobe: ERROR: could not insert 'zfs': Key was rejected by service", None, ""),
    ("NVRM: GPU at PCI:0000:0f:00: GPU-5a0e7a5e-7a8d-4d6e-9b0e-000000000000", None, ""),
    ("EXT4-fs (sda1): mounted filesystem", None, ""),
    ("", None, ""),
    ("NVRM: Xid (PCI:" + "0" * 5000, None, ""),
]


@pytest.mark.parametrize(("text", "event", "bus_id"), LINES)
def test_the_event_in_a_kernel_line(text: str, event: KernelEvent | None, bus_id: str) -> None:
    found = word(KernelLine(7.0, text))
    if event is None:
        assert found is None
    else:
        assert found is not None and (found.event, found.bus_id, found.at, found.line) == (
            event,
            bus_id,
            7.0,
            text,
        )


def test_both_versions_of_a_mismatch() -> None:
    assert words((KernelLine(7.0, API),))[0].client == "550.90.07"


# --- reading


CLOCK = Clock(boottime=1005.0, monotonic=1000.0, realtime=1.7e9)  # 5 s of suspend


def put(path: Path, *records: str) -> None:
    with path.open("a") as file:
        file.write("".join(f"{record}\n" for record in records))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A plain file in the place of /dev/kmsg: the same records, several a read."""
    path = tmp_path / "kmsg"
    put(
        path,
        "6,339,5140900,-;NET: Registered PF_VSOCK protocol family",
        f"4,340,5141000,-;{INIT}",
        " SUBSYSTEM=pci",
        " DEVICE=+pci:0000:0f:00.0",
        "4,341,6000000,-;NVRM: The NVIDIA GPU 0000:0f:00.0 (PCI ID: 10de:1180)\\x0a"
        "NVRM: installed in this system is not supported by the\\x0aNVRM: NVIDIA 535.54.03 "
        "driver release.",
    )
    return path


def test_lines_have_boottime_and_only_those_about_gpus_are_kept(log: Path) -> None:
    assert Kmsg(str(log)).lines(CLOCK) == (
        KernelLine(pytest.approx(10.141), INIT),
        KernelLine(pytest.approx(11.0), TOO_OLD),
    )


def test_only_lines_since_the_last_snapshot_are_read(log: Path) -> None:
    kmsg = Kmsg(str(log))
    kmsg.lines(CLOCK)
    put(log, f"4,342,900000000,-;{XID_79}", f"4,343,900000001,-;{INIT}")  # its clock is 100 s late
    *_, unsupported, lost, again = kmsg.lines(replace(CLOCK, boottime=1035.0, monotonic=1030.0))
    assert (unsupported.text, lost, again) == (
        TOO_OLD,
        KernelLine(1005.0, XID_79),
        KernelLine(1005.0, INIT),
    )


def test_a_repeated_line_is_kept_once_and_a_flood_is_bounded(log: Path) -> None:
    kmsg = Kmsg(str(log))
    put(log, *(f"4,{n},{n}000000,-;{INIT}" for n in range(20, 1000)))
    assert [line.at for line in kmsg.lines(CLOCK) if line.text == INIT] == [pytest.approx(1004.0)]
    put(
        log,
        *(f"4,{n},{n}000000,-;NVRM: Xid (PCI:0000:0f:00): 48, pid={n}" for n in range(1000, 3000)),
    )
    found = kmsg.lines(CLOCK)
    assert len(found) == KEPT and found[-1].text.endswith("pid=2999")


def test_junk_is_no_line_and_no_log_is_an_error(log: Path, tmp_path: Path) -> None:
    put(
        log,
        "",
        ";",
        "4,x,y,-;NVRM: loading NVIDIA",
        "4,1;NVRM: loading NVIDIA",
        "9" * 9000,
        f"4,1,{'9' * 30},-;{LOADING}",
    )
    assert [line.text for line in Kmsg(str(log)).lines(CLOCK)] == [INIT, TOO_OLD, LOADING]
    with pytest.raises(FileNotFoundError):
        Kmsg(str(tmp_path / "none")).lines(CLOCK)
    with pytest.raises(IsADirectoryError):
        Kmsg(str(tmp_path)).lines(CLOCK)


def test_an_empty_pipe_does_not_hold_us(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "kmsg")  # systemd-nspawn's /dev/kmsg
    kmsg = Kmsg(str(tmp_path / "kmsg"))
    assert kmsg.lines(CLOCK) == ()
    kmsg.close()


# --- concluding


def said(*lines: tuple[float, str]) -> Any:
    return seen(words([KernelLine(at, text) for at, text in lines]))


def in_gate(diagnosis: Diagnosis) -> tuple[Phase, str, str]:
    """The gate after two equal snapshots, two seconds apart: phase, reason, release."""
    first = step(gate(), diagnosis, NOW - 2, DEFAULTS).gate
    second = step(first, diagnosis, NOW, DEFAULTS).gate
    return second.phase, second.reason, second.released


ONE_GPU = probed(gpus=GPUS[:1])
UNBOUND = seen((function(BUSES[0]), function(BUSES[1], "")))
INSTALLED = {**NO_DRIVER, "module_installed": seen("nvidia.ko")}
NO_UVM = {"majors": seen({"nvidia": 195, "nvidiactl": 195})}
# what is changed, condition, reason, heals, held
CASES: list[tuple[dict[str, Any], str, str, Heals, bool]] = [
    (
        {"kernel": said((900.0, GSP)), "probe": probed(started_at=800.0)},
        "NvmlComplete",
        "GspTimeout",
        Heals.NEVER,
        True,
    ),
    (
        {"kernel": said((900.0, GSP)), "probe": MISSING},
        "NvmlComplete",
        "GspTimeout",
        Heals.NEVER,
        True,
    ),
    ({"kernel": said((900.0, GSP))}, "NvmlComplete", "", Heals.SOON, False),  # NVML showed it since
    (
        {"kernel": said((900.0, GSP), (950.0, LOADING)), "probe": MISSING},
        "NvmlComplete",
        "NotProbed",
        Heals.SOON,
        False,
    ),
    (
        {"kernel": said((900.0, GSP)), "probe": ONE_GPU},
        "NvmlComplete",
        "GspTimeout",
        Heals.NEVER,
        True,
    ),
    (
        {"kernel": said((900.0, XID_79)), "probe": ONE_GPU},
        "NvmlComplete",
        "GpuFellOffBus",
        Heals.NEVER,
        False,
    ),
    ({"kernel": said((900.0, XID_79))}, "NvmlComplete", "", Heals.SOON, False),  # it came back
    (
        {"kernel": said((900.0, XID_79), (950.0, LOADING)), "probe": ONE_GPU},
        "NvmlComplete",
        "GpuMissing",
        Heals.SOON,
        False,
    ),
    (
        {"kernel": said((900.0, INIT)), "probe": ONE_GPU},
        "NvmlComplete",
        "GpuMissing",
        Heals.SOON,
        False,
    ),
    (
        {"kernel": said((900.0, UNSIGNED)), **INSTALLED},
        "DriverLoaded",
        "ModuleRejected",
        Heals.NEVER,
        True,
    ),
    ({"kernel": said((900.0, UNSIGNED))}, "DriverLoaded", "", Heals.SOON, False),  # it is loaded
    (
        {"kernel": said((900.0, UNSIGNED), (950.0, LOADING)), **INSTALLED},
        "DriverLoaded",
        "DriverNotLoaded",
        Heals.SOON,
        False,
    ),
    (
        {"kernel": said((900.0, UNSIGNED)), **INSTALLED, "driver_building": seen("nvidia")},
        "DriverLoaded",
        "DriverNotLoaded",
        Heals.SOON,
        False,
    ),
    (
        {"kernel": said((900.0, UNSIGNED)), **NO_DRIVER},
        "DriverLoaded",
        "DriverNotInstalled",
        Heals.SOON,
        False,
    ),
    (
        {"kernel": said((900.0, "nvidia: " + UNSIGNED)), **NO_DRIVER},
        "DriverLoaded",
        "ModuleRejected",
        Heals.NEVER,
        True,
    ),
    (
        {"kernel": said((900.0, MAGIC)), **INSTALLED},
        "DriverLoaded",
        "ModuleUnfit",
        Heals.NEVER,
        True,
    ),
    (
        {"kernel": said((900.0, MAGIC)), **INSTALLED, "driver_building": seen("nvidia")},
        "DriverLoaded",
        "DriverNotLoaded",
        Heals.SOON,
        False,
    ),
    (
        {"kernel": said((900.0, MAGIC), (950.0, LOADING)), **INSTALLED},
        "DriverLoaded",
        "DriverNotLoaded",
        Heals.SOON,
        False,
    ),
    (
        {"kernel": said((900.0, UVM)), **INSTALLED},
        "DriverLoaded",
        "DriverNotLoaded",
        Heals.SOON,
        False,
    ),
    ({"kernel": said((900.0, UVM)), **NO_UVM}, "UvmLoaded", "UvmUnfit", Heals.NEVER, False),
    (
        {"kernel": said((900.0, UVM), (950.0, LOADING)), **NO_UVM},
        "UvmLoaded",
        "UvmNotLoaded",
        Heals.SOON,
        False,
    ),
    (
        {"kernel": said((900.0, REGION), (901.0, LOADING)), "pci": UNBOUND},
        "GpusBound",
        "GpuUnbound",
        Heals.NEVER,
        False,
    ),
    (
        {"kernel": said((900.0, TOO_OLD)), **INSTALLED},
        "DriverLoaded",
        "GpuUnsupported",
        Heals.NEVER,
        True,
    ),
    (
        {"kernel": said((900.0, TOO_OLD), (901.0, LOADING)), "pci": UNBOUND},
        "GpusBound",
        "GpuUnsupported",
        Heals.NEVER,
        True,
    ),
    (
        {"kernel": said((800.0, TOO_OLD), (901.0, LOADING)), "pci": UNBOUND},
        "GpusBound",
        "GpuUnbound",
        Heals.SOON,
        False,
    ),
    (
        {"pci": seen((function(BUSES[0], "nouveau"), function(BUSES[1], "nouveau")))},
        "GpusBound",
        "NouveauBound",
        Heals.CONFIGURATION,
        True,
    ),
    (
        {"pci": seen((function(BUSES[0]), function(BUSES[1], "nouveau")))},
        "GpusBound",
        "NouveauBound",
        Heals.CONFIGURATION,
        False,
    ),
]


@pytest.mark.parametrize(("changes", "condition", "reason", "heals", "held"), CASES)
def test_findings_from_a_kernel_line(
    changes: dict[str, Any], condition: str, reason: str, heals: Heals, held: bool
) -> None:
    diagnosis = boot(**changes)
    found = finding(diagnosis, condition)
    assert (found.reason, found.heals) == (reason, heals)
    phase, why, released = in_gate(diagnosis)
    assert (phase is Phase.BLOCKED) is held
    if held:
        assert why == reason and released
        assert found.next_step


def test_a_cause_counts_after_it_was_observed_for_a_second() -> None:
    diagnosis = boot(kernel=said((900.0, UNSIGNED)), **INSTALLED)
    first = step(gate(), diagnosis, NOW, DEFAULTS)
    assert (first.gate.phase, first.wake_at, first.gate.released) == (Phase.WAITING, NOW + 1.0, "")
    gone = step(first.gate, boot(**INSTALLED), NOW + 1.0, DEFAULTS).gate
    again = step(gone, diagnosis, NOW + 1.5, DEFAULTS).gate
    assert (gone.phase, again.phase) == (Phase.WAITING, Phase.WAITING)


def test_no_probe_that_would_hang_and_another_one_later() -> None:
    diagnosis = boot(kernel=said((NOW - 10, GSP)), probe=MISSING)
    held = step(gate(), diagnosis, NOW - 2, DEFAULTS).gate
    assert StartProbe not in kinds(step(held, diagnosis, NOW, DEFAULTS).actions)
    later = NOW - 10 + kernel_log.GSP_REST_S
    assert StartProbe in kinds(step(held, diagnosis, later, DEFAULTS).actions)


def test_a_kernel_error_of_a_known_gpu_ends_readiness_and_causes_a_probe() -> None:
    opened = after_probes(3)
    diagnosis = boot(kernel=said((NOW - 1, XID_79)), probe=probed(number=3, started_at=NOW - 60))
    decided = step(replace(opened, validated_at=NOW - 60), diagnosis, NOW, DEFAULTS)
    assert (decided.gate.phase, kinds(decided.actions) & {StartProbe}) == (
        Phase.REVALIDATING,
        {StartProbe},
    )
    assert (
        decided.gate.why == "the kernel's report of a GPU 1 s ago is newer than the last validation"
    )


def test_a_gpu_that_is_not_expected_has_no_effect() -> None:
    """A dead GPU logs a line at each probe, which must not cause the next one."""
    settings = Settings(expected_gpus=("1",))
    diagnosis = diagnosed(settings, kernel=said((NOW, XID_79)), probe=ONE_GPU)
    assert diagnosis.disturbed_at < NOW and diagnosis.held is None
    assert finding(diagnosis, "NvmlComplete").verdict is Verdict.HOLDS


def test_a_driver_reloaded_between_two_snapshots_is_probed_again() -> None:
    opened = replace(after_probes(3), loaded_at=100.0)
    diagnosis = boot(
        kernel=said((100.0, LOADING), (NOW - 1, LOADING)),
        probe=probed(number=3, started_at=NOW - 60),
    )
    anew = step(opened, diagnosis, NOW, DEFAULTS)
    assert (anew.gate.phase, anew.gate.good, anew.gate.ready) == (Phase.PROBING, 0, False)
    assert StartProbe in kinds(anew.actions)
    same = boot(kernel=said((100.0, LOADING)), probe=probed(number=3, started_at=NOW - 60))
    assert step(opened, same, NOW, DEFAULTS).gate.phase is Phase.OPEN


@pytest.mark.parametrize(
    ("library", "kernel", "says"),
    [
        ("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.550.90.07", (), "the library 550.90.07"),
        ("/usr/lib/libnvidia-ml.so.1", ((900.0, API),), "the library 550.90.07"),
        ("", (), "the library another"),
    ],
)
def test_a_version_mismatch_shows_both_versions(library: str, kernel: Any, says: str) -> None:
    found = finding(boot(kernel=said(*kernel), probe=failing(18, library=library)), "NvmlComplete")
    assert f"(18); the loaded module is 550.54.15, {says}" in found.because
    assert found.heals is Heals.NEVER


def test_the_line_is_cited_with_its_age() -> None:
    found = finding(boot(kernel=said((900.0, INIT)), probe=ONE_GPU), "NvmlComplete")
    assert (
        found.because
        == f"1 of 2: {BUSES[1]} on PCI, absent from NVML; the kernel, 100 s ago: {INIT}"
    )


def test_a_warning_of_the_last_day_blocks_nothing() -> None:
    remap = "NVRM: Xid (PCI:0000:0f:00): 63, Row Remapper: New row marked for remapping"
    warned = diagnosed(kernel=said((900.0, remap), (901.0, API)))
    found = finding(warned, "KernelLogQuiet")
    assert (found.reason, found.blocks, found.missing) == ("KernelReports", False, (BUSES[1],))
    assert found.because == f"the kernel said: {remap} (Xid 63: {xids.wants(63, remap)})"
    assert warned.first_broken() is None
    old = snapshot(kernel=said((900.0, remap)), clock=Clock(NOW + 90000, NOW, 1.7e9))
    for changes in (
        {"kernel": said((900.0, remap), (950.0, LOADING))},
        {"kernel": old.hardware.kernel, "clock": old.clock},
        {
            "kernel": old.hardware.kernel,
            "pci": seen((function(BUSES[0]), function(BUSES[1], "vfio-pci"))),
        },
    ):
        assert not [f for f in diagnosed(**changes).findings if f.condition == "KernelLogQuiet"]


def test_an_unreadable_log_is_unknown_and_a_missing_log_is_none() -> None:
    found = finding(diagnosed(kernel=DENIED), "KernelLogQuiet")
    assert (found.verdict, found.blocks, found.reason) == (
        Verdict.UNKNOWN,
        False,
        "KernelLogUnreadable",
    )
    assert not [f for f in diagnosed(kernel=MISSING).findings if f.condition == "KernelLogQuiet"]


BACK = (
    "NVRM: Xid (PCI:0000:0f:00): 154, GPU recovery action changed from 0x1 (GPU Reset "
    "Required) to 0x0 (None)"
)


@pytest.mark.parametrize(
    ("number", "words", "is_reset", "wants"),
    [
        (
            95,
            "Uncontained: LTC TAG (0x2,0x0). RST: Yes",
            True,
            "reset the GPU before other work runs on it",
        ),
        (
            48,
            "An uncorrectable double bit error (DBE) has been detected",
            True,
            "reset the GPU before",
        ),
        (
            94,
            "Contained: CE User Channel (0x9). RST: No",
            False,
            "start the program it names again",
        ),
        (69, "Class Error", False, "start the program it names again"),
        (63, "Row Remapper: New row marked for remapping", False, "remapped at the next reset"),
        (74, "NVLink: fatal error detected on link 3", True, "an NVLink"),
        (145, "RLW_REMAP Nonfatal XC1 i0 link -1", False, "an NVLink"),
        (145, "RLW_REMAP Non-fatal XC1 i0 link -1", False, "an NVLink"),
        (149, "NETIR_LINK_EVT  Fatal   XC0 i0 link 07", True, "an NVLink"),
        (
            154,
            "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
            True,
            "Node Reboot Required",
        ),
        (
            154,
            "GPU recovery action changed from 0x2 (Node Reboot Required) to 0x0 (None)",
            False,
            "",
        ),
        (119, "Timeout after 6s of waiting for RPC response", False, "reset the GPU, or reboot"),
        (9999, "nobody knows it", False, ""),
        (
            0,
            "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
            False,
            "an NVSwitch",
        ),
        (0, "nvidia 0000:0f:00.0: AER: can't recover (no error_detected callback)", False, ""),
    ],
)
def test_what_an_xid_requires(number: int, words: str, is_reset: bool, wants: str) -> None:
    assert xids.is_reset(number, words) is is_reset
    said = xids.wants(number, words)
    assert said.startswith(wants) or (wants and wants in said)
    assert bool(said) is bool(wants)


@pytest.mark.parametrize(
    ("kernel", "recovery", "wanted"),
    [
        (((900.0, UNCONTAINED),), "", 1),
        (((900.0, UNCONTAINED), (910.0, UNCONTAINED)), "", 1),
        (((900.0, UNCONTAINED),), "none", 0),  # a driver that tells is believed
        (((900.0, UNCONTAINED), (950.0, BACK)), "", 0),
        (((900.0, BACK), (950.0, UNCONTAINED)), "", 1),
        (((900.0, UNCONTAINED), (950.0, LOADING)), "", 0),
        ((), "", 0),
    ],
)
def test_gpus_that_need_a_reset_by_the_kernel_log(kernel: Any, recovery: str, wanted: int) -> None:
    gpus = [replace(g, state=GpuState(recovery=recovery)) for g in GPUS]
    found = kernel_log.wants_reset(snapshot(kernel=said(*kernel)), gpus)
    assert [w.bus_id for w in found] == [BUSES[1]] * wanted


# --- a plugin that is older than the driver


BROKEN = {"allocatable": seen(())}


def of_plugin(kernel: Any, **of: Any) -> Any:
    made = container(**of)
    plugins = (sight(FAILED_LOG, True, of=made, image="x:v0.17.1"),)
    repair_facts = diagnosed(kernel=kernel, plugins=plugins, **BROKEN).repair_facts
    assert repair_facts is not None
    return repair_facts.fault


def test_a_plugin_from_before_the_driver_is_rebuilt_and_never_hupped() -> None:
    fault = of_plugin(said((500.0, LOADING)))  # it was created 100 s after the boot
    assert (fault.reason, fault.cure, fault.hup_answers) == (
        "PluginOlderThanDriver",
        Cure.FRESH_START,
        False,
    )
    assert "created 400 s before the nvidia module was loaded" in fault.because


@pytest.mark.parametrize(
    ("kernel", "of"),
    [
        ((), {}),
        (((50.0, LOADING),), {}),
        (((500.0, LOADING),), {"created_at": OFFSET - 3600}),  # the clock was set since
    ],
)
def test_a_plugin_that_is_not_known_to_be_older_is_not(kernel: Any, of: dict[str, Any]) -> None:
    assert of_plugin(said(*kernel), **of).reason == "PluginInitFailed"


def test_a_plugins_unit_from_before_the_driver() -> None:
    units = seen((unit("kubelet.service", since=50.0), unit("dp.service", since=60.0)))
    for at, reason in ((500.0, "PluginOlderThanDriver"), (55.0, "NotRegistered")):
        diagnosis = diagnosed(
            Settings(plugin_unit="dp.service"),
            units=units,
            plugins=(),
            kernel=said((at, LOADING)),
            **BROKEN,
        )
        assert diagnosis.repair_facts is not None and diagnosis.repair_facts.fault is not None
        assert diagnosis.repair_facts.fault.reason == reason


# --- what GPUs say of themselves


def of_state(**said_of_it: Any) -> Any:
    return probed(gpus=(GPUS[0], replace(GPUS[1], state=GpuState(**said_of_it))))


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ({"remap_pending": True}, "rows of its memory wait"),
        ({"remap_failed": True}, "could not be remapped"),
        ({"ecc": False, "ecc_pending": True}, "ECC will be on"),
        ({"mig": True, "mig_pending": False}, "MIG mode will be off"),
        ({"trouble": 16}, "wants a reset (16)"),
        ({"recovery": "gpu reset"}, "the driver wants: gpu reset"),
    ],
)
def test_a_pending_reset_is_a_warning(state: dict[str, Any], says: str) -> None:
    diagnosis = diagnosed(probe=of_state(**state))
    found = finding(diagnosis, "NoGpuMaintenancePending")
    assert f"{BUSES[1]}: " in found.because and says in found.because
    assert not found.blocks and found.next_step and diagnosis.first_broken() is None


def test_a_gpu_without_pending_maintenance_is_not_listed() -> None:
    state = of_state(
        remap_pending=False,
        remap_failed=False,
        ecc=True,
        ecc_pending=True,
        mig=False,
        mig_pending=False,
        recovery="none",
    )
    assert not [
        f for f in diagnosed(probe=state).findings if f.condition == "NoGpuMaintenancePending"
    ]


def test_a_gpu_that_is_enumerated_and_then_lost_is_lost() -> None:
    found = finding(diagnosed(probe=of_state(trouble=15)), "NvmlComplete")
    assert (found.reason, found.heals, found.missing) == ("NvmlGpuIsLost", Heals.NEVER, (BUSES[1],))


FABRIC: list[tuple[dict[str, Any], str, Verdict | None, str, bool]] = [
    ({}, "prefer", None, "", False),
    ({"fabric": "not supported"}, "require", None, "", False),
    ({"fabric": "completed"}, "prefer", Verdict.HOLDS, "", True),
    ({"fabric": "completed", "fabric_status": 15}, "prefer", Verdict.FAILS, "FabricFailed", False),
    ({"fabric": "in progress"}, "prefer", Verdict.FAILS, "FabricPending", False),
    ({"fabric": "not started"}, "require", Verdict.FAILS, "FabricPending", True),
    ({"fabric": "in progress"}, "ignore", None, "", False),
]


@pytest.mark.parametrize(("state", "setting", "verdict", "reason", "blocks"), FABRIC)
def test_fabric(
    state: dict[str, Any], setting: str, verdict: Verdict | None, reason: str, blocks: bool
) -> None:
    diagnosis = diagnosed(Settings(fabric=setting), probe=of_state(**state))
    shown = [f for f in diagnosis.findings if f.condition == "FabricReady"]
    assert [(f.verdict, f.reason, f.blocks) for f in shown] == (
        [(verdict, reason, blocks)] if verdict else []
    )
    assert (diagnosis.fabric is not None) is (verdict is Verdict.FAILS)
