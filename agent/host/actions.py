"""Executes actions on the node: one function for each. The next cycle's snapshot shows their
effect.

The rules for actions are in docs/design.md. Actions in this module only add something; those that
end a process are in host/repairer.py. An action that fails raises ActionFailed.
"""

from __future__ import annotations

import json
import os

from ..core.common.paths import RUN, STATE
from ..model.actions import (
    Action,
    CheckAccess,
    DropProbe,
    GrantDevices,
    LaunchUnit,
    Learn,
    LinkDevChar,
    LoadModule,
    MakeNodes,
    NoteNvmlFailed,
    NoteOutcome,
    PlaceManifest,
    Rebuild,
    RefreshCdi,
    Release,
    RestartUnit,
    SendHup,
    StartProbe,
)
from ..model.errors import ActionFailed
from ..model.host import Host
from ..model.reading import unreachable
from ..model.settings import Settings
from ..model.snapshot import Snapshot
from ..transport.atomic_write import write_whole
from ..transport.process import run_once
from .access.checks import DeviceAccess
from .access.updater import DeviceAllowUpdater
from .launcher import Launcher
from .marks import write_released
from .probes.runner import Probes
from .repair_diagnostics import RepairDiagnostics
from .repairer import PluginRepairer
from .tape import Tape

MODPROBE_WITHIN_S = 20.0


class ActionExecutor:
    """Executes the actions of one agent."""

    def __init__(
        self,
        host: Host,
        probes: Probes,
        repairer: PluginRepairer,
        launcher: Launcher,
        checks: DeviceAccess,
        allow: DeviceAllowUpdater,
        diagnostics: RepairDiagnostics,
    ) -> None:
        self._host = host
        self._repairer = repairer
        self._launcher = launcher
        self._checks = checks
        self._allow = allow
        self._probes = probes
        self._diagnostics = diagnostics

    async def act(self, action: Action, tape: Tape | None = None, socket: str = "") -> None:
        """Do it, or begin it. `tape` and `socket`: the recorded snapshot behind a repair, and the
        CRI endpoint that it asked. Raises ActionFailed if nothing was done."""
        match action:
            case StartProbe() | DropProbe() | CheckAccess() | GrantDevices():
                self._begin(action)
            case Release():
                _release(action)
            case LinkDevChar():
                _link_dev_char(action)
            case MakeNodes():
                await _make_nodes(action)
            case LoadModule():
                await _run(["modprobe", "-b", "nvidia"])
            case Learn():
                await self._learn(action)
            case NoteOutcome() | NoteNvmlFailed():
                await self._repairer.note(action)
            case RefreshCdi() | LaunchUnit() | PlaceManifest():
                self._launcher.begin(action)
            case RestartUnit() | SendHup() | Rebuild():
                if tape is not None:
                    await self._diagnostics.add_to(tape)
                await self._repairer.begin(action, tape, socket)
            case _:
                unreachable(action)

    def prepare_repair(self, settings: Settings, snapshot: Snapshot) -> None:
        """Begin to ask the doctor's questions, so that a repair need not wait for them."""
        self._diagnostics.begin(settings, snapshot)

    def _begin(self, action: StartProbe | DropProbe | CheckAccess | GrantDevices) -> None:
        """Programs that run beside the cycle."""
        if isinstance(action, StartProbe):
            self._probes.start(action.overlap)
        elif isinstance(action, CheckAccess):
            self._checks.start(action)
        elif isinstance(action, GrantDevices):
            self._allow.begin(action)
        else:
            self._probes.drop()
            if action.forget:
                self._probes.forget()

    async def _learn(self, action: Learn) -> None:
        """Store the GPUs of this machine, which only a warning depends on: with a full or read-only
        disk, nothing else fails."""
        stored = {"machine": await self._host.machine(), "bus_ids": list(action.bus_ids)}
        path = f"{STATE}/learned.json"
        try:
            write_whole(path, json.dumps(stored).encode())
        except OSError as exc:
            raise ActionFailed(f"could not write {path} ({exc.strerror}): df {STATE}") from exc


def _release(action: Release) -> None:
    if not os.path.exists(f"{RUN}/released"):  # the first reason stays
        write_released(action.reason, action.kind.value)


def _link_dev_char(action: LinkDevChar) -> None:
    for name, target in action.links:
        path = f"/dev/char/{name}"
        try:
            os.makedirs("/dev/char", mode=0o755, exist_ok=True)
            os.symlink(target, path)
        except FileExistsError:  # nvidia-modprobe or a person made it meanwhile: keep theirs
            continue
        except OSError as exc:
            raise ActionFailed(
                f"could not create {path} ({exc.strerror}): ln -s {target} {path}"
            ) from exc


async def _make_nodes(action: MakeNodes) -> None:
    """nvidia-modprobe creates device nodes with the driver's own modes (ModifyDeviceFiles in
    /proc/driver/nvidia/params)."""
    if action.minors:
        await _run(["nvidia-modprobe", *(part for m in action.minors for part in ("-c", str(m)))])
    if action.uvm:
        await _run(["nvidia-modprobe", "-u", "-c", "0"])


async def _run(argv: list[str]) -> None:
    done = await run_once(argv, MODPROBE_WITHIN_S)
    if done.kind is not None or done.code != 0:
        raise ActionFailed(
            f"{' '.join(argv)}: {done.sentence or f'exit status {done.code}'} {done.err}".rstrip()
        )
