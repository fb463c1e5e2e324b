"""What a node lacks for Launch= to work: said by `gpu-gate config --check` and at the agent's
start."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator

from ..core.common.layouts import manifest_folders
from ..core.common.paths import MANIFEST_NAME
from ..model.settings import Settings

TMPFILES = ("etc/tmpfiles.d", "run/tmpfiles.d", "usr/local/lib/tmpfiles.d", "usr/lib/tmpfiles.d")


def problems(settings: Settings, root: str) -> Iterator[str]:
    """Sentences, each with a next step."""
    if settings.launch == "unit" and settings.plugin_unit in ("", "none"):
        yield "Launch=unit starts nothing without [Plugin] Unit=, the plugin's unit"
    if settings.launch != "manifest":
        return
    if not os.path.isfile(os.path.join(root, settings.launch_manifest.lstrip("/"))):
        yield (
            f"LaunchManifest={settings.launch_manifest} is no file: put the plugin's "
            "static pod there"
        )
    folder = settings.manifest_dir
    if (
        folder
        and folder not in manifest_folders(Settings())
        and not _is_removed(f"{folder}/{MANIFEST_NAME}", root)
    ):
        yield (
            f"ManifestDir={folder}: nothing removes {MANIFEST_NAME} there at the next boot: "
            f"echo 'r! {folder}/"
            f"{MANIFEST_NAME}' >/etc/tmpfiles.d/gpu-gate-manifest.conf; and the agent may "
            "write there only with "
            f"ReadWritePaths={folder} (systemctl edit gpu-gate)"
        )


def _is_removed(target: str, root: str) -> bool:
    """Some r! line names it: systemd-tmpfiles-setup.service reads those before sysinit.target
    (tmpfiles.d(5))."""
    for folder in TMPFILES:
        for path in glob.glob(os.path.join(glob.escape(root), folder, "*.conf")):
            try:
                with open(path, encoding="utf-8", errors="replace") as file:
                    lines = file.read().splitlines()
            except OSError:
                continue
            for line in lines:
                words = line.split()
                if words[:1] in (["r!"], ["R!"]) and words[1:2] == [target]:
                    return True
    return False
