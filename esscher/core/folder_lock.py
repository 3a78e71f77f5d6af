"""One process at a time in an output folder, and no remains of a write that was killed.

The holder has a `flock` on `.esscher.lock`, which the system drops when the process dies, and its name in the file: process,
host, start. A lock whose process is gone is taken over. A lock of another host is respected, because some network file systems
keep a `flock` to one host; its message says how to clear it. Of the processes of `torchrun` the main one holds the lock.
"""

import contextlib
import errno
import fcntl
import json
import os
import re
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from esscher.core.distributed import is_main_process
from esscher.core.reading import parse_json

LOCK = ".esscher.lock"
UNFINISHED = re.compile(r"\..+\.\d+-\d+\.tmp|\.writing-.+")  # names that `esscher.core.storage` and checkpoints write under

_HELD: dict[tuple[int, Path], int] = {}  # thread and folder: handle of the lock


@contextmanager
def locked_folder(folder: Path | None) -> Iterator[None]:
    """Hold a folder, created if it is not there, within the block; first remove files that a killed write left in it.

    Nothing happens for None, and in a folder inside one that this thread holds. A folder that another process holds is an
    error.
    """
    place = None if folder is None else Path(os.path.abspath(folder))
    if (
        place is None
        or not is_main_process()
        or any((threading.get_ident(), above) in _HELD for above in (place, *place.parents))
    ):
        yield
        return
    created = _make_folders(place)
    key, handle = (threading.get_ident(), place), _acquire(place)
    _HELD[key] = handle
    try:
        remove_unfinished_writes(place)
        yield
    finally:
        if _HELD.pop(key, None) is not None:  # not in a process that was forked inside the block
            with contextlib.suppress(FileNotFoundError):
                (place / LOCK).unlink()
            os.close(handle)
            with contextlib.suppress(OSError):  # something is in it
                for new in created:
                    new.rmdir()


def _make_folders(folder: Path) -> list[Path]:
    """Create a folder and those above it; return those that are new, the innermost first."""
    new = [place for place in (folder, *folder.parents) if not place.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    return new


def remove_unfinished_writes(folder: Path) -> None:
    """Remove temporary files of killed writes from a folder and those inside, except where another run has its lock."""
    for where, folders, files in os.walk(folder):
        here = Path(where)
        if here != folder and LOCK in files:
            folders.clear()
            continue
        for name in filter(UNFINISHED.fullmatch, [*files, *folders]):
            shutil.rmtree(here / name) if name in folders else (here / name).unlink()
        folders[:] = [name for name in folders if not UNFINISHED.fullmatch(name)]


def _acquire(folder: Path) -> int:
    """The handle of the lock file, locked, with this process in it."""
    file = folder / LOCK
    while True:
        handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            works = _flock(handle, folder, file)
            if not _is_file_of(handle, file):  # its holder ended and removed it meanwhile
                os.close(handle)
                continue
            holder = _read(handle)
            if holder and (holder["host"] != socket.gethostname() or (not works and _is_running(holder))):
                raise _in_use(folder, holder)
            me = {"pid": os.getpid(), "host": socket.gethostname(), "since": _now(), "started": _start_of(os.getpid())}
            os.ftruncate(handle, 0)
            os.pwrite(handle, json.dumps(me).encode(), 0)
            return handle
        except BaseException:
            with contextlib.suppress(OSError):
                os.close(handle)
            raise


def _flock(handle: int, folder: Path, file: Path) -> bool:
    """Lock the file; an error if another process has it, False if the file system has no locks."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise _in_use(folder, _read(handle)) from error
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        return False
    return True


def _in_use(folder: Path, holder: dict[str, Any]) -> BlockingIOError:
    name = f"process {holder['pid']} on {holder['host']}, since {holder['since']}" if holder else "another process"
    elsewhere = holder and holder["host"] != socket.gethostname()
    clear = f" If that process is gone, which cannot be seen from {socket.gethostname()}, delete {folder / LOCK}."
    return BlockingIOError(
        f"{folder} is in use by {name}. Nothing was changed; wait until it ends, or choose another folder."
        f"{clear if elsewhere else ''}"
    )


def _read(handle: int) -> dict[str, Any]:
    """The holder that a lock file names; nothing if it was killed before it wrote that."""
    try:
        holder = parse_json(os.pread(handle, 4096, 0), LOCK)
        return {name: holder[name] for name in ("pid", "host", "since", "started")}
    except (ValueError, KeyError, TypeError):
        return {}


def _is_file_of(handle: int, file: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), file.stat())
    except FileNotFoundError:
        return False


def _is_running(holder: dict[str, Any]) -> bool:
    """Whether a process of this host lives, and is not a later one with the same number."""
    try:
        os.kill(holder["pid"], 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # it is somebody else's
    return bool(_start_of(holder["pid"]) == holder["started"])


def _start_of(pid: int) -> str | None:
    """When a process started, in ticks since the machine did; None where the system does not tell."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None


def _now() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())


def _forget() -> None:
    """A forked process does not hold the folders of its parent, nor keep them locked when that dies."""
    for handle in _HELD.values():
        with contextlib.suppress(OSError):
            os.close(handle)
    _HELD.clear()


os.register_at_fork(after_in_child=_forget)
