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
from ..plugin import log as plugin_log

SYSTEMD, KERNEL = "systemd", "kernel"
LINE, END = 600, 240
"""Characters of a line that are kept, and of its end: a kubelet names the pod there."""
FAR, BEFORE, HEAD, WHY = 80, 40, 60, 130
"""Characters before a mark: so many are too many for a sentence that cites the line's beginning; so
many are kept; of a mark that says why, so many of its beginning, and so many of why, whose end
tells most."""
REQUEST = re.compile(
    r"Re(?:load(?:ing)?|execut(?:e|ing|ion)) requested from (client PID \d+.*?)\.*$"
)
"""log_caller(): v255 and later; 252 tells nobody's name."""
_RELOAD = re.compile(r"^(?:Reloading|Reexecuting)\.")
_NAMES_GPU = r"(?:nvidia\.com/|\bGPU\b|nvml)"
_POD = (
    r"[\"/ ](?!\S*(?:sandbox-device|mps-control|feature-discovery|amd|intel))"
    r"[\w.-]*(?:nvidia|hami|gpu|volcano)[\w.-]*device-plugin"
)
"""A pod by its name, which stands behind its namespace, a quotation mark or a space: one of a
plugin of GPUs."""
_FORMS: tuple[tuple[JournalEvent, re.Pattern[str]], ...] = (
    (
        JournalEvent.OUT_OF,
        re.compile(r"OutOf\w*nvidia\.com/|enough resource: \S*nvidia\.com/", re.I),
    ),
    (
        JournalEvent.NOT_WRITTEN,
        re.compile(r"writ(?:e|ing) checkpoint.*?(?:kubelet_internal_|/device-plugins/)", re.I),
    ),
    (
        JournalEvent.UNEXPECTED,
        re.compile(
            r"(?:UnexpectedAdmissionError|Allocate failed due to|Update plugin resources "
            rf"failed).*{_NAMES_GPU}",
            re.I,
        ),
    ),
    (
        JournalEvent.REGISTERED,
        re.compile(r"Got registration request from device plugin.*nvidia", re.I),
    ),
    (
        JournalEvent.LIST_ENDED,
        re.compile(r"ListAndWatch ended unexpectedly for device plugin.*nvidia", re.I),
    ),
    (
        JournalEvent.CHECKPOINT,
        re.compile(r"after failing to read checkpoint file|cannot unmarshal .*DevicesPerNUMA"),
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
            r"(?:Unable to connect to device plugin client|failed to dial device plugin"
            r"|Bad registration request from device plugin).*nvidia",
            re.I,
        ),
    ),
    (
        JournalEvent.NOT_STARTED,
        re.compile(
            r'StartContainer\\*" for \\*"(?:[\w.-]*device-plugin[\w.-]*\\*" with (?!CrashLoop)\w+'
            rf'|[\w.-]+\\*" with (?!CrashLoop).*{_POD})'
        ),
    ),
    (
        JournalEvent.NO_SANDBOX,
        re.compile(
            r"(?:CreatePodSandbox|create sandbox for pod|network is not ready|unmounted "
            r"volumes=|MountVolume\.SetUp fail)"
            rf".*?{_POD}(?:.*?(?P<why>(?:desc = |\) ?: ).*?)(?:\\*\"+ pod=.*)?$)?",
            re.I,
        ),
    ),
    (
        JournalEvent.TURNED_OUT,
        re.compile(
            r"(?:pod is evicted successfully|Failed to admit pod|Predicate failed on Pod|Pod "
            r"admission denied).*" + _POD + rf"|eviction manager: .*{_POD}.* is evicted",
            re.I,
        ),
    ),
    (
        JournalEvent.FABRIC_VERSION,
        re.compile(r"fabric manager .*version [\d.]+ do\S+ match with driver version", re.I),
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
                line.at, JournalEvent.RELOAD, SYSTEMD, text, asked.group(1)[:200] if asked else ""
            )
        return None
    for says, form in _FORMS:
        if found := form.search(text):
            return JournalEntry(line.at, says, line.source, _about(text, found))
    if plugin_log.read(text.encode("utf-8", "replace")).says in (
        PluginLogState.INIT_FAILED,
        PluginLogState.NO_DEVICES,
    ):
        return JournalEntry(line.at, JournalEvent.PLUGIN_FAILED, line.source, text)
    return None


def cut(text: str) -> str:
    """A long line without its middle."""
    return text if len(text) <= LINE else f"{text[: LINE - END - 3]} … {text[-END:]}"


def _about(text: str, found: re.Match[str]) -> str:
    """A line is cited by its beginning: what of a long one tells something is brought there."""
    if why := found.groupdict().get("why"):
        return f"… {text[found.start() : found.start('why')][:HEAD]} … {why[-WHY:]}"
    return text if found.start() < FAR else f"… {text[max(0, found.start() - BEFORE) :]}"


def words(lines: Iterable[JournalLine]) -> tuple[JournalEntry, ...]:
    return tuple(found for found in map(word, lines) if found is not None)
