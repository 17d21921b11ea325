"""Damage that a store may have: bytes, files and values that no broker writes, chosen by a seed."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

_TINY = 1 << 20  # bytes: no file of the golden stores that are mutated is larger
_HUGE = 1 << 40  # bytes of a sparse file
_PAGE = 4096
_NUMBERS = (
    0, -1, 1 << 31, (1 << 31) - 1, 1 << 32, 1 << 62, (1 << 63) - 1, -(1 << 63), 1 << 64, 10**30,
    1.5, 1e308,
)  # fmt: skip
_JSON_TEXTS = (
    "", "{", "[]", "null", "1e999", '{"a": NaN}', '{"a": Infinity}', "\x00\x01",
    '"' + "x" * 5000 + '"', "[" * 3000, "\ufeff{}", '{"a": 1, "a": 2}', "{}{}",
)  # fmt: skip
_FILE_NAMES = (
    "99999999999999999999", "18446744073709551616", "09223372036854775807", "00000000000000000001",
    "-1", "x", "4294967296", "2147483648", "9223372036854775807", "%LMQ%", "a b", "\N{SNOWMAN}",
    ".hidden", "1e5", "٣",
)  # fmt: skip

Mutation = Callable[[Path, random.Random], str]


def mutate(root: Path, rng: random.Random) -> str:
    """Damage the store at ``root`` in one to three ways and return what was done."""
    done = []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        mutation = rng.choice(_MUTATIONS)
        done.append(mutation(root, rng))
    return "; ".join(done)


def overwrite(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def damage(data: bytes, rng: random.Random) -> bytes:
    damaged = bytearray(data)
    at = rng.randrange(len(damaged))
    kind = rng.randrange(3)
    if kind == 0:
        damaged[at] ^= 1 << rng.randrange(8)
    elif kind == 1:
        damaged[at : at + 8] = rng.choice([b"\xff" * 8, bytes(8), rng.randbytes(8)])
    else:
        del damaged[at:]
    return bytes(damaged)


def _files(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink())


def _pick(root: Path, rng: random.Random) -> Path | None:
    """Choose a folder of the store first, so that the many queue files do not hide the rest."""
    files = _files(root)
    folders = sorted({path.relative_to(root).parts[0] for path in files})
    if not folders:
        return None
    log = "dledger-n0" if "dledger-n0" in folders else "commitlog"
    chosen = rng.choice([log, *folders])
    return rng.choice(
        [path for path in files if path.relative_to(root).parts[0] == chosen] or files
    )


def _used(data: bytes) -> int:
    return len(data.rstrip(b"\0")) or len(data)


def _replace(path: Path, data: bytes) -> None:
    path.unlink()
    path.write_bytes(data)


def _on_bytes(change: Callable[[bytearray, random.Random], str]) -> Mutation:
    def mutation(root: Path, rng: random.Random) -> str:
        path = _pick(root, rng)
        if path is None or not 0 < path.stat().st_size <= _TINY:
            return "nothing"
        data = bytearray(path.read_bytes())
        text = change(data, rng)
        _replace(path, bytes(data))
        return f"{path.relative_to(root)}: {text}"

    return mutation


def _flip(data: bytearray, rng: random.Random) -> str:
    places = [rng.randrange(_used(data)) for _ in range(rng.choice((1, 1, 2, 8)))]
    for place in places:
        data[place] ^= rng.choice((0x80, 0xFF, 1 << rng.randrange(8)))
    return f"bytes flipped at {places}"


def _block(rng: random.Random, length: int) -> tuple[int, int]:
    start = rng.randrange(length)
    return start, min(length, start + rng.choice((4, 20, 64, 512, _PAGE)))


def _zero(data: bytearray, rng: random.Random) -> str:
    start, stop = _block(rng, _used(data))
    data[start:stop] = bytes(stop - start)
    return f"zeroed [{start}, {stop})"


def _fill(data: bytearray, rng: random.Random) -> str:
    start, stop = _block(rng, len(data))
    data[start:stop] = rng.choice((b"\xff", b"\x7f", b"\xda\xa3\x20\xa7", rng.randbytes(7))) * (
        stop - start
    )
    del data[len(data) :]
    return f"filled [{start}, {stop})"


def _swap(data: bytearray, rng: random.Random) -> str:
    size = rng.choice((4, 8, 20, 512, _PAGE))
    count = len(data) // size
    if count < 2:
        return "nothing"
    first, second = (size * number for number in rng.sample(range(count), 2))
    data[first : first + size], data[second : second + size] = (
        data[second : second + size],
        data[first : first + size],
    )
    return f"swapped {size} bytes at {first} and {second}"


def _cut(data: bytearray, rng: random.Random) -> str:
    length = rng.choice((0, 1, 8, len(data) - 1, rng.randrange(len(data))))
    del data[length:]
    return f"cut to {length}"


def _grow(data: bytearray, rng: random.Random) -> str:
    data += rng.choice((b"\0", b"\xff", rng.randbytes(3))) * rng.choice((1, 20, _PAGE))
    return f"grown to {len(data)}"


def _number(data: bytearray, rng: random.Random) -> str:
    """Put a number that means something into a place where one may stand."""
    size = rng.choice((4, 8))
    if len(data) < size:
        return "nothing"
    place = rng.randrange(max(1, _used(data) - size + 1))
    place = min(place - place % rng.choice((1, 4)), len(data) - size)
    number = int(rng.choice(_NUMBERS[:9])) & ((1 << 8 * size) - 1)
    data[place : place + size] = number.to_bytes(size, "big")
    return f"{size} bytes at {place} are {number:#x}"


def _rename(root: Path, rng: random.Random) -> str:
    path = _pick(root, rng)
    if path is None:
        return "nothing"
    target = path.with_name(rng.choice(_FILE_NAMES))
    if target.exists() or not path.exists():
        return "nothing"
    path.rename(target)
    return f"{path.relative_to(root)} renamed to {target.name}"


def _rename_folder(root: Path, rng: random.Random) -> str:
    folders = sorted(path for path in root.rglob("*") if path.is_dir() and not path.is_symlink())
    path = rng.choice(folders)
    target = path.with_name(rng.choice(_FILE_NAMES))
    if target.exists():
        return "nothing"
    path.rename(target)
    return f"folder {path.relative_to(root)} renamed to {target.name}"


def _delete(root: Path, rng: random.Random) -> str:
    path = _pick(root, rng)
    if path is None:
        return "nothing"
    path.unlink()
    return f"{path.relative_to(root)} deleted"


def _delete_folder(root: Path, rng: random.Random) -> str:
    path = rng.choice(
        sorted(path for path in root.rglob("*") if path.is_dir() and not path.is_symlink())
    )
    shutil.rmtree(path)
    return f"folder {path.relative_to(root)} deleted"


def _copy(root: Path, rng: random.Random) -> str:
    source, target = _pick(root, rng), _pick(root, rng)
    if source is None or target is None or source == target or source.stat().st_size > _TINY:
        return "nothing"
    _replace(target, source.read_bytes())
    return f"{target.relative_to(root)} is a copy of {source.relative_to(root)}"


def _special(root: Path, rng: random.Random) -> str:
    path = _pick(root, rng)
    if path is None:
        return "nothing"
    path.unlink()
    kind = rng.choice(
        ("fifo", "zero", "null", "loop", "dangling", "folder", "sparse", "outside", "unreadable")
    )
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "sparse":
        path.touch()
        os.truncate(path, _HUGE)
    elif kind == "unreadable":
        path.touch(mode=0)
    else:
        target = {
            "zero": "/dev/zero", "null": "/dev/null", "loop": path.name, "dangling": "nowhere",
            "outside": root.parent,
        }  # fmt: skip
        path.symlink_to(target[kind])
    return f"{path.relative_to(root)} is now: {kind}"


def _new_entry(root: Path, rng: random.Random) -> str:
    """Put something among the files of a folder that has no business there."""
    folders = sorted(path for path in root.rglob("*") if path.is_dir() and not path.is_symlink())
    path = rng.choice([root, *folders]) / rng.choice(_FILE_NAMES)
    if path.exists() or path.is_symlink():
        return "nothing"
    kind = rng.choice(("file", "folder", "fifo", "loop"))
    if kind == "file":
        path.write_bytes(rng.randbytes(rng.choice((0, 1, 40, _PAGE))))
    elif kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to(root)
    return f"{path.relative_to(root)} is a new {kind}"


def _hostile_json(root: Path, rng: random.Random) -> str:
    files = sorted((root / "config").glob("*.json"))
    if not files:
        return "nothing"
    path = rng.choice(files)
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError):
        table = {}
    if rng.random() < 0.3 or not isinstance(table, dict):
        text = rng.choice(_JSON_TEXTS)
    else:
        text = json.dumps(_poisoned(table, rng))
    _replace(path, text.encode("utf-8", "surrogatepass"))
    return f"{path.relative_to(root)}: hostile JSON"


def _poisoned(value: object, rng: random.Random) -> object:
    """Replace one value, at a random depth, by one of another type or size."""
    strange: tuple[object, ...] = (
        *_NUMBERS, None, True, [], {}, "x", "\ud800", float("inf"), float("nan"), "9" * 400,
    )  # fmt: skip
    if isinstance(value, dict) and value and rng.random() < 0.8:
        key = rng.choice(sorted(value))
        if rng.random() < 0.2:
            return {**value, str(rng.choice(_NUMBERS)): value[key]}
        return {**value, key: _poisoned(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.8:
        place = rng.randrange(len(value))
        return [*value[:place], _poisoned(value[place], rng), *value[place + 1 :]]
    return rng.choice(strange)


_MUTATIONS: tuple[Mutation, ...] = (
    *map(_on_bytes, (_flip, _flip, _flip, _zero, _zero, _fill, _swap, _swap)),
    *map(_on_bytes, (_cut, _grow, _number, _number)),
    _rename, _rename_folder, _delete, _delete_folder, _copy, _special, _special, _new_entry,
    _hostile_json,
)  # fmt: skip
