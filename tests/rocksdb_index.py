"""Writes databases of RocksDB as a broker does; that of an index is judged by golden ones."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rocksdict import Options, Rdict

HOUR = 3_600_000
LAST_OFFSET = b"lastOffsetPy"
Items = dict[bytes, bytes]


def item(hour: int, topic: str, kind: str, names: str, physical_offset: int) -> bytes:
    middle = f"@{topic}@{kind}@{names}@".encode()
    return struct.pack(">q", hour) + middle + struct.pack(">q", physical_offset)


def items_of(records: Iterable[dict[str, Any]]) -> Items:
    """Return what a broker writes for records, which are rows of ``NAME.commitlog``."""
    found: Items = {}
    for row in records:
        uniq_key, topic, place = row["uniqKey"], row["topic"], row["physicalOffset"]
        if not uniq_key:
            continue
        time = row["storeTimestamp"]
        names = [("U", uniq_key)]
        names += [("K", f"{key}@{uniq_key}") for key in (row["keys"] or "").split(" ") if key]
        if row.get("tags"):
            names.append(("T", f"{row['tags']}@{uniq_key}"))
        for kind, name in names:
            found[item(time // HOUR * HOUR, topic, kind, name, place)] = struct.pack(">q", time)
        found[LAST_OFFSET] = struct.pack(">q", place)
        found[b"lastStoreTimeStamp"] = struct.pack(">q", time)
    return found


def write_index(root: Path, items: Items) -> None:
    folder = root / "rocksdbstore"
    shutil.rmtree(folder, ignore_errors=True)
    write_database(folder, {"default": items})


def write_database(folder: Path, families: Mapping[str, Items]) -> None:
    database = Rdict(str(folder), Options(raw_mode=True))
    for name, items in families.items():
        family = database
        if name != "default":
            family = database.create_column_family(name, Options(raw_mode=True))
        for key, value in items.items():
            family[key] = value
        family.flush()
    database.close()
