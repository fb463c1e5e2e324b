"""A private dbus-daemon, and a small systemd on it that records its calls."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from agent.transport import dbus
from agent.transport.systemd import MANAGER, MANAGER_PATH, PROPERTIES, SYSTEMD, UNIT, unit_path

from .conftest import until

_lib = importlib.import_module(dbus.LIBRARY)
_aio = importlib.import_module(f"{dbus.LIBRARY}.aio")
Message, Variant = _lib.Message, _lib.Variant

_CONFIG = """<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <listen>unix:path={socket}</listen>
  <policy context="default">
    <allow send_destination="*"/><allow receive_sender="*"/><allow own="*"/><allow user="*"/>
  </policy>
</busconfig>
"""


class Daemon:
    """A message bus of our own, to be killed and started again at the same address."""

    def __init__(self, folder: Path) -> None:
        program = shutil.which("dbus-daemon")
        if program is None:
            pytest.skip("DBUS-DAEMON IS NOT INSTALLED: nothing of the bus is tested (package dbus)")
        self._socket = folder / "bus"
        config = folder / "bus.conf"
        config.write_text(_CONFIG.format(socket=self._socket))
        self._argv = [program, f"--config-file={config}", "--nofork", "--nopidfile"]
        self._process: subprocess.Popen[bytes] | None = None
        self.address = f"unix:path={self._socket}"

    async def start(self) -> None:
        self._process = subprocess.Popen(self._argv)
        await until(self._is_listening)

    def _is_listening(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(str(self._socket)) == 0

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
            self._socket.unlink(missing_ok=True)


class Systemd:
    """Answers as org.freedesktop.systemd1 does, from a table of units."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        """Members, in order."""
        self.manager = {"Version": ("s", "252.1"), "UnitsLoadTimestampMonotonic": ("t", 42)}
        self.units = {"kubelet.service": "0f" * 16, "containerd.service": "1e" * 16}
        """InvocationIDs of the units there are."""
        self.devices: dict[str, tuple[str, dict[str, str]]] = {}
        """Policy and list of the scopes there are."""
        self.subscribed = False
        self.job_first = False
        """JobRemoved before the answer to StartUnit, as with a job that has nothing to do."""
        self.job_result = "done"
        self.deaf_to: set[str] = set()
        """Members that are never answered."""

    async def start(self, address: str) -> Systemd:
        bus = _aio.MessageBus(bus_address=address)
        self._end = asyncio.ensure_future(bus.wait_for_disconnect())
        self._bus = await bus.connect()
        self._bus.add_message_handler(self._answer)
        await self._bus.request_name(SYSTEMD)
        return self

    async def close(self) -> None:
        with contextlib.suppress(Exception):
            if not self._end.done():
                self._bus.disconnect()
            await self._end
        dbus._close_socket(self._bus)

    def emit(
        self, member: str, signature: str, body: list[Any], path: str = MANAGER_PATH, to: str = ""
    ) -> None:
        interface = PROPERTIES if member == "PropertiesChanged" else MANAGER
        what = {
            "path": path,
            "interface": interface,
            "member": member,
            "signature": signature,
            "body": body,
        }
        self._bus.send(
            Message(message_type=_lib.MessageType.SIGNAL, destination=to or None, **what)
        )

    def change(self, unit: str) -> None:
        self.emit("PropertiesChanged", "sa{sv}as", [UNIT, {}, []], unit_path(unit))

    def _answer(self, message: Any) -> Any:
        if message.message_type is not _lib.MessageType.METHOD_CALL or message.interface not in (
            MANAGER,
            PROPERTIES,
        ):
            return None
        self.asked.append(message.member)
        if message.member in self.deaf_to:
            return True
        return getattr(self, f"_on_{message.member}")(message, *message.body)

    def _on_Subscribe(self, call: Any) -> Any:
        if self.subscribed:
            return Message.new_error(
                call, f"{SYSTEMD}.AlreadySubscribed", "Client is already subscribed."
            )
        self.subscribed = True
        return Message.new_method_return(call)

    def _on_ListUnitsByNames(self, call: Any, names: list[str]) -> Any:
        rows = []
        for name in names:
            state = (
                ["loaded", "active", "running"]
                if name in self.units
                else ["not-found", "inactive", "dead"]
            )
            rows.append((name, "", *state, "", unit_path(name), 0, "", "/"))
        rows = [dbus.STRUCT(row) for row in rows]
        return Message.new_method_return(call, "a(ssssssouso)", [rows])

    def _on_Get(self, call: Any, interface: str, name: str) -> Any:
        by_path = {
            unit_path(unit): bytes.fromhex(invocation) for unit, invocation in self.units.items()
        }
        found = dict(self.manager) if interface == MANAGER else {}
        if call.path in by_path:
            found = {"InvocationID": ("ay", by_path[call.path]), "UnitFileState": ("s", "enabled")}
            found["ActiveEnterTimestampMonotonic"] = ("t", 7)
        scopes = {unit_path(scope): devices for scope, devices in self.devices.items()}
        if interface == f"{SYSTEMD}.Scope":
            policy, allow = scopes.get(call.path, ("auto", {}))
            found = {
                "DevicePolicy": ("s", policy),
                "ControlGroup": ("s", "/x" if call.path in scopes else ""),
            }
            found["DeviceAllow"] = ("a(ss)", [dbus.STRUCT(row) for row in allow.items()])
        if name not in found:
            return Message.new_error(
                call, "org.freedesktop.DBus.Error.UnknownProperty", f"Unknown property {name}."
            )
        return Message.new_method_return(call, "v", [Variant(*found[name])])

    def _on_SetUnitProperties(
        self, call: Any, unit: str, runtime: bool, properties: list[Any]
    ) -> Any:
        if unit not in self.devices:
            return Message.new_error(call, f"{SYSTEMD}.NoSuchUnit", f"Unit {unit} not found.")
        assert runtime
        ((name, value),) = properties
        assert (name, value.signature) == ("DeviceAllow", "a(ss)")
        self.devices[unit][1].update(dict(value.value))
        return Message.new_method_return(call)

    def _on_StartUnit(self, call: Any, unit: str, mode: str) -> Any:
        if unit not in self.units:
            return Message.new_error(call, f"{SYSTEMD}.NoSuchUnit", f"Unit {unit} not found.")
        removed = ["uoss", [5, "/org/freedesktop/systemd1/job/5", unit, self.job_result]]
        if self.job_first:
            self.emit("JobRemoved", *removed)
        elif self.job_result:
            asyncio.get_running_loop().call_soon(self.emit, "JobRemoved", *removed)
        return Message.new_method_return(call, "o", ["/org/freedesktop/systemd1/job/5"])
