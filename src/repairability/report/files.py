"""Where the files of a report go."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from repairability._files import write_atomically
from repairability.errors import InputError

Files = Mapping[str, str | bytes]
"""File names and their whole content."""


def write_files(made: Mapping[str, Files], out: str | Path) -> list[Path]:
    """Write each format's files and return their paths.

    `out` is a folder, or the page itself if it ends in .html; then the other formats go into a folder of the same stem
    beside it. Each file appears whole or not at all.
    """
    out = Path(out)
    is_page = out.suffix.lower() == ".html"
    folder = out.with_suffix("") if is_page else out
    files = {
        out if is_page and name == "html" else folder / file: content
        for name, contents in made.items()
        for file, content in contents.items()
    }
    for path, content in files.items():
        write_file(path, content)
    return list(files)


def write_file(path: Path, content: str | bytes) -> None:
    """Whole or not at all, in a folder that is made if absent."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {path.parent}: {error.strerror}") from error
    write_atomically(path, content)
