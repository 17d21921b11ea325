"""Cases of the judge: a store of some origin, in some state, with up to four faults.

A case is one line of text, and the text alone makes the store:

``golden/live | crashed | commitlog/00000000000000098304 | page=8192 | index | missing``
"""

from __future__ import annotations

import mmap
import os
import posixpath
import random
import shutil
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import goldens
from judge import programs
from mutations import overwrite

# How often each comes. ``safe``: crashed, and its checkpoint says that all was flushed; ``ahead``:
# closed, and written by a clock that is years ahead.
STATES = {"closed": 40, "crashed": 35, "safe": 15, "ahead": 10}
N_FAULTS = {0: 8, 1: 42, 2: 28, 3: 14, 4: 8}
PAGE = 4096
T = TypeVar("T")
YESTERDAY = "yesterday"  # the folder beside a store that has its files of an earlier time
_SEPARATOR = " | "
_AHEAD_MS = 30 * 365 * 86_400_000
_SAFE_MS = 4_102_444_800_000  # the year 2100
_MAGICS = 0xDAA320A7, 0xDAA320AB
_LEAST = 88  # bytes of a record, but for the hosts
_CHUNK = 1 << 16
_HUGE = 1 << 25  # bytes: a file of that length is mostly hole, and is not read whole


class Fault(NamedTuple):
    path: str  # of a file or folder of the store
    damage: str  # its kind, and after ``=`` what it needs to know


class Case(NamedTuple):
    origin: str
    state: str
    faults: tuple[Fault, ...]

    def __str__(self) -> str:
        words = (word for fault in self.faults for word in fault)
        return _SEPARATOR.join([self.origin, self.state, *words])

    @classmethod
    def parse(cls, text: str) -> Case:
        origin, state, *words = text.split(_SEPARATOR)
        return cls(origin, state, tuple(map(Fault, words[::2], words[1::2])))


class Origin(NamedTuple):
    """A whole store, which is never changed, and what a broker and a reader are to know of it.

    Attributes:
        settings: fields of MessageStoreConfig, or of BrokerConfig; folders relative to ``root``.
        options: arguments of ``rmqstore.open``; folders relative to ``root``.
    """

    name: str
    root: Path
    settings: dict[str, Any]
    version: str
    options: dict[str, Any]


# Golden stores, and how often they are drawn. A DLedger log takes seconds to elect its leader.
_GOLDEN = {
    6: "live crash batch-cq cq-ext lmq expired timers",
    4: "basic edges crash2 controller rocksdb-cq tiered v49",
    2: "expired2 preblank crash3 crash4 crash5 one empty v2 compressed ipv6 prop-crc compacted "
    "rdbm v55-basic v55-crash2 v55-expired v55-live-lite v55-lmq",
    1: "3.2.6-clean 4.5.2-killed default-sizes dledger dledger-crash dledger-expired dledger-mixed "
    "v55-edges v55-index-rocksdb v55-rocksdb-cq v55-combine-cq v55-crash4 v55-live-rocksdb "
    "v55-cq-separate",
}
GOLDEN = {name: weight for weight, names in _GOLDEN.items() for name in names.split()}
SPREAD = {"live": 3, "crash": 3, "expired": 2}  # whose log is spread over the folders of two disks
PROGRAM_SHARE = 0.4
_SECOND_LOG = "commitlog-2"
_ATTRIBUTES = {
    "batch-cq": {topic: {"queue.type": "BatchCQ"} for topic in ("BatchA", "BatchB")}
    | {"Plain": {}},
}
_SETTINGS: dict[str, dict[str, Any]] = {  # where no summary has them
    "compacted": {
        "mappedFileSizeCommitLog": 1 << 20, "mappedFileSizeConsumeQueue": 20 * 1000,
        "compactionMappedFileSize": 1 << 14, "compactionCqMappedFileSize": 46 * 20,
    },
    "rdbm": {"mappedFileSizeCommitLog": 1 << 20, "storeType": "defaultRocksDB"},
    "timers": {
        "mappedFileSizeCommitLog": 131072, "mappedFileSizeConsumeQueue": 8000,
        "mappedFileSizeTimerLog": 5216, "maxHashSlotNum": 100, "maxIndexNum": 1000,
    },
}  # fmt: skip


class Origins:
    """The stores that cases begin with, made when they are asked for and kept in a folder.

    Args:
        writer: runs programs; without it only stores that were written before are there.
    """

    def __init__(self, folder: Path, writer: programs.Writer | None = None) -> None:
        self._folder, self._writer = folder, writer

    def __getitem__(self, name: str) -> Origin:
        kind, _, rest = name.partition("/")
        if kind == "program":
            root = programs.written(rest, self._folder / kind, self._writer)
            return Origin(name, root, programs.settings(rest), "5.3.3", {})
        origin = _golden(rest, self._folder)
        return _spread(origin, self._folder) if kind == "spread" else origin


def _golden(name: str, folder: Path) -> Origin:
    root = folder / "golden" / name / "store"
    if not root.exists():
        with programs.new_folder(root.parent) as new:
            copy(goldens.unpack(name, new), new / "sparse")
            if name in _ATTRIBUTES:
                programs.write_topics(new / "sparse", _ATTRIBUTES[name])
            programs.settle(new / "sparse", root)
    version = "5.5.1" if name.startswith("v55-") else "4.9.8" if name == "v49" else "5.3.3"
    options = {"tiered": "tieredstore"} if name in goldens.IN_TIER else {}
    return Origin(f"golden/{name}", root, _settings(name), version, options)


def _settings(name: str) -> dict[str, Any]:
    if name in _SETTINGS:
        return _SETTINGS[name]
    conf = goldens.summary(name)["conf"]
    if isinstance(conf, str):  # of the oldest releases
        pairs = (pair.split("=") for pair in conf.split(","))
        conf = {key[0].lower() + key[1:]: value for key, value in pairs}
    spelled = {"true": True, "false": False}
    settings = {
        key: int(text) if text.isdigit() else spelled.get(text, text) for key, text in conf.items()
    }
    if name in goldens.IN_TIER:
        settings["brokerName"] = "oracle"  # is in the paths of the tier
    return settings | ({"enableControllerMode": True} if name == "controller" else {})


def _spread(whole: Origin, folder: Path) -> Origin:
    """Return a store with every second file of its log in the folder of another disk."""
    name = whole.name.partition("/")[2]
    root = folder / "spread" / name / "store"
    if not root.exists():
        with programs.new_folder(root.parent) as new:
            copy(whole.root, new / "s")
            second = new / "s" / _SECOND_LOG
            second.mkdir()
            for file in sorted((new / "s/commitlog").iterdir())[1::2]:
                file.rename(second / file.name)
            programs.settle(new / "s", root)
    folders = ["commitlog", _SECOND_LOG]
    settings = whole.settings | {"storePathCommitLog": ",".join(folders)}
    return Origin(f"spread/{name}", root, settings, whole.version, {"commitlogs": folders})


# Making a store.


def make(case: Case, origins: Origins, root: Path) -> Origin:
    """Make the store of a case at ``root``; return its origin.

    Raises:
        FileNotFoundError: the store has no file that a fault names.
    """
    origin = origins[case.origin]
    copy(origin.root, root)
    _set_state(root, case.state)
    for fault in case.faults:
        _break(fault, origin, origins, root)
    return origin


def located(options: Mapping[str, Any], root: Path) -> dict[str, Any]:
    """Return the options of an origin with the folders of a copy at ``root``."""
    return {
        name: [root / one for one in value] if isinstance(value, list) else root / value
        for name, value in options.items()
    }


def copy(source: Path, target: Path) -> None:
    """Copy a folder with new times of its files; pages of zeros become holes."""
    shutil.copytree(source, target, copy_function=_copy_file)


def _copy_file(source: str | Path, target: str | Path) -> None:
    with Path(source).open("rb", 0) as given, Path(target).open("wb", 0) as made:
        size = os.fstat(given.fileno()).st_size
        made.truncate(size)
        end = 0
        while end < size:
            try:
                start = os.lseek(given.fileno(), end, os.SEEK_DATA)
            except OSError:  # nothing but a hole is left
                return
            end = os.lseek(given.fileno(), start, os.SEEK_HOLE)
            for at in range(start, end, _CHUNK):
                data = os.pread(given.fileno(), min(_CHUNK, end - at), at)
                if data.strip(b"\0"):
                    os.pwrite(made.fileno(), data, at)


def _set_state(root: Path, state: str) -> None:
    abort, checkpoint = root / "abort", root / "checkpoint"
    if state in ("closed", "ahead"):
        abort.unlink(missing_ok=True)
    else:
        abort.write_text("1")
    if state == "safe" and checkpoint.exists():
        overwrite(checkpoint, 0, struct.pack(">3q", *3 * [_SAFE_MS]))
    if state == "ahead":
        _put_clock_ahead(root)


def _put_clock_ahead(root: Path) -> None:
    """Write the times of a store as a broker had with a clock that is years ahead."""
    for file in root.glob("commitlog*/*"):
        with _mapped(file) as data:
            for at, size in records(data):
                if size >= _LEAST:
                    _add(data, at + (68 if data[at + 39] & 0x10 else 56))
    for file in (root / "checkpoint", *root.glob("index/*")):
        if file.exists():
            with _mapped(file) as data:
                for at in range(0, 24 if file.name == "checkpoint" else 16, 8):
                    if any(data[at : at + 8]):
                        _add(data, at)


@contextmanager
def _mapped(path: Path) -> Iterator[mmap.mmap]:
    """Give a file, which is not empty, as an array of bytes that may be written to."""
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as data:
        yield data


def _add(data: mmap.mmap, at: int) -> None:
    data[at : at + 8] = (int.from_bytes(data[at : at + 8]) + _AHEAD_MS).to_bytes(8)


def records(data: bytes | mmap.mmap) -> Iterator[tuple[int, int]]:
    """Yield where the records of a file of a plain log begin, and their lengths."""
    at = 0
    while at + 8 <= len(data):
        size, magic = struct.unpack_from(">II", data, at)
        if magic not in _MAGICS or not 0 < size <= len(data) - at:
            return
        yield at, size
        at += size


def _break(fault: Fault, origin: Origin, origins: Origins, root: Path) -> None:
    """Let one thing befall one file or folder of a store."""
    path, (damage, _, how) = root / fault.path, fault.damage.partition("=")
    if not os.path.lexists(path):
        raise FileNotFoundError(f"{origin.name} has no {fault.path}")
    if damage in _REPLACING:
        source = {
            "content": lambda: origin.root / how,
            "other": lambda: origins[how.partition(":")[0]].root / how.partition(":")[2],
            "old": lambda: origin.root.parent / YESTERDAY / fault.path,
        }[damage]()
        _replace(path, source)
    elif damage == "swapped":
        aside = path.with_name("swapped.aside")
        for one, two in ((path, aside), (root / how, path), (aside, root / how)):
            one.rename(two)
    elif damage == "twin":
        twin = root / how
        twin.parent.mkdir(parents=True, exist_ok=True)
        _replace(twin, path)
    elif damage == "link":
        target = root / "elsewhere" / fault.path
        target.parent.mkdir(parents=True, exist_ok=True)
        path.rename(target)
        path.symlink_to(os.path.relpath(target, path.parent))
    elif damage == "renamed":
        path.rename(root / how)
    else:
        _DAMAGES[damage](path, *how.split(",") if how else ())


_REPLACING = ("content", "other", "old")


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _replace(path: Path, source: Path) -> None:
    """Put what is at ``source``, or nothing if there is nothing, in the place of ``path``."""
    if source == path or not source.exists():
        raise FileNotFoundError(source)
    if source.is_dir():
        with programs.new_folder(path.parent) as new:  # it may be within what it replaces
            copy(source, new / "s")
            _remove(path)
            (new / "s").rename(path)
    else:
        _remove(path)
        _copy_file(source, path)


def _empty(path: Path) -> None:
    if path.is_dir():
        _remove(path)
        path.mkdir()
    else:
        os.truncate(path, 0)


def _clear(path: Path, start: str) -> None:
    size = path.stat().st_size
    os.truncate(path, int(start))
    os.truncate(path, size)


def _earlier_page(path: Path, at: str, source: str) -> None:
    with path.open("rb") as file:
        file.seek(int(source))
        page = file.read(PAGE)
    overwrite(path, int(at), page)


def _folder_instead(path: Path) -> None:
    _remove(path)
    path.mkdir()


_DAMAGES: dict[str, Callable[..., Any]] = {
    "missing": _remove,
    "empty": _empty,
    "cut": lambda path, size: os.truncate(path, int(size)),
    "long": lambda path, more: os.truncate(path, path.stat().st_size + int(more)),
    "page": lambda path, at: overwrite(
        path, int(at), bytes(min(PAGE, path.stat().st_size - int(at)))
    ),
    "tail": _clear,
    "earlier": _earlier_page,
    "bytes": lambda path, at, data: overwrite(path, int(at), bytes.fromhex(data)),
    "folder": _folder_instead,
    "unreadable": lambda path: path.chmod(0),
}


# Drawing a case.

_PARTS = {
    "commitlog": "log", "commitlog-2": "log", "dledger-n0": "log", "consumequeue": "queue",
    "batchconsumequeue": "queue", "consumequeue_ext": "queue", "index": "index",
    "checkpoint": "state", "abort": "state", "lock": "state", "config": "config",
    "timerlog": "timers", "timerwheel": "timers", "compaction": "compaction",
    "consumequeue_rocksdb": "rocksdb", "rocksdbstore": "rocksdb", "tieredstore": "tiers",
    "tiered_index_file": "tiers", "epochFileCheckpoint": "epochs", "brokerIdentity": "epochs",
    "epochFileCheckpoint.bak": "epochs", "timercheck": "timers", "timermetrics": "timers",
    "tieredStoreMetadata.json": "tiers",
}  # fmt: skip
_WEIGHTS = {
    "log": 26, "queue": 34, "index": 10, "state": 7, "config": 9, "timers": 10, "compaction": 2,
    "rocksdb": 12, "tiers": 16, "epochs": 6,
}  # fmt: skip
_FOLDER_SHARE = 0.1
# Few of what makes a broker refuse its store: files of another length, and names of no number.
_OF_SEGMENTS = {
    "tail": 6, "page": 6, "bytes": 7, "earlier": 2, "content": 2, "swapped": 1.5, "old": 4,
    "other": 1, "missing": 4, "cut": 1, "long": 0.6, "empty": 1, "renamed": 1.2, "twin": 1,
    "link": 1, "folder": 0.4, "unreadable": 0.4,
}  # fmt: skip
_OF_OTHERS = dict.fromkeys(_OF_SEGMENTS, 2) | {"missing": 4, "old": 6, "folder": 1, "unreadable": 1}
_OF_FOLDERS = {
    "missing": 4, "empty": 2, "link": 2, "renamed": 1, "swapped": 1, "content": 1, "old": 4,
}  # fmt: skip
_OTHERS = ("golden/crash", "golden/live", "golden/expired")
_TOGETHER = 0.4  # how often a fault lies at what the one before it lies at
_FIELDS_OF_UNITS = (0, 4, 7, 8, 11, 12)
_FIELDS = (0, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 56, 60)  # places of the fields of a record


def draw(seed: int, origins: Origins) -> Case:
    """Return the case of a seed."""
    dice = random.Random(seed)
    name = _draw_origin(dice)
    origin = origins[name]
    states = dict(STATES)
    # An entry or a checksum is around their times, or a tier has them too.
    if any(kind in name for kind in ("dledger", "prop-crc", "tiered")):
        del states["ahead"]
    if (origin.root / "abort").exists():
        states["closed"] = 5
    state = _chosen(states, dice)
    files = [file for file in files_of(origin) if file != "abort"]
    if state in ("crashed", "safe"):
        files.append("abort")
    faults: list[Fault] = []
    touched: set[str] = set()
    for _ in range(_chosen(N_FAULTS, dice)):
        near = _leading_to_each_other(faults[-1], origin, files) if faults else {}
        if near and dice.random() < _TOGETHER:
            fault = _draw_fault(origin, origins, near, dice)
        else:
            fault = _draw_fault(origin, origins, dict.fromkeys(files, ()), dice)
        how = fault.damage.partition("=")[2].partition(",")[0]
        paths = {fault.path} if how.isdigit() else {fault.path, how}
        if not any(_is_near(one, other) for one in paths for other in touched):
            faults.append(fault)
            touched |= paths
    return Case(name, state, tuple(faults))


def _chosen(weights: Mapping[T, float], dice: random.Random) -> T:
    return dice.choices(list(weights), list(weights.values()))[0]


def files_of(origin: Origin) -> list[str]:
    found = (path for path in origin.root.rglob("*") if path.is_file())
    return sorted(path.relative_to(origin.root).as_posix() for path in found)


def _leading_to_each_other(
    fault: Fault, origin: Origin, files: Iterable[str]
) -> dict[str, Sequence[int]]:
    """Return the files of queues that lead into a damaged file of the log, or the other way round.

    For each there are the places in it that lead to the damage, or that its units lead to: all of
    them, unless the damage is at a place.
    """
    part, first = _part(fault.path), fault.damage.partition("=")[2].partition(",")[0]
    if part not in ("log", "queue") or not (origin.root / fault.path).is_file():
        return {}
    at = int(first) if first.isdigit() else None
    found: dict[str, Sequence[int]] = {}
    of_log, of_queue = (
        [file for file in ([fault.path] if part == kind else files) if _part(file) == kind]
        for kind in ("log", "queue")
    )
    units = {queue: list(_units(origin.root / queue)) for queue in of_queue}
    for log, queue in product((file for file in of_log if file[-20:].isdigit()), of_queue):
        begin = int(log[-20:])
        size = _size(origin.root / log)
        inside = [(place, offset - begin) for place, offset in units[queue]]
        inside = [(place, in_log) for place, in_log in inside if 0 <= in_log < size]
        if part == "log":
            near = [place for place, in_log in inside if at is None or in_log >= at]
        else:
            near = [in_log for place, in_log in inside if at is None or place >= at]
        if near:
            found[queue if part == "log" else log] = near
    return found


def _units(queue: Path) -> Iterator[tuple[int, int]]:
    """Yield the places of the units of a file of a queue, and the physical offsets in them."""
    size = _size(queue)
    width = _unit_width(queue)
    if width and size < _HUGE:
        data = queue.read_bytes()
        for place in range(0, size - width + 1, width):
            offset, length = struct.unpack_from(">qi", data, place)
            if length > 0:
                yield place, offset


def _unit_width(file: Path) -> int:
    """Return the bytes of a unit; 0 of a file that has none."""
    if not file.name.isdigit():
        return 0
    return {"consumequeue": 20, "batchconsumequeue": 46}.get(file.parts[-4], 0)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0  # abort, which the state may make


def _is_near(one: str, other: str) -> bool:
    """Tell whether one of two is in the other, so that a second fault may find nothing."""
    return f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")


def _draw_origin(dice: random.Random) -> str:
    if dice.random() < PROGRAM_SHARE:
        return f"program/{programs.draw(dice)}"
    named = {f"golden/{name}": weight for name, weight in GOLDEN.items()}
    named |= {f"spread/{name}": weight for name, weight in SPREAD.items()}
    return _chosen(named, dice)


def _part(path: str) -> str:
    first, _, rest = path.partition("/")
    if first == "consumequeue" and "/" not in rest:
        return "rocksdb"
    return _PARTS.get(rest, "config") if first == "config" else _PARTS.get(first, "state")


def _draw_fault(
    origin: Origin, origins: Origins, files: Mapping[str, Sequence[int]], dice: random.Random
) -> Fault:
    """Return what befalls one of some files, at one of the places that are given for it."""
    parts = sorted({_part(file) for file in files})
    part = _chosen({part: _WEIGHTS[part] for part in parts}, dice)
    of_part = [file for file in files if _part(file) == part]
    folder = dice.choice(sorted({posixpath.dirname(file) for file in of_part}))
    beside = [file for file in of_part if posixpath.dirname(file) == folder]
    path = dice.choice((beside[0], beside[len(beside) // 2], beside[-1], dice.choice(beside)))
    kinds = _OF_SEGMENTS if path[-20:].isdigit() else _OF_OTHERS
    if folder and dice.random() < _FOLDER_SHARE:
        path, kinds = folder, _OF_FOLDERS
        while "/" in path and dice.random() < 0.4:
            path = posixpath.dirname(path)
        of_part = sorted({posixpath.dirname(file) for file in of_part} - {""})
    while True:  # until it is one that may befall this file
        damage = _chosen(kinds, dice)
        how = _draw_how(damage, path, files.get(path, ()), of_part, origin, origins, dice)
        if how is not None:
            return Fault(path, f"{damage}={how}" if how else damage)


def _draw_how(
    damage: str,
    path: str,
    places: Sequence[int],
    of_part: list[str],
    origin: Origin,
    origins: Origins,
    dice: random.Random,
) -> str | None:
    """Return what a damage needs to know; None if it cannot befall the file."""
    file, size = origin.root / path, _size(origin.root / path)
    if damage in ("content", "swapped"):
        others = [
            other for other in of_part
            if not _is_near(other, path) and (origin.root / other).exists()
        ]  # fmt: skip
        same = [other for other in others if _size(origin.root / other) == size]
        return dice.choice(same or others) if others else None
    if damage == "old":
        return "" if (origin.root.parent / YESTERDAY / path).exists() else None
    if damage == "other":
        name = dice.choice([name for name in _OTHERS if name != origin.name])
        found = [other for other in files_of(origins[name]) if _part(other) == _part(path)]
        return f"{name}:{dice.choice(found)}" if found else None
    if damage in ("renamed", "twin"):
        return _new_name(path, size, dice)
    if damage in ("cut", "long", "tail", "page", "earlier", "bytes"):
        return _draw_place(damage, file, size, places, dice) if size else None
    return ""


def _new_name(path: str, size: int, dice: random.Random) -> str:
    """Return a name that the file may get: another number, or one that is none."""
    digits = path[-20:]
    if digits.isdigit() and dice.random() < 0.7:
        number = int(digits) + dice.choice((-size, size, size, size // 2, 1, 10 * size))
        return f"{path[:-20]}{abs(number) or 2 * size:020d}"
    return path + dice.choice((".bak", ".tmp", "~", "0"))


def _draw_place(
    damage: str, file: Path, size: int, places: Sequence[int], dice: random.Random
) -> str | None:
    """Return where, in the written part of a file, a damage is, and what it is.

    Args:
        places: where it is to be; without any, where a record or a unit begins, or anywhere.
    """
    if damage == "long":
        return str(dice.choice((1, 20, PAGE, size)))
    data = file.read_bytes() if size < _HUGE else b""
    used = len(data.rstrip(b"\0")) or min(size, PAGE)
    width = _unit_width(file)
    fields = _FIELDS_OF_UNITS if width else _FIELDS
    starts = places or [at for at, _ in records(data)] or range(0, used, width or PAGE)
    at = dice.choice((dice.choice(starts), dice.choice(starts if places else range(used))))
    if damage in ("cut", "tail"):
        return str(min(at, size - 1))
    if damage == "page":
        return str(at // PAGE * PAGE)
    if damage == "earlier":
        pages = used // PAGE
        return f"{PAGE * dice.randint(1, pages)},0" if pages and size > 2 * PAGE else None
    if len(starts) > 1 and dice.random() < 0.7:
        at = dice.choice(starts) + dice.choice(fields)
    length = dice.choice((1, 1, 4, 8, 20))
    at = max(min(at, size - length), 0)
    old = data[at : at + length]
    new = dice.choice((b"\xff" * length, bytes(length), dice.randbytes(length)))
    if dice.random() < 0.4 and old:
        new = bytes([old[0] ^ 1 << dice.randrange(8)]) + old[1:]
    return f"{at},{new[: size - at].hex()}"


# Making a case smaller.


def smaller(case: Case) -> Iterator[Case]:
    """Yield cases with less of everything, which may show the same."""
    for number in range(len(case.faults)):
        yield case._replace(faults=case.faults[:number] + case.faults[number + 1 :])
    kind, _, rest = case.origin.partition("/")
    if kind == "program":
        for program in programs.smaller(rest):
            yield case._replace(origin=f"{kind}/{program}")
    elif kind == "spread":
        yield case._replace(origin=f"golden/{rest}")
    for state in [*STATES][: [*STATES].index(case.state)]:
        yield case._replace(state=state)
    for number, fault in enumerate(case.faults):
        for damage in _simpler(fault.damage):
            faults = list(case.faults)
            faults[number] = Fault(fault.path, damage)
            yield case._replace(faults=tuple(faults))


def _simpler(damage: str) -> Iterator[str]:
    """Yield damages that are easier to understand; each step leads towards a missing file."""
    kind, _, how = damage.partition("=")
    simple = ("missing", "empty", "tail=0", "page=0")
    rank = simple.index(damage) if damage in simple else len(simple)
    yield from simple[:rank]
    if kind in ("cut", "tail", "long") and int(how) > 1:
        rounded = int(how) // PAGE * PAGE
        yield from (f"{kind}={place}" for place in (rounded, int(how) // 2) if place < int(how))
