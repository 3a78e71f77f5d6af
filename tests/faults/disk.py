"""A disk that fails, for one process: it counts what the process writes in its folder, and does harm at one of these events.

An event is the opening of a file for writing, a write by safetensors, an fsync, or a rename. `lost` is what a power cut does:
content that was not synced is gone, and so are names of files in folders that were not synced.
"""

import errno
import io
import os
import signal
from collections.abc import Callable
from pathlib import Path

from esscher.core import storage

HARMS = ("kill", "full", "error", "lost content", "lost names", "SIGTERM", "SIGINT", "SIGUSR1")


class FailingDisk:
    """Does harm number `at`; counts the events from 1."""

    def __init__(self, folder: Path, at: int, harm: str):
        self.folder, self.at, self.harm, self.events = folder.resolve(), at, harm, 0
        self.durable: dict[Path, int] = {}  # size of files that are not synced, as it was before
        self.pending: list[
            tuple[Path, Callable[[], None]]
        ] = []  # changes of names that are not synced: the folder, how to undo
        self.ends = False

    def install(self) -> None:
        opened, save, replace, fsync = io.open, storage.save_file, os.replace, os.fsync

        def open_(file, mode="r", *rest, **named):
            if isinstance(file, int) or not set(mode) & set("wax+"):
                return opened(file, mode, *rest, **named)
            return self.written(file, lambda: opened(file, mode, *rest, **named), fresh="w" in mode)

        def save_file(tensors, file, *rest, **named):
            return self.written(file, lambda: save(tensors, file, *rest, **named), fresh=True)

        def replace_(source, target):
            self.event(target)
            source, target = Path(source).resolve(), Path(target).resolve()
            before = target.read_bytes() if target.is_file() else None

            def undo() -> None:
                os.rename(target, source)
                if before is not None:
                    target.write_bytes(before)

            replace(source, target)
            if self.is_mine(target):
                self.pending.append((target.parent, undo))
                self.durable = {
                    target / p.relative_to(source) if p.is_relative_to(source) else p: n for p, n in self.durable.items()
                }

        def fsync_(handle):
            path = Path(os.readlink(f"/proc/self/fd/{handle}"))
            self.event(path)
            fsync(handle)
            self.durable.pop(path, None)
            if path.is_dir():
                self.pending = [(folder, undo) for folder, undo in self.pending if folder != path]

        io.open = open_
        __builtins__["open"] = open_
        storage.save_file, os.replace, os.fsync = save_file, replace_, fsync_

    def is_mine(self, path: Path) -> bool:
        return path.is_relative_to(self.folder)

    def written(self, file, write, *, fresh: bool):
        path = Path(file).resolve()
        if not self.is_mine(path):
            return write()
        self.event(path)
        new = not path.exists()
        self.durable.setdefault(path, 0 if fresh or new else path.stat().st_size)
        if new:
            self.pending.append((path.parent, lambda: path.unlink(missing_ok=True)))
        return write()

    def event(self, path) -> None:
        """Count, and do the harm if it is its turn."""
        if not self.is_mine(Path(path).resolve()):
            return
        self.events += 1
        if self.harm == "full" and self.at <= self.events:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        if self.events != self.at:
            return
        if self.harm == "error":
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        if self.harm.startswith("SIG"):
            os.kill(os.getpid(), signal.Signals[self.harm])
            return
        if self.harm.startswith("lost"):
            self.cut_power()
        os.kill(os.getpid(), signal.SIGKILL)

    def cut_power(self) -> None:
        """What was not synced is lost."""
        for path, size in self.durable.items():
            if path.is_file():
                os.truncate(path, min(size, path.stat().st_size))
        if self.harm == "lost names":
            self.is_mine = lambda path: False  # type: ignore[method-assign]
            for _, undo in reversed(self.pending):
                undo()
