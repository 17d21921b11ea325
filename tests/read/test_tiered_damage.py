"""Damaged files of tiered storage: an error of this package, or fewer messages, never others."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

import rmqstore
import tiers
from goldens import Golden
from mutations import damage
from reading import by_queue, read, rows
from rmqstore.errors import RmqStoreError
from rmqstore.query.selection import parse_selection
from rmqstore.read.read_spec import MODES, ReadSpec, scan_schema
from rmqstore.read.reading import read_queues
from rmqstore.read.tailing import tail_of

COLUMNS = "topic,queueId,queueOffset,body"
SCHEMA = scan_schema(COLUMNS, include_pending=False)


def flip(path: Path, rng: random.Random) -> None:
    path.write_bytes(damage(path.read_bytes(), rng))


def delete(path: Path, _rng: random.Random) -> None:
    path.unlink()


def link_to_nothing(path: Path, _rng: random.Random) -> None:
    path.unlink()
    path.symlink_to("nowhere")


def make_folder(path: Path, _rng: random.Random) -> None:
    path.unlink()
    path.mkdir()


def rename(path: Path, rng: random.Random) -> None:
    path.rename(path.with_name(f"{path.name[:8]}{rng.randrange(1 << 62):020d}"))


def resize(path: Path, rng: random.Random) -> None:
    with path.open("r+b") as file:
        file.truncate(rng.choice([0, 1, 1 << 31, 1 << 40]))


def append(path: Path, rng: random.Random) -> None:
    with path.open("ab") as file:
        file.write(rng.choice([b"\0" * 20, b"\xff" * 20, rng.randbytes(33)]))


HARMS = (*[flip] * 7, append, append, delete, link_to_nothing, make_folder, rename, resize)


@pytest.mark.parametrize("seed", tiers.split(range(300), 10))
def test_damage_never_makes_a_message(golden_store: Golden, tmp_path: Path, seed: int) -> None:
    rng, original = random.Random(seed), golden_store("tiered")
    with rmqstore.open(original, tiered=original / "tieredstore") as store:
        valid = {
            key: {row["queueOffset"]: row["body"] for row in found}
            for key, found in by_queue(read(store, columns=COLUMNS)).items()
        }
    root = Path(shutil.copytree(original, tmp_path / "s"))
    tier = root / "tieredstore"
    files = [
        path for path in sorted(tier.rglob("*")) if path.is_file() and "INDEX" not in path.parts
    ]
    for file in rng.sample(files, rng.choice((1, 1, 2, 3))):
        rng.choice(HARMS)(file, rng)
    for path, options in ((tier, {}), (root, {"tiered": tier})):
        for mode in MODES:
            asked = (by_scan,) if mode == "PERMISSIVE" else (by_scan, by_tail)
            spec = ReadSpec(SCHEMA, mode, fail_on_data_loss=False)
            with rmqstore.open(path, **options) as store:
                assert store.view("queues").read_all().num_rows > 0
                for ask in asked:
                    complaint, found = str(root), {}
                    try:
                        found = by_queue(ask(store, spec))
                    except RmqStoreError as err:
                        complaint = str(err)
                    assert str(root) in complaint
                    for key, messages in found.items():
                        whole = messages
                        if mode == "PERMISSIVE":  # a damaged one has no body
                            whole = [row for row in messages if row["body"] is not None]
                        queue_offsets = [row["queueOffset"] for row in whole]
                        assert queue_offsets == sorted(set(queue_offsets))
                        assert all(
                            valid[key].get(row["queueOffset"]) == row["body"] for row in whole
                        )


def by_scan(store: rmqstore.MessageStore, spec: ReadSpec) -> list[dict]:
    return read(store, columns=COLUMNS, mode=spec.mode, fail_on_data_loss=False)


def by_tail(store: rmqstore.MessageStore, spec: ReadSpec) -> list[dict]:
    spans = tail_of(store.parts, parse_selection()).spans()
    slices = [
        piece
        for key, span in spans.items()
        for piece in store.parts.store_queues.slices(key, *span, spec)
    ]
    return rows(read_queues(store.parts, slices, spec))
