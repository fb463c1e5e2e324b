"""Lines of the journal that tell something about a node's GPUs, and what they tell.

Forms: kubernetes v1.20 to v1.34 (pkg/kubelet/cm/devicemanager, pkg/kubelet/lifecycle/predicate.go;
what a kubelet at its default verbosity says of a pod it turns away differs by version, so its
silence tells nothing), systemd src/core/manager.c (v255 and later name who asked), containerd 1.6
to 2.1, CRI-O 1.28, nvidia-persistenced 550.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ...model.diagnostics import JournalEntry, JournalEvent, JournalLine
from ...model.kernel import KernelLine
from ...model.runtime import PluginLogState
from ..common import kernel_log
from ..common.parse import without
from ..plugin import log as plugin_log

SYSTEMD, KERNEL = "systemd", "kernel"
LINE, END = 600, 240
"""Characters of a line that are kept, and of its end: a kubelet names the pod there."""
FAR, BEFORE, HEAD, WHY = 80, 40, 60, 130
"""Characters before a mark: so many are too many for a sentence that cites the line's beginning; so
many are kept; of a mark that says why, so many of its beginning, and so many of why, whose end
tells most."""
REQUEST = re.compile(r"Re(?:load(?:ing)?|execut(?:e|ing|ion)) requested from (client PID \d+.*)")
"""log_caller(): v255 and later; 252 tells nobody's name."""
_RELOAD = re.compile(r"^(?:Reloading|Reexecuting)\.")
_NAMES_GPU = r"(?:nvidia\.com/|\bGPU\b|nvml)"
_POD = (
    r"[\"/ ](?![\w.-]*(?:sandbox-device|mps-control|feature-discovery|amd|intel))"
    r"[\w.-]*?(?:nvidia|hami|gpu|volcano)(?:(?!nvidia|hami|gpu|volcano)[\w.-])*device-plugin"
)
"""A pod by its name, which stands behind its namespace, a quotation mark or a space: one of a
plugin of GPUs."""
_REFUSED = r"(?:UnexpectedAdmissionError|Allocate failed due to|Update plugin resources failed)"
_UNREACHED = (
    r"(?:Unable to connect to device plugin client|failed to dial device plugin"
    r"|Bad registration request from device plugin)"
)
_NO_SANDBOX = (
    r"(?:CreatePodSandbox|create sandbox for pod|network is not ready|unmounted volumes="
    r"|MountVolume\.SetUp fail)"
)
_WHY = re.compile(r"desc = |\) ?: ")
_TURNED_OUT = (
    r"(?:pod is evicted successfully|Failed to admit pod|Predicate failed on Pod"
    r"|Pod admission denied)"
)
_FORMS: tuple[tuple[JournalEvent, re.Pattern[str]], ...] = (
    (
        JournalEvent.OUT_OF,
        re.compile(r"OutOf(?:(?!OutOf)\w)*nvidia\.com/|enough resource: \S*nvidia\.com/", re.I),
    ),
    (
        JournalEvent.NOT_WRITTEN,
        re.compile(
            rf"writ(?:e|ing) checkpoint{without(' checkpoint')}"
            r"(?:kubelet_internal_|/device-plugins/)",
            re.I,
        ),
    ),
    (
        JournalEvent.UNEXPECTED,
        re.compile(
            rf"{_REFUSED}{without(_REFUSED)}{_NAMES_GPU}",
            re.I,
        ),
    ),
    (
        JournalEvent.REGISTERED,
        re.compile(rf"Got registration request from device plugin{without('Got ')}nvidia", re.I),
    ),
    (
        JournalEvent.LIST_ENDED,
        re.compile(
            rf"ListAndWatch ended unexpectedly for device plugin{without('ListAnd')}nvidia", re.I
        ),
    ),
    (
        JournalEvent.CHECKPOINT,
        re.compile(
            r"after failing to read checkpoint file"
            rf"|cannot unmarshal {without('cannot ')}DevicesPerNUMA"
        ),
    ),
    (
        JournalEvent.NO_HANDLER,
        re.compile(
            r"no runtime for \\*\"nvidia|runtime handler \\*\"?nvidia\S* (?:not|is not)"
            r"|find runtime handler nvidia",
            re.I,
        ),
    ),
    (
        JournalEvent.NO_CDI_DEVICE,
        re.compile(r"unresolvable CDI devices|CDI device injection failed", re.I),
    ),
    (
        JournalEvent.HOOK_FAILED,
        re.compile(r"nvidia-container-cli(?:\.real)?: (?:[a-z ]+ )?error", re.I),
    ),
    (
        JournalEvent.NOT_REACHED,
        re.compile(
            rf"{_UNREACHED}{without(_UNREACHED)}nvidia",
            re.I,
        ),
    ),
    (
        JournalEvent.NOT_STARTED,
        re.compile(
            r'StartContainer\\*" for \\*"(?:(?=[\w.-]*device-plugin)[\w.-]+\\*" with '
            r"(?!CrashLoop)\w+"
            rf'|[\w.-]+\\*" with (?!CrashLoop){without("StartContainer")}{_POD})'
        ),
    ),
    (
        JournalEvent.NO_SANDBOX,
        re.compile(
            rf"{_NO_SANDBOX}{without(_NO_SANDBOX)}?{_POD}",
            re.I,
        ),
    ),
    (
        JournalEvent.TURNED_OUT,
        re.compile(
            rf"{_TURNED_OUT}{without(_TURNED_OUT)}{_POD}"
            rf"|eviction manager: {without('eviction manager')}{_POD}.{{0,400}} is evicted",
            re.I,
        ),
    ),
    (
        JournalEvent.FABRIC_VERSION,
        re.compile(
            rf"fabric manager {without('fabric manager')}"
            r"version [\d.]+ do\S+ match with driver version",
            re.I,
        ),
    ),
    (JournalEvent.GPU_UP, re.compile(r"^device \S+ - persistence mode enabled")),
)
_HINTS = (
    "nvidia",
    "nvml",
    "NVML",
    "No devices found",
    "NVRM",
    "checkpoint",
    "CDI",
    "oad",
    "xecut",
    "persistence",
    "fabric manager",
    "device-plugin",
)
"""One of them is in every line that tells something: a busy journal is to cost little."""


def word(line: JournalLine) -> JournalEntry | None:
    """What a line tells; None where it tells nothing of GPUs."""
    if not any(hint in line.text for hint in _HINTS):
        return None
    text = cut(line.text)
    if line.source == KERNEL:
        told = kernel_log.word(KernelLine(line.at, text))
        return JournalEntry(line.at, JournalEvent.KERNEL, KERNEL, text) if told else None
    if line.source == SYSTEMD:
        asked = REQUEST.search(text)
        if asked or _RELOAD.search(text):
            return JournalEntry(
                line.at,
                JournalEvent.RELOAD,
                SYSTEMD,
                text,
                asked.group(1).rstrip(".")[:200] if asked else "",
            )
        return None
    for says, form in _FORMS:
        if found := form.search(text):
            return JournalEntry(line.at, says, line.source, _about(text, says, found))
    if plugin_log.read(text.encode("utf-8", "replace")).says in (
        PluginLogState.INIT_FAILED,
        PluginLogState.NO_DEVICES,
    ):
        return JournalEntry(line.at, JournalEvent.PLUGIN_FAILED, line.source, text)
    return None


def cut(text: str) -> str:
    """A long line without its middle."""
    return text if len(text) <= LINE else f"{text[: LINE - END - 3]} … {text[-END:]}"


def _about(text: str, says: JournalEvent, found: re.Match[str]) -> str:
    """A line is cited by its beginning: what of a long one tells something is brought there."""
    why = _WHY.search(text, found.end()) if says is JournalEvent.NO_SANDBOX else None
    if why:
        reason, named, _ = text[why.start() :].partition('" pod=')
        reason = reason.rstrip('"').rstrip("\\") if named else reason
        return f"… {text[found.start() : why.start()][:HEAD]} … {reason[-WHY:]}"
    return text if found.start() < FAR else f"… {text[max(0, found.start() - BEFORE) :]}"


def words(lines: Iterable[JournalLine]) -> tuple[JournalEntry, ...]:
    return tuple(found for found in map(word, lines) if found is not None)
