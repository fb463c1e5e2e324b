"""What a device plugin's log tail says. A log is a hint, never proof: "Registered" is written by plugins the kubelet
has forgotten since, and nothing is written by one that hangs.

Every form is read: klog's (0.14 and later: "E0627 10:12:47.588061 1 factory.go:68] Failed …"), its structured one
("Failed …" err="…"), JSON (k8s.io/component-base/logs/json), and the older "2021/06/27 10:12:47 Failed …"; as CRI or
as Docker's json-file driver keeps them. Marks: k8s-device-plugin v0.9.0 … v0.20.0, cmd/nvidia-device-plugin and
internal/; container-engine-accelerators (GKE), pkg/gpu/nvidia/manager.go.
"""

from __future__ import annotations

import re

from ..model.runtime import PluginLog, PluginSays
from . import parse

_CRI = re.compile(r"^(\d{4}-\d\d-\d\dT\S+) (?:stdout|stderr) [FP] ?")
"""The CRI log format a kubelet asks of its runtime (kubernetes pkg/kubelet/kuberuntime/logs)."""
_STAMP = re.compile(r"^(?:[IWEF]\d{4} [\d:.]+\s+\d+ [\w./-]+:\d+\] |\d{4}/\d\d/\d\d \d\d:\d\d:\d\d )")
_SEVERE = re.compile(r"^[EF]\d{4} ")
_IS_ERROR = re.compile(r"^(?:panic:|fatal error:|error\b|failed\b)", re.I)
"""An error, by klog's severity or by its first word. A trace, and what follows from it, come after it."""
_ESCAPES = re.compile(r"\x1b\[[\d;]*m")
_QUOTED = re.compile(r'^"((?:[^"\\]|\\.)*)"')
_ERR = re.compile(r'\berr(?:or)?="((?:[^"\\]|\\.)*)"')
_MARKS: tuple[tuple[re.Pattern[str], PluginSays], ...] = (
    (re.compile(r"(?:Failed to initiali[sz]e NVML|Failed to start nvml with error|Nvml init failed)"
                r"(?!.*health checks? disabled)(?:: +(?P<error>.*?\S))?[.\s]*$", re.I), PluginSays.INIT_FAILED),
    (re.compile(r"could not load NVML library(?:: (?P<error>.+))?"), PluginSays.INIT_FAILED),
    (re.compile(r"Incompatible (?:strategy|platform|device discovery strategy) detected"), PluginSays.INIT_FAILED),
    (re.compile(r"No devices found[.,;:]? *Waiting indefinitely", re.I), PluginSays.NO_DEVICES),
    (re.compile(r"waiting for MPS daemon", re.I), PluginSays.WAITING),
    (re.compile(r"Could not (?:register|start) device plugin"), PluginSays.NOT_REGISTERED),
    (re.compile(r"Registered device plugin (?:for \S+ )?with Kubelet|device-plugin registered with the kubelet"),
     PluginSays.REGISTERED),
    (re.compile(r"Starting to serve|Starting GRPC server|Starting gRPC server|device-plugin server started serving"),
     PluginSays.SERVING),
    (re.compile(r"Ret(?:rie|rei)ving plugins|Loading NVML|Starting Plugins|^device-plugin started"),
     PluginSays.ASKING),
    # An event that it leaves out is told as "Skipping non-nvmlEventTypeXidCriticalError event".
    (re.compile(r"\bXidCriticalError: |(?:will go|marked|marking(?: \S+){1,3}) unhealthy", re.I),
     PluginSays.UNHEALTHY),
    (re.compile(r'Received signal "[^"]*", shutting down|Stopping plugins'), PluginSays.STOPPED),
)
# Released images print it over several lines, the version or a commit in the first of them: version=<
_VERSION = re.compile(r'Starting NVIDIA Device Plugin" version=(?:"v?([\w.-]+)"|<)')
# What the plugin's container lacks, whatever the host has: starting it afresh cannot give it the library.
_NO_LIBRARY = re.compile(r"ERROR_LIBRARY_NOT_FOUND|could not load NVML library|cannot open shared object|Not Found"
                         r"|Incompatible", re.I)
_OLD_LIBRARY = re.compile(r"Driver/library version mismatch|LIB_RM_VERSION_MISMATCH", re.I)


def read(tail: bytes) -> PluginLog:
    """The last mark in a log tail, in whatever form; a log without marks says nothing."""
    says, line, error, version, at = PluginSays.NOTHING, "", "", "", 0.0
    last, is_error, is_below = "", False, False
    for raw in tail.decode("utf-8", "replace").splitlines():
        stamp, plain = _unwrapped(raw)
        found = _VERSION.search(plain)
        if found:  # a new start: what was said before it is history
            says, line, error, version, at = PluginSays.NOTHING, "", "", found.group(1) or "", 0.0
            last, is_error, is_below = "", False, not version
            continue
        if is_below and not _STAMP.match(plain):
            version, is_below = plain.strip()[:40], False
            continue
        is_severe = bool(_SEVERE.match(plain))
        plain = _message(_STAMP.sub("", plain).strip())
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


def _unwrapped(raw: str) -> tuple[str, str]:
    """(when the runtime got it, what was written)."""
    found = _CRI.match(raw)
    stamp, text = (found.group(1), raw[found.end():]) if found else ("", raw)
    if text.startswith('{"log":') and (kept := parse.json_object(text.encode())):  # Docker, beneath cri-dockerd
        stamp, text = str(kept.get("time", "")), str(kept.get("log", ""))
    return stamp, _ESCAPES.sub("", text) if "\x1b" in text else text


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


def _after(says: PluginSays, error: str, meaning: PluginSays, mark: re.Match[str], plain: str,
           line: str) -> tuple[PluginSays, str, str]:
    """A failed initialisation is followed by "No devices found": the failure is the better word."""
    if meaning is PluginSays.NO_DEVICES and says is PluginSays.INIT_FAILED:
        return says, line, error
    if meaning is PluginSays.INIT_FAILED:
        words = (mark.groupdict().get("error") or "").strip()
        return meaning, plain, words or error or plain
    return meaning, plain, ""


def lacks_the_library(log: PluginLog) -> bool:
    """The failure is one of the container's own view, which a fresh start of the same container keeps."""
    return log.says is PluginSays.INIT_FAILED and bool(_NO_LIBRARY.search(f"{log.error} {log.line}"))


def has_an_old_library(log: PluginLog) -> bool:
    """Its container was given the library of another driver than the one that is loaded; a new one is given the
    host's."""
    return log.says is PluginSays.INIT_FAILED and bool(_OLD_LIBRARY.search(f"{log.error} {log.line}"))
