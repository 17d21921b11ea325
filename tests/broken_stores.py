"""Golden stores with one broken file: which file, what befell it, and whether the store was closed.

What the real RocketMQ 5.3.3 does with each lies in ``golden/broken.json.xz``; see
``judge/test_original.py``.
"""

from __future__ import annotations

import json
import lzma
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import goldens
import rmqstore
from rmqstore.errors import Finding
from rmqstore.inspect.verify import verify

Row = dict[str, Any]

STATES = ("closed", "crashed")
PARTS = ("commitlog", "consumequeue", "index")
TIER_PARTS = ("COMMIT_LOG", "CONSUME_QUEUE", "INDEX")
PLACES = ("first", "middle", "newest")
ALONE = "alone"  # the newest segment of a tier, whose first messages the local store has not
SECOND_LOG = "commitlog-2"  # the folder of a second disk
TIER = Path("tieredstore/212d6b50_DefaultCluster/oracle")
_QUEUES = {
    "live": "LivePlain/1", "basic": "TopicA/2", "crash": "CrashB/0",
    "batch-cq": "Plain/0", "lmq": "%LMQ%sub_1/0", "cq-ext": "ExtA/1",
}  # fmt: skip
BATCHES, EXTENSIONS = "batchconsumequeue", "consumequeue_ext"
# a queue of which the local store has what the newest segments hold, and one of which it has not
_TIERED_QUEUE, _EXPIRED_QUEUE, _TIERED_INDEX = "TierA/2", "TierB/0", "rmq_sys_INDEX/0"
_OFFSET_DIGITS = 20
_PAGE = 4096


class Case(NamedTuple):
    store: str  # the golden one
    state: str
    part: str
    place: str
    damage: str

    def __str__(self) -> str:
        return "/".join(self)


def truth(*stores: str) -> dict[Case, Row]:
    """Return what the real store did with each case of some golden stores."""
    with lzma.open(goldens.FOLDER / "broken.json.xz", "rt", encoding="utf-8") as file:
        rows = {Case(*key.split("/")): row for key, row in json.load(file).items()}
    return {case: row for case, row in rows.items() if case.store in stores}


def folders(case: Case, root: Path) -> list[str]:
    """Return the folders of the log of a store that was made."""
    has_second = case.part == "commitlog" and case.damage.endswith("twin")
    return [str(root / "commitlog"), *([str(root / SECOND_LOG)] if has_second else [])]


def make(whole: Path, case: Case, root: Path) -> Path:
    """Copy a store to ``root`` and break it; return the path of the broken file."""
    shutil.copytree(whole, root)
    abort = root / "abort"
    if case.state == "crashed":
        abort.write_text("1")
    else:
        abort.unlink(missing_ok=True)
    path = file_of(case, root)
    _break(path, case.damage)
    return path


def findings(whole: Path, case: Case, root: Path) -> list[Finding]:
    """Return what verify says of a store that is made and broken so."""
    make(whole, case, root)
    tiered = root / "tieredstore" if case.store == "tiered" else None
    with rmqstore.open(root, tiered=tiered, commitlogs=folders(case, root)) as store:
        return list(verify(store))


def file_of(case: Case, root: Path) -> Path:
    """Return the file of a whole store that the case breaks."""
    folder = root / case.part
    if case.part == "timerwheel":
        return folder
    if case.part == BATCHES:
        folder /= "BatchA/0"
    elif case.part in ("consumequeue", EXTENSIONS):
        folder /= _QUEUES[case.store]
    elif case.part in TIER_PARTS:
        queue = _EXPIRED_QUEUE if case.place == ALONE else _TIERED_QUEUE
        folder = root / TIER / (_TIERED_INDEX if case.part == "INDEX" else queue) / case.part
    files = sorted(folder.iterdir(), key=lambda file: file.name[-_OFFSET_DIGITS:])
    return files[{"first": 0, "middle": len(files) // 2}.get(case.place, -1)]


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
        path.rename(path.with_name(_shifted(path.name, size // 2)))
    elif damage == "suffixed":
        path.rename(path.with_name(f"{path.name}.bak"))
    else:
        twin = path.parents[1] / SECOND_LOG / path.name
        if path.parent.name in TIER_PARTS:  # the digits before the offset are no part of it
            twin = path.with_name("ffffffff" + path.name[-_OFFSET_DIGITS:])
        twin.parent.mkdir(exist_ok=True)
        shutil.copy(path, twin)
        if damage == "stale-twin":
            _break(twin, "tail")


def _shifted(name: str, by: int) -> str:
    digits = min(len(name), _OFFSET_DIGITS)
    return f"{name[:-digits]}{int(name[-digits:]) + by:0{digits}d}"


def unserved(found: list[Finding]) -> dict[str, set[int]]:
    """Return the queue offsets that no consumer gets any more, by queue."""
    lost: dict[str, set[int]] = {}
    for one in found:
        for run in one.unserved:
            lost.setdefault(one.place, set()).update(run)
    return lost


def lost_of(row: Row) -> dict[str, set[int]]:
    return {
        queue: {offset for start, stop in spans for offset in range(start, stop)}
        for queue, spans in row["lost"].items()
    }


def written(name: str) -> dict[tuple[str, int], dict[int, int]]:
    """Return the physical offset at each queue offset of a golden store before anything befell it.

    The messages of an inner batch have that of its record.
    """
    queues: dict[tuple[str, int], dict[int, int]] = {}
    rows = goldens.lines(name, "expected")
    if name in goldens.CRASHED:  # the real store lost some when it was read back
        rows = [row for row in goldens.records(name) if row["sysFlag"] & 0xC not in (4, 12)]
    for row in rows:
        queue = queues.setdefault((row["topic"], row["queueId"]), {})
        for number in range(row.get("batchNum") or 1):
            queue[row["queueOffset"] + number] = row["physicalOffset"]
    return queues


def spans(numbers: list[int]) -> list[list[int]]:
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][1] == number:
            runs[-1][1] = number + 1
        else:
            runs.append([number, number + 1])
    return runs
