"""The messages in a device plugin's log: both formats, every message, real logs, and hostile
logs."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.core.plugin import log as plugin_log
from agent.model.runtime import PluginLog, PluginLogState

CAPTURES = Path(__file__).resolve().parents[1] / "bundles/captures"
INIT_FAILED, NO_DEVICES, ASKING = (
    PluginLogState.INIT_FAILED,
    PluginLogState.NO_DEVICES,
    PluginLogState.ASKING,
)
REGISTERED, SERVING, STOPPED = (
    PluginLogState.REGISTERED,
    PluginLogState.SERVING,
    PluginLogState.STOPPED,
)
START = '"Starting NVIDIA Device Plugin" version="v0.20.0"'


def klog(*messages: str, level: str = "I") -> str:
    """As v0.14 and later write it."""
    return "".join(
        f"{level}0627 10:12:47.588061       1 main.go:{n}] {m}\n"
        for n, m in enumerate(messages, 200)
    )


def plain(*messages: str) -> str:
    """As v0.13 and earlier write it."""
    return "".join(f"2021/06/27 10:12:47 {m}\n" for m in messages)


def cri(text: str, stream: str = "stderr") -> str:
    """As a runtime puts it on disk for the kubelet."""
    return "".join(
        f"2026-11-29T12:46:07.{n:09d}+08:00 {stream} F {line}\n"
        for n, line in enumerate(text.splitlines())
    )


def read(text: str) -> PluginLog:
    return plugin_log.read(text.encode())


# a line, what it says, NVML's own words in it
MARKS: list[tuple[str, PluginLogState, str]] = [
    ("Loading NVML", ASKING, ""),
    ("Retreiving plugins.", ASKING, ""),
    ("Retrieving plugins.", ASKING, ""),
    ("Starting Plugins.", ASKING, ""),
    ("Failed to initialize NVML: nvml: Unknown Error.", INIT_FAILED, "nvml: Unknown Error"),
    ("Failed to initialize NVML: Unknown Error.", INIT_FAILED, "Unknown Error"),
    ("Failed to initialize NVML: ERROR_LIBRARY_NOT_FOUND.", INIT_FAILED, "ERROR_LIBRARY_NOT_FOUND"),
    ("Failed to initialise NVML: Driver Not Loaded", INIT_FAILED, "Driver Not Loaded"),
    ("nvml init failed: Unknown Error", INIT_FAILED, "Unknown Error"),
    ("nvml Init err:  ERROR_UNKNOWN", INIT_FAILED, "ERROR_UNKNOWN"),  # HAMi's register.go
    ("Error: Nvml init failed: Driver Not Loaded", INIT_FAILED, "Driver Not Loaded"),
    (
        "Detected non-NVML platform: could not load NVML library: libnvidia-ml.so.1: cannot "
        "open shared object file",
        INIT_FAILED,
        "libnvidia-ml.so.1: cannot open shared object file",
    ),
    ("Incompatible strategy detected auto", INIT_FAILED, "Incompatible strategy detected auto"),
    ("Incompatible platform detected", INIT_FAILED, "Incompatible platform detected"),
    (
        "Incompatible device discovery strategy detected",
        INIT_FAILED,
        "Incompatible device discovery strategy detected",
    ),
    ("No devices found. Waiting indefinitely.", NO_DEVICES, ""),
    ("Starting GRPC server for 'nvidia.com/gpu'", SERVING, ""),
    (
        "Starting to serve 'nvidia.com/gpu' on /var/lib/kubelet/device-plugins/nvidia-gpu.sock",
        SERVING,
        "",
    ),
    (
        "Could not register device plugin: rpc error: code = Unavailable",
        PluginLogState.NOT_REGISTERED,
        "",
    ),
    ("Registered device plugin for 'nvidia.com/gpu' with Kubelet", REGISTERED, ""),
    ("Registered device plugin with Kubelet", REGISTERED, ""),  # v0.6 and earlier
    (
        "XidCriticalError: Xid=79 on Device=GPU-x; marking device as unhealthy.",
        PluginLogState.UNHEALTHY,
        "",
    ),
    ("XidCriticalError: Xid=48, All devices will go unhealthy.", PluginLogState.UNHEALTHY, ""),
    ("'nvidia.com/gpu' device marked unhealthy: GPU-x", PluginLogState.UNHEALTHY, ""),
    (
        "Failed to start plugin: error waiting for MPS daemon: error checking MPS daemon "
        "health: exit status 1",
        PluginLogState.WAITING,
        "",
    ),
    ("Error waiting for event: x; Marking all devices as unhealthy", PluginLogState.UNWATCHED, ""),
    (
        "Error waiting for event: ERROR_GPU_IS_LOST; Marking all devices as unhealthy",
        PluginLogState.UNHEALTHY,
        "",
    ),
    (
        "Could not start device plugin for 'nvidia.com/gpu': listen unix: bind",
        PluginLogState.NOT_REGISTERED,
        "",
    ),
    ("Marking device GPU-x as unhealthy: Not Supported", PluginLogState.UNWATCHED, ""),
    (
        "Warning: GPU with UUID GPU-x is too old to support healtchecking with error: y. "
        "Marking it unhealthy",
        PluginLogState.UNWATCHED,
        "",
    ),  # k8s-device-plugin #33
    (
        "failed to start GPU device manager: stat /dev/nvidia-uvm: no such file or directory",
        PluginLogState.WAITING,
        "",
    ),
    (
        "Could not determine device placement for GPU-x: Not Found; marking it unhealthy.",
        PluginLogState.UNWATCHED,
        "",
    ),
    (
        "error starting plugins: failed to initialize NVML: ERROR_UNKNOWN",
        INIT_FAILED,
        "ERROR_UNKNOWN",
    ),
    ("failed to initialize nvml: Unknown Error", INIT_FAILED, "Unknown Error"),  # GKE's
    ("device-plugin started", ASKING, ""),
    ("device-plugin server started serving", SERVING, ""),
    ("device-plugin registered with the kubelet", REGISTERED, ""),
    (
        "Failed to start nvml with error: could not load NVML library",
        INIT_FAILED,
        "could not load NVML library",
    ),
    ('Received signal "terminated", shutting down.', STOPPED, ""),
    ("Stopping plugins.", STOPPED, ""),
]
FORMS = {
    "klog": klog,
    "plain": plain,
    "klog in CRI's form": lambda m: cri(klog(m)),
    "plain in CRI's form": lambda m: cri(plain(m), "stdout"),
    "bare": lambda m: f"{m}\n",
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
@pytest.mark.parametrize(("line", "says", "error"), MARKS, ids=[m[0][:40] for m in MARKS])
def test_every_mark_in_every_form(form, line: str, says: PluginLogState, error: str) -> None:
    assert read(form(line)) == PluginLog(says, line, error)


@pytest.mark.parametrize(
    "line",
    [
        "Starting FS watcher for /var/lib/kubelet/device-plugins",
        "Loading configuration.",
        '"failOnInitError": false,',
        "If this is a GPU node, did you set the docker default runtime to `nvidia`?",
        "Detected platform: nvml",
        "Stopping to serve 'nvidia.com/gpu' on /var/lib/kubelet/device-plugins/nvidia-gpu.sock",
        "Received SIGHUP, restarting.",
        "inotify: /var/lib/kubelet/device-plugins/kubelet.sock created, restarting.",
        "",
        "  ",
        "registered",
        "Failed to start health check: failed to initialize NVML: Unknown Error; continuing "
        "with health checks disabled",
        "NVML init failed: Unknown Error; health checks disabled",
        "Skipping non-nvmlEventTypeXidCriticalError event: {Device:{Handle:0x7f0dcf40bdf8} "
        "EventType:2 EventData:0}",
        "Failed to start one or more plugins. Retrying in 30s...",
    ],
)
def test_other_lines_have_no_effect(line: str) -> None:
    assert read(klog(line)) == PluginLog(PluginLogState.NOTHING, "")
    assert read(klog("Registered device plugin with Kubelet", line)).says is REGISTERED


SAID = "Failed to initialize NVML: ERROR_UNKNOWN"
STRUCTURED = {
    "klog's": 'E0627 10:12:47.588061       1 rm.go:115] "Failed to initialize NVML" '
    'err="ERROR_UNKNOWN"\n',
    "klog's, more": 'E0627 10:12:47.588061       1 f.go:1] "Failed to initialize NVML" n=1 '
    'error="ERROR_UNKNOWN"\n',
    "JSON": '{"ts":1732883567123.4,"caller":"f.go:1","msg":"Failed to initialize '
    'NVML","err":"ERROR_UNKNOWN"}'
    "\n",
    "Docker's json-file": '{"log":"2021/06/27 10:12:47 Failed to initialize NVML: '
    'ERROR_UNKNOWN\\n","stream":"err",'
    '"time":"2026-11-29T12:46:07.5Z"}\n',
    "coloured": "\x1b[36mINFO\x1b[0m[0008] Failed to initialize NVML: ERROR_UNKNOWN\n",
}


@pytest.mark.parametrize("text", STRUCTURED.values(), ids=STRUCTURED.keys())
@pytest.mark.parametrize("wrap", [str, cri], ids=["bare", "CRI"])
def test_structured_lines(text: str, wrap) -> None:
    found = read(wrap(text))
    assert (found.says, found.error) == (INIT_FAILED, "ERROR_UNKNOWN") and found.line.endswith(SAID)


def test_the_time_of_a_line_from_docker() -> None:
    assert read(STRUCTURED["Docker's json-file"]).at == 1795956367.5


@pytest.mark.parametrize(
    ("lines", "says", "error"),
    [
        (
            (
                "Failed to initialize NVML: Unknown Error.",
                "nvml init failed: Unknown Error",
                "No devices found. Waiting indefinitely.",
            ),
            INIT_FAILED,
            "Unknown Error",
        ),  # the failure is the better word
        (("Retrieving plugins.", "No devices found. Waiting indefinitely."), NO_DEVICES, ""),
        (
            (
                "No devices found. Waiting indefinitely.",
                "Received SIGHUP, restarting.",
                "Stopping plugins.",
                "Retrieving plugins.",
            ),
            ASKING,
            "",
        ),
        (
            (
                "Failed to initialize NVML: Unknown Error.",
                "No devices found. Waiting indefinitely.",
                "Received SIGHUP, restarting.",
                "Stopping plugins.",
                "Retrieving plugins.",
                "No devices found. Waiting indefinitely.",
            ),
            NO_DEVICES,
            "",
        ),  # and not the failure before
        (
            (
                "Registered device plugin with Kubelet",
                "Stopping plugins.",
                "Starting Plugins.",
                "Retrieving plugins.",
            ),
            ASKING,
            "",
        ),  # SIGHUP to one whose NVML hangs since
        (
            ("Registered device plugin with Kubelet", "'x' device marked unhealthy: GPU-x"),
            PluginLogState.UNHEALTHY,
            "",
        ),
        (
            (
                "'x' device marked unhealthy: GPU-x",
                "Stopping plugins.",
                "Registered device plugin with Kubelet",
            ),
            REGISTERED,
            "",
        ),
        (
            (
                "Failed to initialize NVML: Unknown Error.",
                "Stopping plugins.",
                "Retrieving plugins.",
                "Registered device plugin with Kubelet",
            ),
            REGISTERED,
            "",
        ),
    ],
)
@pytest.mark.parametrize("form", [klog, plain])
def test_the_last_message_counts(
    form, lines: tuple[str, ...], says: PluginLogState, error: str
) -> None:
    found = read(form(*lines))
    assert (found.says, found.error) == (says, error)


@pytest.mark.parametrize(
    "start",
    [
        f"{START}\n",
        '"Starting NVIDIA Device Plugin" version=<\n\t3c378193\n\tcommit: '
        "3c378193fcebf6e955f0\n >\n",
    ],
)
@pytest.mark.parametrize("wrap", [str, cri], ids=["bare", "CRI"])
def test_a_new_start_makes_everything_before_it_history(wrap, start: str) -> None:
    """A log that goes on after a restart in place; released images print their commit, in several
    lines."""
    before = klog(
        START,
        "Failed to initialize NVML: Unknown Error.",
        "No devices found. Waiting indefinitely.",
    )
    stamped = "I0627 10:12:48.000000       1 main.go:235] " + start
    again = read(wrap(before + stamped))
    assert (again.says, again.line, again.error) == (PluginLogState.NOTHING, "", "")
    assert read(wrap(before + stamped + klog("Retrieving plugins."))).says is ASKING


@pytest.mark.parametrize(
    ("line", "version"),
    [
        (START, "0.20.0"),
        ('"Starting NVIDIA Device Plugin" version="0.15.0-rc.2"', "0.15.0-rc.2"),
        ('"Starting NVIDIA Device Plugin" version="unknown"', "unknown"),
        ('"Starting NVIDIA Device Plugin" version=<', ""),
        ("Starting FS watcher.", ""),
    ],
)
def test_the_version_it_prints(line: str, version: str) -> None:
    assert read(klog(line, "Retrieving plugins.")).version == version


@pytest.mark.parametrize("wrap", [str, cri])
@pytest.mark.parametrize(
    ("below", "version"),
    [
        ("\tv0.17.1\n\tcommit: e0a461e1\n >\n", "v0.17.1"),
        ("\t3c9ffca9\n\tcommit: 3c9ffca9491f\n >\n", "3c9ffca9"),
        ("", ""),
    ],
)
def test_the_version_in_lines_of_its_own(wrap, below: str, version: str) -> None:
    started = klog('"Starting NVIDIA Device Plugin" version=<')
    assert read(wrap(started + below + klog("Starting Plugins."))).version == version


@pytest.mark.parametrize(
    ("text", "last"),
    [
        (
            klog("Loading configuration.")
            + klog("error starting plugins: unable to load config", level="E"),
            "error starting plugins: unable to load config",
        ),
        (
            klog("Failed to initialize NVML: Unknown Error.", level="E")
            + klog("No devices found. Waiting indefinitely."),
            "Failed to initialize NVML: Unknown Error.",
        ),
        (
            plain(
                "Starting FS watcher.", "Error: failed to create FS watcher: too many open files"
            ),
            "Error: failed to create FS watcher: too many open files",
        ),
        (
            plain("Fetching devices.", "Failed to created FS watcher."),
            "Failed to created FS watcher.",
        ),
        (
            klog("Retrieving plugins.")
            + "panic: error getting GPU device minor number\n\ngoroutine 1 [running]:\n",
            "panic: error getting GPU device minor number",
        ),
        (klog("gone", level="E") + klog(START), ""),
        (klog("x" * 300), "x" * 200),
        ("", ""),
    ],
)
def test_the_last_log_line_is_kept(text: str, last: str) -> None:
    assert read(text).last == read(cri(text)).last == last


@pytest.mark.parametrize(
    ("capture", "log", "says", "error", "version"),
    [
        (
            "1.31.14-plugin-0.9.0/incident-1-nvml999-running",
            "4abfcc7118cf",
            INIT_FAILED,
            "nvml: Unknown Error",
            "",
        ),
        (
            "1.31.14-plugin-0.9.0/incident-2-nvml-ok-old-container",
            "4abfcc7118cf",
            INIT_FAILED,
            "nvml: Unknown Error",
            "",
        ),
        ("1.31.14-plugin-0.9.0/incident-2b-after-sighup", "97cdb244922b", REGISTERED, "", ""),
        ("1.31.14-plugin-0.9.0/incident-3-recovered", "97cdb244922b", REGISTERED, "", ""),
        ("1.36.3-plugin-0.20.0/baseline-registered", "efd6e56ae71f", REGISTERED, "", "0.20.0"),
        ("1.36.3-plugin-0.20.0/dead-1-within-grace", "952625c80d17", STOPPED, "", "0.20.0"),
        ("1.36.3-plugin-0.20.0/gpupod-1-running", "f239bc48a54b", REGISTERED, "", "0.20.0"),
        (
            "1.36.3-plugin-0.20.0/incident-1-nvml999-running",
            "5073b7326d02",
            INIT_FAILED,
            "Unknown Error",
            "0.20.0",
        ),
        (
            "1.36.3-plugin-0.20.0/incident-1-nvml999-running",
            "f8e4301d0a2f",
            INIT_FAILED,
            "Unknown Error",
            "0.20.0",
        ),
        (
            "1.36.3-plugin-0.20.0/incident-2-nvml-ok-old-container",
            "5073b7326d02",
            INIT_FAILED,
            "Unknown Error",
            "0.20.0",
        ),
        ("1.36.3-plugin-0.20.0/incident-2b-after-sighup", "5073b7326d02", REGISTERED, "", "0.20.0"),
        ("1.36.3-plugin-0.20.0/incident-3-recovered", "47b9b752fe18", REGISTERED, "", "0.20.0"),
        ("1.36.3-plugin-0.20.0/partial-gpus-7", "0aede4e650eb", REGISTERED, "", "0.20.0"),
        ("1.36.3-plugin-0.20.0/restart-0-before", "97cdb244922b", REGISTERED, "", ""),
        ("1.36.3-plugin-0.20.0/restart-0-before", "e40bf0d0cdf5", REGISTERED, "", "0.20.0"),
        ("1.36.3-plugin-0.20.0/restart-2-after", "97cdb244922b", REGISTERED, "", ""),
        ("1.36.3-plugin-0.20.0/restart-2-after", "e40bf0d0cdf5", REGISTERED, "", "0.20.0"),
        (
            "1.36.3-plugin-0.20.0/xid-1-unhealthy",
            "af1bc02bb947",
            PluginLogState.UNHEALTHY,
            "",
            "0.20.0",
        ),
    ],
)
def test_real_logs(capture: str, log: str, says: PluginLogState, error: str, version: str) -> None:
    found = plugin_log.read((CAPTURES / f"kubelet-{capture}/plugin-{log}.log").read_bytes())
    assert (found.says, found.error, found.version) == (says, error, version)
    assert not plugin_log.lacks_the_library(found)


@pytest.mark.parametrize(
    ("lines", "lacks"),
    [
        (("Failed to initialize NVML: could not load NVML library.",), True),
        (
            (
                "Failed to initialize NVML: ERROR_LIBRARY_NOT_FOUND.",
                "nvml init failed: ERROR_LIBRARY_NOT_FOUND",
                "No devices found. Waiting indefinitely.",
            ),
            True,
        ),
        (
            (
                "Detected non-NVML platform: could not load NVML library",
                "Incompatible strategy detected auto",
                "No devices found. Waiting indefinitely.",
            ),
            True,
        ),
        (
            (
                "NVML not detected: could not load NVML library: libnvidia-ml.so.1: cannot "
                "open shared object file: No such "
                "file or directory",
            ),
            True,
        ),
        (("Failed to initialize NVML: Unknown Error.",), False),
        (("Failed to initialize NVML: Driver Not Loaded.",), False),
        (("No devices found. Waiting indefinitely.",), False),
        (("Registered device plugin with Kubelet",), False),
        (
            (
                "Failed to initialize NVML: could not load NVML library.",
                "Received SIGHUP, restarting.",
                "Stopping plugins.",
                "Failed to initialize NVML: Unknown Error.",
            ),
            False,
        ),
    ],
)
@pytest.mark.parametrize("form", [klog, plain, lambda *m: cri(klog(*m))])
def test_a_container_without_the_library(form, lines: tuple[str, ...], lacks: bool) -> None:
    assert plugin_log.lacks_the_library(read(form(*lines))) is lacks


@pytest.mark.parametrize("cut", range(0, 120, 7))
def test_a_tail_begins_and_ends_anywhere(cut: int) -> None:
    """The first line of a tail is torn, and the last one may be half written."""
    text = cri(
        klog(
            "Retrieving plugins.",
            "Failed to initialize NVML: Unknown Error.",
            "No devices found. Waiting indefinitely.",
        )
    ).encode()
    assert plugin_log.read(text[cut:]).says is INIT_FAILED
    assert plugin_log.read(text[: len(text) - cut]).says in (INIT_FAILED, ASKING)


def test_a_torn_last_line_is_read_as_far_as_it_goes() -> None:
    assert (
        read(
            klog("Retrieving plugins.") + "I0627 10:12:47.588061       1 server.go:149] Regist"
        ).says
        is ASKING
    )


HOSTILE = {
    "nothing": b"",
    "JSON without an end": b'{"log":' * 9000,
    "quotes without an end": b'"\\' * 30000,
    "words before it is disabled": b"failed to initialize NVML: " * 2400 + b"health checks disable",
    "nul": b"\0" * 65536,
    "no utf-8": bytes(range(128, 256)) * 256,
    "one endless line": b"Failed to initialize NVML: " + b"x" * 65000,
    "the same beginning over and over": b"Received signal " * 4096,
    "an error of many dots": b"Failed to initialize NVML: " + b"." * 65000,
    "stamps within stamps": b"2021/06/27 10:12:47 " * 3000,
    "CRI lines without content": b"2026-11-29T12:46:07Z stderr F \n" * 2000,
    "line breaks of every kind": "Retrieving plugins.\r\x0b\x0c\x1c\u2028\u2029\x85".encode()
    * 1000,
}


@pytest.mark.parametrize("tail", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_bytes_are_never_more_than_a_short_line(tail: bytes) -> None:
    found = plugin_log.read(tail)
    assert len(found.line) <= 200 and len(found.error) <= 120 and len(found.version) <= 120
    assert found.says in (PluginLogState.NOTHING, INIT_FAILED, ASKING)


def test_tenant_text_in_a_plugins_line_is_no_message() -> None:
    """A resource's or a device's name may hold anything but a line break."""
    assert read(klog("Starting to serve 'x' on /a\0Registered")).says is SERVING
