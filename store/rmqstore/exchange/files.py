"""The formats of files, and files that appear only when they are complete."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rmqstore.errors import OptionError

FORMATS: Final = ("parquet", "jsonl")
_SUFFIXES: Final = {".parquet": "parquet", ".jsonl": "jsonl", ".ndjson": "jsonl"}


def format_of(path: Path) -> str:
    """Return the format of a file by its suffix; a folder holds Parquet files.

    Raises:
        OptionError: the suffix is unknown.
    """
    format_name = "parquet" if path.is_dir() else _SUFFIXES.get(path.suffix)
    if format_name is None:
        known = ", ".join(_SUFFIXES)
        raise OptionError(
            f"{path}: the name does not tell the format; it must end with one of {known}"
        )
    return format_name


@contextmanager
def in_place(target: Path) -> Iterator[Path]:
    """Yield a temporary path for a file that gets its name when it is complete.

    The file is removed after an error.
    """
    path = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        yield path
        path.replace(target)
    finally:
        path.unlink(missing_ok=True)
