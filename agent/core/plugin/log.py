"""What a device plugin's log tail says. A log is a hint, never proof: "Registered" is written by
plugins the kubelet has forgotten since, and nothing is written by one that hangs.

Every form is read: klog's (0.14 and later: "E0627 10:12:47.588061 1 factory.go:68] Failed …"), its
structured one ("Failed …" err="…"), JSON (k8s.io/component-base/logs/json), and the older
"2021/06/27 10:12:47 Failed …"; as CRI or as Docker's json-file driver keeps them. Marks:
k8s-device-plugin v0.9.0 … v0.20.0, cmd/nvidia-device-plugin and internal/;
container-engine-accelerators (GKE), pkg/gpu/nvidia/manager.go.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ...model.runtime import PluginLog, PluginLogState
from ..common import parse

_CRI = re.compile(r"^(\d{4}-\d\d-\d\dT\S+) (stdout|stderr) ([FP])(?::\S*)? ?")
"""The CRI log format a kubelet asks of its runtime (kubernetes pkg/kubelet/kuberuntime/logs); P: a
part of a line. A runtime parts what is long, conmon (CRI-O) whatever was not written at once, as
Go's runtime writes a panic."""
_STAMP = re.compile(
    r"^(?:[IWEF]\d{4} [\d:.]+\s+\d+ [\w./-]+:\d+\] |\d{4}/\d\d/\d\d \d\d:\d\d:\d\d )"
)
_SEVERE = re.compile(r"^[EF]\d{4} ")
_IS_ERROR = re.compile(r"^(?:panic:|fatal error:|error\b|failed\b)", re.I)
"""An error, by klog's severity or by its first word. A trace, and what follows from it, come after
it."""
TAKES_OUT = (PluginLogState.UNHEALTHY, PluginLogState.UNWATCHED)
_ESCAPES = re.compile(r"\x1b\[[\d;]*m")
_QUOTED = re.compile(r'^"((?:[^"\\]|\\.)*)"')
_ERR = re.compile(r'\berr(?:or)?="((?:[^"\\]|\\.)*)"')
_TOO_OLD = r"too old to support health?t?checking"
_UNABLE = (
    rf"{_TOO_OLD}|unable to (?:get device handle from UUID|determine the supported events)"
    r"|Could not determine device placement|Marking device \S+ as unhealthy: "
)
"""A GPU whose events it cannot watch (nvidia.go until v0.12, rm/health.go since). A line that says
only that one is too old is of a version that offers it all the same."""
_MARKS: tuple[tuple[re.Pattern[str], PluginLogState], ...] = (
    (
        re.compile(
            r"^(?!.*health checks? disabled).*?"
            r"(?:Failed to initiali[sz]e NVML|Failed to start nvml with error|Nvml init "
            r"(?:failed|err))(?:: +(?P<error>.*\S)|[.\s]*$)",
            re.I,
        ),
        PluginLogState.INIT_FAILED,
    ),
    (re.compile(r"could not load NVML library(?:: (?P<error>.+))?"), PluginLogState.INIT_FAILED),
    (
        re.compile(r"Incompatible (?:strategy|platform|device discovery strategy) detected"),
        PluginLogState.INIT_FAILED,
    ),
    (re.compile(r"No devices found[.,;:]? *Waiting indefinitely", re.I), PluginLogState.NO_DEVICES),
    (re.compile(r"waiting for MPS daemon", re.I), PluginLogState.WAITING),
    (
        re.compile(r"failed to start GPU device manager: "),
        PluginLogState.WAITING,
    ),  # GKE's: again every 5 s
    (re.compile(r"Could not (?:register|start) device plugin"), PluginLogState.NOT_REGISTERED),
    (
        re.compile(
            r"Registered device plugin (?:for \S+ )?with Kubelet|device-plugin registered with "
            r"the kubelet"
        ),
        PluginLogState.REGISTERED,
    ),
    (
        re.compile(
            r"Starting to serve|Starting GRPC server|Starting gRPC server|device-plugin server "
            r"started serving"
        ),
        PluginLogState.SERVING,
    ),
    (
        re.compile(
            r"Ret(?:rie|rei)ving plugins|Loading NVML|Starting Plugins|^device-plugin started"
        ),
        PluginLogState.ASKING,
    ),
    (
        re.compile(
            r"^(?=.*unhealthy)(?!.*(?:GPU.IS.LOST|RESET.REQUIRED)).*?(?:Error waiting for "
            rf"event|{_UNABLE})",
            re.I,
        ),
        PluginLogState.UNWATCHED,
    ),
    # An event that it leaves out is told as "Skipping non-nvmlEventTypeXidCriticalError event".
    (
        re.compile(r"\bXidCriticalError: |(?:will go|marked|marking(?: \S+){1,3}) unhealthy", re.I),
        PluginLogState.UNHEALTHY,
    ),
    (
        re.compile(r'Received signal "[^"]*", shutting down|Stopping plugins'),
        PluginLogState.STOPPED,
    ),
)
# Released images print it over several lines, the version or a commit in the first of them:
# version=<
_VERSION = re.compile(r'Starting NVIDIA Device Plugin" version=(?:"v?([\w.-]+)"|<)')
# What the plugin's container lacks, whatever the host has: starting it afresh cannot give it the
# library.
_NO_LIBRARY = re.compile(
    r"ERROR_LIBRARY_NOT_FOUND|could not load NVML library|cannot open shared object|Not Found"
    r"|Incompatible",
    re.I,
)
_OLD_LIBRARY = re.compile(r"Driver/library version mismatch|LIB_RM_VERSION_MISMATCH", re.I)


def read(tail: bytes) -> PluginLog:
    """The last mark in a log tail, in whatever form; a log without marks says nothing."""
    says, line, error, version, at = PluginLogState.NOTHING, "", "", "", 0.0
    last, is_error, is_below = "", False, False
    for stamp, whole in _lines(tail.decode("utf-8", "replace")):
        plain = whole[: parse.LINE]
        found = _VERSION.search(plain)
        if found:  # a new start: what was said before it is history
            says, line, error, version, at = (
                PluginLogState.NOTHING,
                "",
                "",
                found.group(1) or "",
                0.0,
            )
            last, is_error, is_below = "", False, not version
            continue
        if is_below and not _STAMP.match(plain):
            version, is_below = plain.strip()[:40], False
            continue
        is_severe = bool(_SEVERE.match(plain))
        text = whole if whole.startswith("{") else _STAMP.sub("", plain)
        plain = _message(text.strip())[: parse.LINE]
        is_severe = is_severe or bool(_IS_ERROR.match(plain))
        if plain and (is_severe or not is_error):
            last, is_error = plain, is_severe
        for pattern, meaning in _MARKS:
            mark = pattern.search(plain)
            if mark:
                before = line
                says, line, error = _after(says, error, meaning, mark, plain, line)
                if line != before or not at:
                    at = parse.rfc3339(stamp)
                break
    return PluginLog(says, line[:200], error[:120], version, last[-200:], at)


def _lines(tail: str) -> Iterator[tuple[str, str]]:
    """(when the runtime got it, what was written), the parts of a line put together; the last may
    not have ended."""
    parts: dict[str, tuple[str, str]] = {}
    for raw in tail.splitlines():
        stamp, stream, text, is_part = _unwrapped(raw)
        before = parts.pop(stream, ("", ""))[1]
        if is_part:
            parts[stream] = stamp, before + text
        else:
            yield stamp, before + text
    yield from parts.values()


def _unwrapped(raw: str) -> tuple[str, str, str, bool]:
    """(when the runtime got it, on which stream, what was written, whether the line goes on)."""
    found = _CRI.match(raw)
    stamp, stream, tag = found.groups() if found else ("", "", "")
    text = raw[found.end() :] if found else raw
    if text.startswith('{"log":') and (
        kept := parse.json_object(text.encode())
    ):  # Docker, beneath cri-dockerd
        stamp, stream, text = (str(kept.get(key, "")) for key in ("time", "stream", "log"))
        tag = "" if text.endswith("\n") else "P"
    return stamp, stream, _ESCAPES.sub("", text) if "\x1b" in text else text, tag == "P"


def _message(plain: str) -> str:
    """Of a structured line its message and its error; any other line as it is."""
    if plain.startswith("{") and (said := parse.json_object(plain.encode("utf-8", "replace"))):
        message, error = str(said.get("msg", "")), str(said.get("err", said.get("error", "")))
    elif quoted := _QUOTED.match(plain):
        err = _ERR.search(plain, quoted.end())
        message, error = quoted.group(1), err.group(1) if err else ""
    else:
        return plain
    return f"{message}: {error}" if error else message


def _after(
    says: PluginLogState,
    error: str,
    meaning: PluginLogState,
    mark: re.Match[str],
    plain: str,
    line: str,
) -> tuple[PluginLogState, str, str]:
    """A failed initialisation is followed by "No devices found": the failure is the better word."""
    if meaning is PluginLogState.NO_DEVICES and says is PluginLogState.INIT_FAILED:
        return says, line, error
    if meaning in TAKES_OUT and says in TAKES_OUT:
        # Its server says which GPU it took out; why is told before. An Xid counts more than a watch
        # that failed.
        return (meaning, plain, "") if "XidCriticalError" in plain else (says, line, error)
    if meaning is PluginLogState.INIT_FAILED:
        words = (mark.groupdict().get("error") or "").rstrip(". ")
        return meaning, plain, words or error or plain
    return meaning, plain, ""


def lacks_the_library(log: PluginLog) -> bool:
    """The failure is one of the container's own view, which a fresh start of the same container
    keeps."""
    return log.says is PluginLogState.INIT_FAILED and bool(
        _NO_LIBRARY.search(f"{log.error} {log.line}")
    )


def cannot_be_watched(log: PluginLog) -> bool:
    """A GPU without NVML's events: a fresh start would take it out again (versions before pull
    request #1562)."""
    return log.says is PluginLogState.UNWATCHED and bool(
        re.search(rf"{_TOO_OLD}|Not.Supported", log.line, re.I)
    )


def has_an_old_library(log: PluginLog) -> bool:
    """Its container was given the library of another driver than the one that is loaded; a new one
    is given the host's."""
    return log.says is PluginLogState.INIT_FAILED and bool(
        _OLD_LIBRARY.search(f"{log.error} {log.line}")
    )
