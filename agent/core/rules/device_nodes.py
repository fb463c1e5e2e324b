"""Link 3: the device nodes under /dev and the links under /dev/char, and what may be added where they lack.

The driver's character devices get no device model entry, so neither devtmpfs nor udev makes these
(open-gpu-kernel-modules 595, nv.c: register_chrdev_region and cdev_add, no device_create); nvidia-modprobe does.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...model.finding import Finding, Scope, Verdict
from ...model.plan import Action, LinkDevChar, MakeNodes
from ...model.reading import Refusal, Seen
from ...model.scene import Gpu, Scene
from ...model.settings import Settings
from ..containers import nvidia_majors
from ..tegra import TEGRA
from . import driver
from .gpus import Judged, SortedGpus

CONTROL = "/dev/nvidiactl"
CONTROL_MINOR = 255
UVM = ("/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")


def _uvm_loaded(scene: Scene) -> bool:
    return isinstance(scene.majors, Seen) and "nvidia-uvm" in scene.majors.value


def missing_nodes(scene: Scene, gpus: Sequence[Gpu]) -> tuple[str, ...]:
    """Device nodes that GPU work needs and that are not there, or carry a major that is not NVIDIA's."""
    if not isinstance(scene.nodes, Seen):
        return ("/dev/nvidia*",)
    majors = nvidia_majors(scene)
    there = {n.path for n in scene.nodes.value if not majors or n.major in majors}
    wanted = [CONTROL, *(UVM if _uvm_loaded(scene) else ())]
    wanted += [f"/dev/nvidia{g.minor}" for g in gpus if g.minor >= 0]
    return tuple(path for path in wanted if path not in there)


def missing_links(scene: Scene) -> tuple[tuple[str, str], ...]:
    """(/dev/char name, target) for every NVIDIA device node without its link."""
    if not isinstance(scene.nodes, Seen) or not isinstance(scene.char_links, Seen):
        return ()
    majors = nvidia_majors(scene)
    links = scene.char_links.value
    wanted = [(f"{n.major}:{n.minor}", "../" + n.path.removeprefix("/dev/"))
              for n in scene.nodes.value if n.major in majors]
    return tuple(sorted((name, target) for name, target in wanted if name not in links))


def findings(scene: Scene, gpus: SortedGpus, judged: Judged) -> tuple[Finding, ...]:
    if gpus.scope is Scope.NONE or not driver.is_live(scene) or gpus.bound == (TEGRA,):
        return ()
    if isinstance(scene.nodes, Refusal):
        return (Finding(3, "DeviceNodes", Verdict.UNKNOWN, f"/dev was not read ({scene.nodes})", "DevUnreadable",
                        missing=("/dev/nvidia*",), next_step="ls -l /dev/nvidia*"),)
    lacking = missing_nodes(scene, judged.gpus)
    if lacking:
        found = [Finding(3, "DeviceNodes", Verdict.FAILS, f"missing: {', '.join(lacking)}", "DeviceNodesMissing",
                         missing=lacking, next_step="nvidia-modprobe -c 0 -u; ls -l /dev/nvidia*")]
    else:
        found = [Finding(3, "DeviceNodes", Verdict.HOLDS, f"{len(scene.nodes.value)} device nodes under /dev")]
    links = missing_links(scene)
    if links:
        found.append(Finding(
            3, "DevCharLinks", Verdict.FAILS, "no /dev/char link for " + ", ".join(name for name, _ in links),
            "DevCharLinksMissing", missing=tuple(f"/dev/char/{name}" for name, _ in links), blocks=False,
            next_step="runc 1.1.3-1.1.6 drops such devices at daemon-reload: nvidia-ctk system "
                      "create-dev-char-symlinks --create-all"))
    if not _uvm_loaded(scene) and isinstance(scene.majors, Seen):
        found.append(Finding(
            3, "UvmLoaded", Verdict.FAILS, "nvidia-uvm is not loaded: CUDA loads it at its first use",
            "UvmNotLoaded", missing=UVM, blocks=False, next_step="nvidia-modprobe -u -c 0"))
    return tuple(found)


def additive(scene: Scene, settings: Settings, gpus: SortedGpus, judged: Judged) -> tuple[Action, ...]:
    """What may be added. Nodes only through nvidia-modprobe and only for modules that are loaded, so that
    asking for a node never loads one."""
    if not settings.additive or gpus.scope is not Scope.GPUS or not driver.is_live(scene) or gpus.bound == (TEGRA,):
        return ()
    actions: list[Action] = []
    lacking = missing_nodes(scene, judged.gpus)
    if lacking and isinstance(scene.nodes, Seen):
        minors = [CONTROL_MINOR] if CONTROL in lacking else []
        minors += [g.minor for g in judged.gpus if f"/dev/nvidia{g.minor}" in lacking]
        actions.append(MakeNodes(tuple(minors), uvm=any(path in lacking for path in UVM)))
    links = missing_links(scene)
    if links:
        actions.append(LinkDevChar(links))
    return tuple(actions)

