"""Small files of the log share batches, and are read as they are one by one, damaged or not."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rmqstore
import store_builder as build
import tiers
from reading import offsets, read
from rmqstore.errors import OffsetOutOfRangeError, RmqStoreError
from rmqstore.inspect.verify import verify
from rmqstore.query.damage import MODES
from rmqstore.read.joined_files import FileSharing, Share
from rmqstore.storage.log import walks as joined_walks
from rmqstore.storage.log.commitlog import SegmentSpan

TOPICS = ("A", "B", "Rare")
RARE = 40  # every so many messages
READS: list[dict[str, Any]] = [
    {}, {"subscribe": "Rare"}, {"subscribe": "A", "columns": "topic,queueId,queueOffset"},
    {"scan": "commitlog"}, {"scan": "commitlog", "subscribe": "B"},
]  # fmt: skip


def made(n_records: int = 600) -> build.Store:
    """Return a store of 30 files, of some 20 records each."""
    store = build.Store(units_per_file=1000)
    rng = random.Random(n_records)
    for number in range(n_records):
        topic = TOPICS[2] if number % RARE == 0 else TOPICS[number % 2]
        store.append(
            build.Record(
                topic=topic,
                queue_id=number % 3,
                body=rng.randbytes(rng.randrange(200)),
                properties=build.properties({"TAGS": "a"}),
                store_timestamp=build.T0 + number,
            )
        )
    return store


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return what makes every file be read by itself from then on."""

    def read_apart() -> None:
        def shares(_self: FileSharing, numbers: Sequence[int], _sizes: object) -> Iterator[Share]:
            yield Share(slice(0, len(numbers)), is_joined=False)

        def join(_log: object, spans: list[SegmentSpan], _sizes: object) -> Iterator[SegmentSpan]:
            yield from spans

        monkeypatch.setattr(FileSharing, "shares", shares)
        monkeypatch.setattr(joined_walks, "_join", join)

    return read_apart


def outcome(root: Path, caplog: pytest.LogCaptureFixture, **options: Any) -> tuple[object, ...]:
    """Return the rows of a read up to its error, the error, and the warnings."""
    caplog.clear()
    rows: list[object] = []
    error = ""
    with rmqstore.open(root) as store:
        try:
            for batch in store.scan(include_system_topics=True, **options):
                rows += batch.to_pylist()
        except RmqStoreError as err:
            error = f"{type(err).__name__}: {err}"
    return rows, error, caplog.messages


def test_small_files_share_batches(tmp_path: Path) -> None:
    store = made()
    root = store.write(tmp_path / "s")
    n_files = len(store.segments)
    assert n_files >= 30
    with rmqstore.open(root) as opened:
        for options in READS:
            batches = list(opened.scan(**options))
            assert len(batches) < n_files / 4
            assert sum(batch.num_rows for batch in batches) > 5
        assert offsets(read(opened)) == store.places


def test_the_first_batch_is_of_one_file(tmp_path: Path) -> None:
    store = made()
    with rmqstore.open(store.write(tmp_path / "s")) as opened:
        first = next(iter(opened.scan(columns="commitLogOffset")))
    last = first.column("commitLogOffset")[-1].as_py()
    assert last < store.segment_bytes


def bend(store: build.Store, rng: random.Random) -> None:
    """Damage some records: their bytes, sizes or places."""
    for _ in range(rng.choice((1, 1, 2, 6))):
        at = rng.choice(store.placed)
        kind = rng.randrange(6)
        if kind == 0:
            store.put(at.physical_offset + rng.randrange(at.size), rng.randbytes(1))
        elif kind == 1:
            sizes = (0, 1, 91, at.size + 7, 2 * at.size, 1 << 30, -5)
            store.put(at.physical_offset, rng.choice(sizes).to_bytes(4, signed=True))
        elif kind == 2:
            store.put(at.physical_offset + 28, rng.randbytes(8))
        elif kind == 3:
            store.put(at.physical_offset, bytes(at.size))
        elif kind == 4:  # a page of the disk came back in the place of another
            other = rng.choice(store.placed)
            page = bytes(store.segments[other.physical_offset // 4096 * 4096])[1024:2048]
            store.put(at.physical_offset // 4096 * 4096 + 1024, page)
        else:
            del store.segments[at.physical_offset // 4096 * 4096]
            store.placed = [
                one
                for one in store.placed
                if one.physical_offset // 4096 != at.physical_offset // 4096
            ]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", tiers.seeds(8))
def test_damaged_files_are_read_as_they_are_one_by_one(
    mode: str,
    seed: int,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    apart: Callable[[], None],
) -> None:
    store = made()
    rng = random.Random(seed)
    bend(store, rng)
    root = store.write(tmp_path / "s", abort=bool(seed % 2))
    if seed % 4 == 3:  # a copy that ended too early
        path = rng.choice(sorted((root / "commitlog").iterdir()))
        path.write_bytes(path.read_bytes()[: rng.randrange(4096)])
    caplog.set_level(logging.WARNING)
    options = [
        {"mode": mode, "fail_on_data_loss": fails, **one}
        for one in READS
        for fails in (True, False)
    ]
    together = [outcome(root, caplog, **one) for one in options]
    with rmqstore.open(root) as opened:
        findings = list(verify(opened))
    apart()
    assert together == [outcome(root, caplog, **one) for one in options]
    with rmqstore.open(root) as opened:
        assert findings == list(verify(opened))


@pytest.mark.parametrize("scan", ["queue", "commitlog"])
def test_a_file_deleted_during_the_read_is_lost_alone(
    scan: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joined_walks, "_SMALL_BYTES", 8192)  # of the first window, too
    store = made()
    root = store.write(tmp_path / "s")
    files = sorted((root / "commitlog").iterdir())
    gone = files[20]
    first = int(gone.name)
    every = store.places
    expected = [offset for offset in every if not first <= offset < first + 4096]
    options = {"scan": "commitlog"} if scan == "commitlog" else {}
    for fails in (False, True):
        data = gone.read_bytes()
        with rmqstore.open(root) as opened:
            batches = iter(
                opened.scan(columns="commitLogOffset", fail_on_data_loss=fails, **options)
            )
            rows = next(batches).column("commitLogOffset").to_pylist()
            gone.unlink()
            if fails:
                with pytest.raises(OffsetOutOfRangeError, match="fail_on_data_loss=False"):
                    list(batches)
            else:
                for batch in batches:
                    rows += batch.column("commitLogOffset").to_pylist()
                assert rows == expected
        gone.write_bytes(data)


def test_shares_cover_all_rows_within_the_limits() -> None:
    rng = np.random.default_rng(7)
    for _ in range(200):
        n_rows = int(rng.integers(1, 20_000))
        changes = rng.random(n_rows) < rng.choice([0.001, 0.05, 0.9])
        numbers = np.cumsum(changes) - 1
        sizes = rng.integers(1, int(rng.choice([200, 20_000, 3_000_000])), n_rows)
        row = 0
        for rows, is_joined in FileSharing().shares(numbers, sizes):
            assert rows.start == row
            assert rows.stop > row
            row = rows.stop
            if is_joined:
                assert rows.stop - rows.start <= 8192
                assert sizes[rows].sum() <= 16 << 20
                assert numbers[rows].min() >= 0
                assert len(np.unique(numbers[rows])) > 1
        assert row == n_rows
