"""Every reason word the program can say is documented."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NO_REASONS = {  # conditions, which docs/terms.md explains
    "GpusOnPci", "GpusBound", "DriverLoaded", "DeviceNodes", "DevCharLinks", "UvmLoaded", "PersistenceActive",
    "FabricManagerActive", "NvmlComplete", "AsBefore", "KubeletActive", "PluginSocket", "PluginRegistered",
    "AllocationWorks", "MigConfigured",
    "PluginWell", "Checkpoint", "NotPaused", "CdiSpec", "RuntimeHandler", "RuntimeAnswers", "PluginLaunched",
    "SocketOwner", "NodeResources", "WorkloadAccess", "AccessAfterReload", "AccessKept",
    "WorkloadDriver",
    "MetricAgrees", "AlertAgrees", "FabricReady", "GpusAtEase", "KernelLogQuiet",
}  # fmt: skip
KUBERNETES = {"True", "False", "Unknown", "NoSchedule"}
DOCTORS = {"CudaAnswers", "SocketsAnswer", "NotAsked"}


def words() -> set[str]:
    """CamelCase string constants of the gate and the rules, phases (all capitals) apart."""
    found = set()
    sources = [ROOT / "agent" / name for name in (
        "core/gate.py", "core/phases.py", "core/mend.py", "core/faults/links.py", "barrier/word.py",
        "barrier/decide.py")]
    for path in [*sources, *(ROOT / "agent/core/rules").glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            value = node.value if isinstance(node, ast.Constant) else None
            if isinstance(value, str) and value.isalpha() and value[:1].isupper() and not value.isupper():
                found.add(value)
    return found - NO_REASONS - DOCTORS - KUBERNETES - {"Nvml"}


def test_every_reason_word_is_documented() -> None:
    page = (ROOT / "docs/reasons.md").read_text()
    assert {word for word in words() if f"`{word}`" not in page} == set()


def test_the_page_names_no_word_that_nobody_says() -> None:
    page = (ROOT / "docs/reasons.md").read_text()
    named = {part for part in page.split("`") if part.isalpha() and part[:1].isupper() and not part.isupper()}
    spoken = words() | {"NvmlUnknown", "NvmlGpuIsLost", "NvmlLibRmVersionMismatch"}
    assert named - spoken - NO_REASONS == set()
