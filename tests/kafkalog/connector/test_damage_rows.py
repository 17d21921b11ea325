"""One row for each damaged batch, however a read is cut into tasks."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import kafka_logs as build
from kafka_batches import resealed
from kafka_logs import ABORT, COMMIT, changed, marker
from kafka_reading import read_in_windows
from pyspark_kafkalog.options import parse_column_options, parse_read_options, parse_stream_options
from pyspark_kafkalog.rows import KafkaLogReader, default_schema
from pyspark_kafkalog.stream_reader import KafkaLogStreamReader

Row = tuple[int, str | None]

PLANS = (None, 1, 3, 7)


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    return build.make_log_dir(tmp_path / "logs")


def given_options(log_dir: Path, options: dict[str, str]) -> dict[str, str]:
    return {"path": str(log_dir), "subscribe": "t", "mode": "PERMISSIVE", **options}


def rows(log_dir: Path, plan: int | None, **options: str) -> list[Row]:
    given = given_options(log_dir, options)
    if plan is not None:
        given["maxRecordsPerPartition"] = str(plan)
    reader = KafkaLogReader(default_schema(parse_column_options(given)), parse_read_options(given))
    return [
        (row["offset"], row["_corrupt_record"])
        for split in reader.partitions()
        for batch in reader.read(split)
        for row in batch.to_pylist()
    ]


def plain(offset: int, n_records: int = 5) -> bytes:
    return build.batch(offset, [b"a"] * n_records)


def damage_of(found: list[Row]) -> list[int]:
    return [offset for offset, reason in found if reason is not None]


@pytest.mark.parametrize("plan", PLANS)
def test_undecided_and_adjacent_damaged_batches(log_dir: Path, plan: int | None) -> None:
    first = build.sent(0, 7, *[b"x"] * 5)
    damaged = (changed(marker(5, 7, ABORT), 30), changed(plain(6), -2))
    after = (build.sent(11, 7, *[b"x"] * 5, sequence=5), marker(16, 7, COMMIT))
    path = build.write_segment(log_dir / "t-0", 0, first, *damaged, *after)
    build.write_snapshot(log_dir / "t-0", 17, {})
    found = rows(log_dir, plan, **{"kafka.isolation.level": "read_committed"})
    assert [offset for offset, _ in found] == [0, 5, 6, *range(11, 16)]
    places = [len(first), len(first + damaged[0])]
    assert "may be committed or aborted" in (found[0][1] or "")
    assert [reason for _, reason in found[1:3]] == [
        f"{path}, {position}: the CRC is wrong" for position in places
    ]


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("window", [256 << 10, 150])
@pytest.mark.parametrize(
    ("odd", "offset"),
    [
        (changed(plain(5), -2), 5),  # the CRC is wrong
        (changed(plain(5), 4), 5),  # the base offset alone
        (changed(changed(plain(5), 4), -2), 5),
        (changed(changed(plain(5), 7, 2), -2), 7),  # a base offset that fits
        (changed(plain(5), 8), 5),  # the length: the chain is broken
        (plain(5) + changed(plain(5), -2), 10),  # no offset is missing there
        (plain(5) + b"\xff" * 70, 10),
        (resealed(changed(plain(5), 61)), 5),  # a record cannot be decoded
    ],
)
def test_one_damaged_batch(
    log_dir: Path,
    plan: int | None,
    window: int,
    odd: bytes,
    offset: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read_in_windows(monkeypatch, window)
    folder = log_dir / "t-0"
    build.write_segment(folder, 0, plain(0), odd, plain(10), plain(15))
    build.write_index(folder, 0, (14, len(plain(0) + odd)))
    build.write_segment(folder, 20, plain(20))
    valid = {*range(25)} - ({*range(5, 10)} if offset < 10 else set())
    expected = sorted([*valid, offset])
    found = rows(log_dir, plan)
    assert sorted(offset for offset, _ in found) == expected
    assert damage_of(found) == [offset]
    inside = rows(log_dir, plan, startingOffsets='{"t":{"0":7}}')
    assert len(damage_of(inside)) == 1
    before = rows(log_dir, plan, endingOffsets='{"t":{"0":5}}')
    assert before == [(number, None) for number in range(5)]


@pytest.mark.parametrize("seed", range(20))
def test_any_plan_gives_the_same_rows(
    log_dir: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chooser = random.Random(seed)
    n_bytes = chooser.choice([256 << 10, 300, 150])
    read_in_windows(monkeypatch, n_bytes)
    offset = end = 0
    for _ in range(3):
        base, content, entries = offset, b"", list[tuple[int, int]]()
        for _ in range(6):
            n_records = chooser.randint(1, 6)
            batch = plain(offset, n_records)
            if chooser.random() < 0.3:
                at = chooser.choice([4, 7, 8, 16, 17, 22, 26, 50, -1, -3])  # not a length that fits
                batch = changed(batch, at, chooser.randint(1, 255))
            if chooser.random() < 0.4:
                entries.append((offset + n_records - 1, len(content)))
            content += batch
            end = offset + n_records
            offset = end + chooser.choice([0, 0, 3])
        build.write_segment(log_dir / "t-0", base, content)
        build.write_index(log_dir / "t-0", base, *entries)
    build.write_checkpoint(log_dir / "t-0", "recovery-point-offset", end)
    whole, *others = ([row for row in rows(log_dir, plan) if row[1]] for plan in PLANS)
    for cut, plan in zip(others, PLANS[1:], strict=True):
        assert cut == whole, plan


def test_a_stream_gives_a_row_in_one_micro_batch(log_dir: Path) -> None:
    build.write_segment(log_dir / "t-0", 0, plain(0), changed(plain(5), -2), plain(10))
    for start, expected in (("earliest", [5]), ('{"t":{"0":7}}', [5])):
        given = given_options(log_dir, {"startingOffsets": start, "maxOffsetsPerTrigger": "2"})
        schema = default_schema(parse_column_options(given))
        reader = KafkaLogStreamReader(schema, parse_stream_options(given))
        offset, found = reader.initialOffset(), list[int]()
        while (after := reader.latestOffset(offset, reader.getDefaultReadLimit())) != offset:
            for split in reader.partitions(offset, after):
                for batch in reader.read(split):
                    found += [row["offset"] for row in batch.to_pylist() if row["_corrupt_record"]]
            offset = after
        assert found == expected
