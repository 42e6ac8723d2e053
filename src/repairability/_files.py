"""Writing files so that nobody ever sees half of one."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

from repairability.errors import InputError


def write_atomically(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Write beside `path`, sync, rename. On any failure (full disk, Ctrl-C) `path` is as it was before."""
    target = Path(path)
    data = content.encode("utf-8") if isinstance(content, str) else content
    try:
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
    except OSError as error:
        raise InputError(f"cannot write {target}: {error.strerror}") from error
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())  # mkstemp makes private files; ours are ordinary ones
        os.replace(temporary, target)
    except BaseException as error:
        Path(temporary).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise InputError(f"cannot write {target}: {error.strerror}") from error
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, or an error that names it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {folder}: {error.strerror}") from error


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
    """The text of a file, or an error that names it."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"cannot read {path}: it is not a text file") from error
