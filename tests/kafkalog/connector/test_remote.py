"""Log directories in S3."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import kafka_logs as build
from connector.engine import Engine
from pyspark_kafkalog.offset_reader import OffsetReader
from pyspark_kafkalog.options import parse_read_options
from pyspark_kafkalog.rows import KafkaLogReader
from pyspark_rmqstore.schema import kafka_schema
from rmqstore.errors import NotAStoreError
from s3_server import BUCKET, S3Server


def count(s3: S3Server, *paths: str, **options: str) -> int:
    given = {"paths": json.dumps(paths), "storageOptions": json.dumps(s3.options), **options}
    reader = KafkaLogReader(kafka_schema(include_headers=False), parse_read_options(given))
    return sum(batch.num_rows for split in reader.partitions() for batch in reader.read(split))


def test_several_directories_and_a_partition_folder(
    s3: S3Server, kafka_store: build.Golden
) -> None:
    (_, dirs) = build.log_dirs("epochs", kafka_store("epochs"))
    uris = [s3.upload(folder, f"kafka-{folder.name}") for folder in dirs]
    local = parse_read_options(
        {"paths": json.dumps([str(one) for one in dirs]), "subscribePattern": ".*"}
    )
    ends = OffsetReader(local).latest_offsets()
    given = {"paths": json.dumps(uris), "storageOptions": json.dumps(s3.options)}
    remote = OffsetReader(parse_read_options(given | {"subscribePattern": ".*"}))
    assert remote.latest_offsets() == ends
    key = next(key for key, end in ends.items() if end and (dirs[1] / str(key)).is_dir())
    alone = {"assign": json.dumps({key.topic: [key.partition]})}
    assert count(s3, f"{uris[1]}/{key}", **alone) == count(s3, *uris, **alone) > 0
    with pytest.raises(NotAStoreError):
        count(s3, f"s3://{BUCKET}/missing", **alone)


def test_new_segments_of_a_copy_are_seen(s3: S3Server, tmp_path: Path) -> None:
    log_dir = build.make_log_dir(tmp_path / "grows")
    build.write_segment(log_dir / "t-0", 0, build.batch(0, [b"a", b"b"]))
    uri = s3.upload(log_dir, "kafka-grows")
    given = {"path": uri, "storageOptions": json.dumps(s3.options), "subscribe": "t"}
    reader = OffsetReader(parse_read_options(given))
    assert reader.latest_offsets() == {("t", 0): 2}
    s3.put(f"{BUCKET}/kafka-grows/t-0/{2:020}.log", build.batch(2, [b"c"]))
    reader.poll()
    assert reader.latest_offsets() == {("t", 0): 3}


def test_tasks_read_log_directories_in_s3(engine: Engine, s3: S3Server, tmp_path: Path) -> None:
    """The options of the storage go with the reader to its tasks."""
    uri = s3.upload(build.unpack("txn", tmp_path), "kafka-txn")
    frame = (
        engine.read.format("kafkalog")
        .option("subscribe", "Tx")
        .option("storageOptions", json.dumps(s3.options))
        .load(uri)
    )
    rows = [row for row in build.source_rows("txn") if row["topic"] == "Tx"]
    expected = [(row["partition"], row["offset"]) for row in rows]
    assert sorted((row.partition, row.offset) for row in frame.collect()) == sorted(expected)
