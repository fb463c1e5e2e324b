"""Folders by inotify, uevents by netlink: the real kernel is the peer."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from agent.transport import kernel
from agent.transport.kernel import Inotify, Uevents

from .conftest import until

UEVENT = next(
    iter(sorted(Path("/sys/bus/pci/drivers").glob("*/uevent"))), Path("/sys/module/kernel/uevent")
)


class Heard:
    """An Inotify, and what it said."""

    def __init__(self) -> None:
        self.changed: list[str] = []
        self.overflows = 0
        self.inotify = Inotify(self.changed.append, self._overflow)

    def _overflow(self) -> None:
        self.overflows += 1

    async def told_of(self, folder: Path) -> None:
        await until(lambda: str(folder) in self.changed)
        self.changed.clear()


def test_a_file_that_comes_and_goes_is_a_change(run, tmp_path):
    async def main():
        heard = Heard()
        heard.inotify.watch([str(tmp_path)])
        (tmp_path / "nvidia0").touch()
        await heard.told_of(tmp_path)
        (tmp_path / "nvidia0").unlink()
        await heard.told_of(tmp_path)
        assert heard.inotify.problem is None
        heard.inotify.close()

    run(main())


def test_many_changes_are_told_once(run, tmp_path):
    async def main():
        heard = Heard()
        heard.inotify.watch([str(tmp_path)])
        for number in range(500):
            (tmp_path / f"nvidia{number}").touch()
        await until(lambda: heard.changed)
        assert heard.changed == [str(tmp_path)]
        heard.inotify.close()

    run(main())


def test_names_that_do_not_count_are_not_told(run, tmp_path):
    async def main():
        heard = Heard()
        heard.inotify.watch({str(tmp_path): ("nvidia", "char")})
        for name in ("loop1", "pts", "tty9"):
            (tmp_path / name).touch()
        (tmp_path / "char").mkdir()
        await until(lambda: heard.changed)
        assert heard.changed == [str(tmp_path)]
        heard.inotify.close()

        (tmp_path / "more").touch()
        heard.inotify.watch({str(tmp_path): ("nvidia",)})
        (tmp_path / "loop2").touch()
        quiet = tmp_path / "sub"
        quiet.mkdir()
        heard.inotify.watch({str(tmp_path): ("nvidia",), str(quiet): ()})
        (quiet / "end").touch()
        await until(lambda: str(quiet) in heard.changed)
        assert str(tmp_path) not in heard.changed[1:]
        heard.inotify.close()

    run(main())


def test_a_missing_folder_is_picked_up_when_it_appears_level_by_level(run, tmp_path):
    async def main():
        heard = Heard()
        folder = tmp_path / "a" / "b" / "c"
        heard.inotify.watch([str(folder)])
        (tmp_path / "other").mkdir()
        (tmp_path / "a").mkdir()
        await until(lambda: heard.changed)
        heard.changed.clear()
        folder.mkdir(parents=True)
        await until(lambda: heard.inotify._seats[str(folder)][1] == str(folder))
        heard.changed.clear()
        (folder / "kubelet.sock").touch()
        await heard.told_of(folder)
        heard.inotify.close()

    run(main())


@pytest.mark.parametrize("how", ["deleted", "moved away", "parent moved away"])
def test_a_folder_made_anew_is_watched_anew(run, tmp_path, how):
    async def main():
        heard = Heard()
        folder = tmp_path / "parent" / "folder"
        folder.mkdir(parents=True)
        heard.inotify.watch([str(folder)])
        if how == "deleted":
            shutil.rmtree(folder)
        elif how == "moved away":
            folder.rename(tmp_path / "old")
        else:
            folder.parent.rename(tmp_path / "old")
        await heard.told_of(folder)
        folder.mkdir(parents=True)
        await until(lambda: heard.inotify._seats[str(folder)][1] == str(folder))
        heard.changed.clear()
        (folder / "new").touch()
        await heard.told_of(folder)
        heard.inotify.close()

    run(main())


def test_a_folder_that_is_mounted_over_is_watched_anew(run, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting needs root")

    async def main():
        heard = Heard()
        subprocess.run(["umount", str(folder)], check=True)
        heard.inotify.watch([str(folder)])
        subprocess.run(mount, check=True)
        await heard.told_of(folder)
        (folder / "above").touch()
        await heard.told_of(folder)
        subprocess.run(["umount", str(folder)], check=True)
        await heard.told_of(folder)
        (folder / "below").touch()
        await heard.told_of(folder)
        heard.inotify.close()

    try:
        run(main())
    finally:
        subprocess.run(["umount", str(folder)], capture_output=True)


def test_a_full_queue_is_told_and_nothing_is_lost(run, tmp_path):
    most = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())

    async def main():
        heard = Heard()
        heard.inotify.watch([str(tmp_path)])
        missed = tmp_path / "made while the queue was full"
        heard.inotify.watch([str(tmp_path), str(missed)])
        for number in range(most // 2 + 50):  # two events each, none read meanwhile
            os.close(os.open(tmp_path / "x", os.O_CREAT))
            os.unlink(tmp_path / "x")
            if number == most // 2 + 20:
                missed.mkdir()
        await until(lambda: heard.overflows)
        assert heard.overflows == 1
        assert heard.inotify._seats[str(missed)][1] == str(missed)
        heard.inotify.close()

    run(main())


def test_watching_fewer_folders_leaves_no_watch_behind(run, tmp_path):
    async def main():
        heard = Heard()
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
        heard.inotify.watch([str(tmp_path / "one"), str(tmp_path / "two")])
        both = len(heard.inotify._masks)
        heard.inotify.watch([str(tmp_path / "two")])
        assert len(heard.inotify._masks) == both - 1
        (tmp_path / "one" / "x").touch()
        (tmp_path / "two" / "x").touch()
        await heard.told_of(tmp_path / "two")
        heard.inotify.close()

    run(main())


def test_without_watches_left_it_says_so_and_recovers(run, tmp_path, monkeypatch):
    class Exhausted:
        def __getattr__(self, name):
            return getattr(real, name)

        def inotify_add_watch(self, fd, path, mask):
            ctypes.set_errno(errno.ENOSPC)
            return -1

    real = kernel._libc

    async def main():
        heard = Heard()
        monkeypatch.setattr(kernel, "_libc", Exhausted())
        heard.inotify.watch([str(tmp_path)])
        assert "max_user_watches" in heard.inotify.problem
        monkeypatch.setattr(kernel, "_libc", real)
        heard.inotify.refresh()
        assert heard.inotify.problem is None
        assert heard.changed == [str(tmp_path)]
        heard.inotify.close()

    run(main())


def _uevents(heard: list[dict[str, str]], overflows: list[bool]) -> Uevents:
    uevents = Uevents(heard.append, lambda: overflows.append(True))
    uevents.start()
    if uevents.problem:
        pytest.skip(f"no uevents here: {uevents.problem}")
    if not os.access(UEVENT, os.W_OK):
        pytest.skip(f"{UEVENT} cannot be written")
    return uevents


def test_a_uevent_of_a_driver_is_heard_and_others_are_not(run):
    async def main():
        heard: list[dict[str, str]] = []
        uevents = _uevents(heard, [])
        for other in list(Path("/sys/class/mem").glob("null/uevent")):
            other.write_text("change")
        UEVENT.write_text("change")
        # A node that boots beside us has the kernel say "add" of everything.
        event = await until(lambda: next((e for e in heard if e["ACTION"] == "change"), None))
        assert event["SUBSYSTEM"] in ("drivers", "module")
        assert {e["SUBSYSTEM"] for e in heard} <= {"module", "drivers", "pci"}
        uevents.close()
        assert uevents.problem

    run(main())


def test_an_overrun_is_told_and_heard_beyond_without_a_busy_loop(run):
    async def main():
        heard: list[dict[str, str]] = []
        overflows: list[bool] = []
        uevents = _uevents(heard, overflows)
        with socket.socket(fileno=os.dup(uevents._monitor.fileno())) as twin:
            twin.setsockopt(socket.SOL_SOCKET, 33, 2048)  # SO_RCVBUFFORCE: room for one or two
            for _ in range(200):
                UEVENT.write_text("change")
            await until(lambda: overflows)
            twin.setsockopt(
                socket.SOL_SOCKET, 33, 1 << 20
            )  # and for whatever a node that boots beside us makes
        told = len(overflows)
        for _ in range(20):  # a busy loop would tell of it each time round
            await asyncio.sleep(0)
        heard.clear()
        UEVENT.write_text("change")
        await until(lambda: heard)
        assert len(overflows) <= told + 1
        assert uevents.problem is None
        uevents.close()

    run(main())


def test_without_netlink_it_says_so(run, monkeypatch):
    def refuse(*_args, **_kwargs):
        raise OSError("Could not create udev monitor")

    async def main():
        monkeypatch.setattr(kernel.pyudev.Monitor, "from_netlink", refuse)
        uevents = Uevents(lambda _: None, lambda: None)
        uevents.start()
        assert "Could not create udev monitor" in uevents.problem
        uevents.close()

    run(main())
