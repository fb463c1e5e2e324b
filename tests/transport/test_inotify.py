"""Folders by inotify: the real kernel is the peer."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from agent.transport import inotify
from agent.transport.inotify import Inotify

from .conftest import until


class Heard:
    """An Inotify, and its reports."""

    def __init__(self) -> None:
        self.changed: list[str] = []
        self.overflows = 0
        self.inotify = Inotify(self.changed.append, self._overflow)

    def _overflow(self) -> None:
        self.overflows += 1

    async def told_of(self, folder: Path) -> None:
        await until(lambda: str(folder) in self.changed)
        self.changed.clear()


def test_a_file_created_and_removed_is_a_change(run, tmp_path):
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


def test_many_changes_are_reported_once(run, tmp_path):
    async def main():
        heard = Heard()
        heard.inotify.watch([str(tmp_path)])
        for number in range(500):
            (tmp_path / f"nvidia{number}").touch()
        await until(lambda: heard.changed)
        assert heard.changed == [str(tmp_path)]
        heard.inotify.close()

    run(main())


def test_irrelevant_names_are_not_reported(run, tmp_path):
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
def test_a_recreated_folder_is_watched_again(run, tmp_path, how):
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


def test_a_folder_that_is_mounted_over_is_watched_again(run, tmp_path):
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


def test_a_full_queue_is_reported_and_nothing_is_lost(run, tmp_path):
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


def test_a_lack_of_watches_is_reported_and_recovers(run, tmp_path, monkeypatch):
    class Exhausted:
        def __getattr__(self, name):
            return getattr(real, name)

        def inotify_add_watch(self, fd, path, mask):
            ctypes.set_errno(errno.ENOSPC)
            return -1

    real = inotify._libc

    async def main():
        heard = Heard()
        monkeypatch.setattr(inotify, "_libc", Exhausted())
        heard.inotify.watch([str(tmp_path)])
        assert "max_user_watches" in heard.inotify.problem
        monkeypatch.setattr(inotify, "_libc", real)
        heard.inotify.refresh()
        assert heard.inotify.problem is None
        assert heard.changed == [str(tmp_path)]
        heard.inotify.close()

    run(main())
