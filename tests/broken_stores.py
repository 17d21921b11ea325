"""Golden stores with one broken file: which file, what befell it, and whether the store was closed.

What the real RocketMQ 5.3.3 does with each lies in ``golden/broken.json.xz``; see
``interop/test_broken_stores.py``.
"""

from __future__ import annotations

import json
import lzma
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import goldens

Row = dict[str, Any]

STATES = ("closed", "crashed")
PARTS = ("commitlog", "consumequeue", "index")
PLACES = ("first", "middle", "newest")
DAMAGES = (
    "missing", "cut", "empty", "page", "tail", "long", "renamed", "suffixed", "twin", "stale-twin",
)  # fmt: skip
SECOND_LOG = "commitlog-2"  # the folder of a second disk
_QUEUES = {"live": "LivePlain/1", "basic": "TopicA/2", "crash": "CrashB/0"}
_PAGE = 4096


class Case(NamedTuple):
    """A broken store."""

    store: str  # the golden one
    state: str
    part: str
    place: str
    damage: str

    def __str__(self) -> str:
        return "/".join(self)


def cases(store: str) -> list[Case]:
    """Return the whole table of a store."""
    return [
        Case(store, state, part, place, damage)
        for state in STATES
        for part in PARTS
        for place in PLACES
        for damage in DAMAGES
        if part == "commitlog" or not damage.endswith("twin")
    ]


def truth() -> dict[Case, Row]:
    """Return what the real store did with each case; see ``interop/test_broken_stores.py``."""
    with lzma.open(goldens.FOLDER / "broken.json.xz", "rt", encoding="utf-8") as file:
        return {Case(*key.split("/")): row for key, row in json.load(file).items()}


def folders(case: Case, root: Path) -> list[str]:
    """Return the folders of the log of a store that was made."""
    second = [str(root / SECOND_LOG)] if case.damage.endswith("twin") else []
    return [str(root / "commitlog"), *second]


def make(whole: Path, case: Case, root: Path) -> Path:
    """Copy a store to ``root`` and break it; return the path of the broken file."""
    shutil.copytree(whole, root)
    abort = root / "abort"
    if case.state == "crashed":
        abort.write_text("1")
    else:
        abort.unlink(missing_ok=True)
    folder = root / case.part
    if case.part == "consumequeue":
        folder /= _QUEUES[case.store]
    files = sorted(folder.iterdir())
    path = files[{"first": 0, "middle": len(files) // 2, "newest": -1}[case.place]]
    _break(path, case.damage)
    return path


def _break(path: Path, damage: str) -> None:
    data = path.read_bytes()
    size, written = len(data), len(data.rstrip(b"\0"))
    third = written // 3
    if damage == "missing":
        path.unlink()
    elif damage in ("cut", "empty"):
        with path.open("r+b") as file:
            file.truncate(2 * third if damage == "cut" else 0)
    elif damage in ("page", "tail"):
        start = third if damage == "page" else 2 * third
        with path.open("r+b") as file:
            file.seek(start)
            file.write(bytes(min(_PAGE, third) if damage == "page" else size - start))
    elif damage == "long":
        with path.open("ab") as file:
            file.write(bytes(_PAGE))
    elif damage == "renamed":
        path.rename(path.with_name(f"{int(path.name) + size // 2:0{len(path.name)}d}"))
    elif damage == "suffixed":
        path.rename(path.with_name(f"{path.name}.bak"))
    else:
        twin = path.parents[1] / SECOND_LOG / path.name
        twin.parent.mkdir()
        shutil.copy(path, twin)
        if damage == "stale-twin":
            _break(twin, "tail")
