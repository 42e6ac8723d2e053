"""Writing files so that nobody ever sees half of one, and nowhere but where the user said."""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path, PurePosixPath, PureWindowsPath

from repairability.errors import InputError, PlaceError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_PART = ".part"
_LONGEST = 200
"""Bytes of a name: systems take 255, and a suffix of ours must fit."""


def write_atomically(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Write beside `path`, sync, rename. On any failure (full disk, Ctrl-C) `path` is as it was before; what a killed
    writer left beside it goes with the next one.

    A link is followed, a file that is replaced keeps its mode; devices, pipes and folders are no files to replace.
    """
    data = content.encode("utf-8") if isinstance(content, str) else content
    target, mode = _writable(path)
    prefix = f".{target.name[:40]}."
    _remove_remains(target.parent, prefix)
    temporary = target.parent / f"{prefix}{secrets.token_hex(8)}{_PART}"
    lock: int | None = None
    try:
        with open(temporary, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            lock = _lock(file.fileno())
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            gone = not os.fstat(file.fileno()).st_nlink  # between its making and its lock it was taken for remains
        if gone:
            return write_atomically(path, content)
        os.chmod(temporary, mode)
        os.replace(temporary, target)
    except BaseException as error:  # also where an interrupt strikes just when the file is there
        with suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError):
            raise _unwritable(path, error) from error
        raise
    finally:
        if lock is not None:
            os.close(lock)


def _lock(handle: int) -> int | None:
    """The kernel's lock of a file, held by another handle until that is closed, or the process is gone."""
    if fcntl is None:
        return None
    with suppress(OSError):  # a file system without locks
        fcntl.flock(handle, fcntl.LOCK_EX)
    return os.dup(handle)


def _remove_remains(folder: Path, prefix: str) -> None:
    """The parts whose writer is gone, as nobody holds their lock."""
    with suppress(OSError):  # a folder that may not be listed
        parts = [name for name in os.listdir(folder) if name.startswith(prefix) and name.endswith(_PART)]
        for name in parts if fcntl is not None else ():
            with suppress(OSError):  # it is being written, or somebody else's
                handle = os.open(folder / name, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.unlink(folder / name)
                finally:
                    os.close(handle)


def check_file(path: str | os.PathLike[str] | None, size: int = 0) -> None:
    """Refuse, before the work whose result it shall hold, a file that could not be written then: what is there is no
    file, there is no folder for it, nothing can be made there, or less room than `size` bytes. None is nothing to do.
    """
    if path is None:
        return
    target, _ = _writable(path)
    if not target.parent.is_dir():
        raise InputError(f"cannot write {path}: there is no folder {Path(path).parent}")
    _try_out(path, target.parent, size)


def check_folder(path: str | os.PathLike[str], *files: str) -> None:
    """As `check_file`, for files of these names in a folder, which may be yet to be made with those above it."""
    try:
        folder = Path(path).resolve()
        while not folder.exists():
            folder = folder.parent
        if not folder.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    except (OSError, ValueError, RuntimeError) as error:
        raise InputError(f"cannot make the folder {path}: {getattr(error, 'strerror', None) or error}") from error
    _try_out(path, folder, 0)
    for file in files:
        _writable(Path(path) / file)


def _try_out(path: str | os.PathLike[str], folder: Path, size: int) -> None:
    """Make a file without a name, which says more than permissions do: of root, of what is mounted read-only."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            free = shutil.disk_usage(folder).free
    except OSError as error:
        raise _unwritable(path, error) from error
    if free < size:
        raise PlaceError(f"cannot write {path}: it takes {size:,} bytes, and {free:,} are free there")


def _unwritable(path: str | os.PathLike[str], error: OSError) -> PlaceError:
    return PlaceError(f"cannot write {path}: {error.strerror}")


def _writable(path: str | os.PathLike[str]) -> tuple[Path, int]:
    """The file behind links, and the mode it has; one that is yet to be gets that of ordinary files."""
    try:
        target = Path(path).resolve()
        mode = target.stat().st_mode
    except FileNotFoundError:
        return target, 0o666 & ~_umask()
    except (OSError, ValueError, RuntimeError) as error:  # no permission; a NUL in the name; links in a circle
        raise InputError(f"cannot write {path}: {getattr(error, 'strerror', None) or error}") from error
    if not stat.S_ISREG(mode):
        raise InputError(f"cannot write {path}: it is {_KINDS.get(stat.S_IFMT(mode), 'no file')}, not a file")
    return target, stat.S_IMODE(mode)


_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def check_name(name: str) -> str:
    """A name from a file of somebody's, which may become one part of a path and never leads elsewhere."""
    bare = PurePosixPath(name).name == PureWindowsPath(name).name == name
    if not bare or name in ("", ".", "..") or not name.isprintable() or len(name.encode()) > _LONGEST:
        raise InputError(f"{name[:_LONGEST]!r} is no name: it would be part of a path")
    return name


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, or an error that names it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PlaceError(f"cannot make the folder {folder}: {error.strerror}") from error


def write_sealed(path: str | os.PathLike[str], content: bytes) -> None:
    """Write bytes behind their own hash, so that `read_sealed` notices damage."""
    write_atomically(path, hashlib.sha256(content).digest() + content)


def read_sealed(path: str | os.PathLike[str]) -> bytes:
    data = Path(path).read_bytes()
    content = data[32:]
    if hashlib.sha256(content).digest() != data[:32]:
        raise InputError(f"{path} is damaged: its hash does not fit its content")
    return content


def read_text(path: str | os.PathLike[str]) -> str:
    """The text of a file, its line ends as they are, or an error that names it."""
    try:
        return Path(path).read_bytes().decode("utf-8")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"cannot read {path}: it is not a text file") from error
