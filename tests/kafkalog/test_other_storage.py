"""Log directories that are not on a local disk."""

from __future__ import annotations

from pathlib import Path

import pytest

import kafka_logs as golden
import kafkalog
from kafkalog.storage.indexes import read_offset_index
from kafkalog.storage.segments import Segment
from kafkalog.verify import verify
from memory_storage import MemoryStorage, refuse_direct_looks
from rmqstore.errors import OptionError, UnsupportedFeatureError
from rmqstore.storage.files.local import LOCAL
from s3_server import S3Server


@pytest.mark.parametrize("name", ["txn", "swap", "old"])
def test_a_store_in_memory(
    name: str, kafka_store: golden.Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = MemoryStorage(kafka_store(name))
    refuse_direct_looks(monkeypatch)
    opened = kafkalog.open(storage.root, storage=storage)
    bounds = golden.bounds(name)
    assert list(opened.partitions) == sorted(bounds)
    for place, partition in opened.partitions.items():
        rows = golden.as_key(partition.scan(isolation_level="read_committed").to_arrow())
        assert rows == golden.expected(name, place, only_committed=True)
        time, answer, *_ = bounds[place]["offsetsForTimes"][-2]
        assert partition.offset_for_time(time) == answer
    opened.consumer_groups()
    assert not list(verify(opened.partitions.values()))


def test_a_partition_folder_in_memory(kafka_store: golden.Golden) -> None:
    storage = MemoryStorage(kafka_store("txn"))
    opened = kafkalog.open(storage.root / "Tx-0", storage=storage)
    partition = opened.partition("Tx", 0)
    assert partition.is_clean
    assert partition.scan().count() == len(golden.expected("txn", ("Tx", 0)))


@pytest.mark.parametrize("as_filesystem", [True, False])
def test_log_directories_in_object_storage(
    s3: S3Server, kafka_store: golden.Golden, as_filesystem: bool
) -> None:
    _, dirs = golden.log_dirs("epochs", kafka_store("epochs"))
    uris = [s3.upload(folder, f"kafka-{folder.name}") for folder in dirs]
    if as_filesystem:
        keys = [uri.removeprefix("s3://") for uri in uris]
        opened = kafkalog.open(*keys, filesystem=s3.filesystem)
    else:
        opened = kafkalog.open(*uris, storage_options=s3.options)
    assert opened.scan().to_arrow().equals(kafkalog.open(*dirs).scan().to_arrow())


def test_log_directories_of_one_broker_lie_in_one_storage(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="do not lie in one storage"):
        kafkalog.open("s3://a/logs", tmp_path)
    with pytest.raises(OptionError, match="a store on the local disk takes none"):
        kafkalog.open(tmp_path, storage_options={"region": "eu-west-1"})
    with pytest.raises(OptionError, match=r"s3://\*\*\*@a: credentials") as caught:
        kafkalog.open("s3://b/logs", "s3://user:hidden@a/logs")
    assert "hidden" not in str(caught.value)
    with pytest.raises(UnsupportedFeatureError, match="no file system is known for ftp"):
        kafkalog.open("ftp://host/logs")
    logs = golden.make_log_dir(tmp_path / "logs")
    golden.write_segment(logs / "t-0", 0, golden.batch(0, [b"v"]))
    assert kafkalog.open(logs.as_uri()).partition("t", 0).end_offset == 1


def test_a_range_reads_only_what_it_needs(tmp_path: Path, folder: Path) -> None:
    for base in (0, 100):
        batches = [golden.batch(base + number, [b"x" * 20_000]) for number in range(100)]
        golden.write_segment(folder, base, *batches)
        entries = [(base + number, number * len(batches[0])) for number in range(1, 100)]
        golden.write_index(folder, base, *entries)
    storage = MemoryStorage(tmp_path / "logs")
    partition = kafkalog.open(storage.root, storage=storage).partition("t", 0)
    assert partition.end_offset == 200
    storage.n_read.clear()
    assert partition.scan(90, 92).count() == 2
    n_read = {path.name: n_bytes for path, n_bytes in storage.n_read.items()}
    assert set(n_read) == {f"{0:020}.log", f"{0:020}.index"}
    assert n_read[f"{0:020}.log"] < 600_000


def test_the_zeros_of_a_preallocated_index_are_not_read(tmp_path: Path, folder: Path) -> None:
    batches = [golden.batch(number, [b"x" * 500]) for number in range(100)]
    golden.write_segment(folder, 0, *batches)
    entries = [(number, number * len(batches[0])) for number in range(1, 100)]
    path = golden.write_index(folder, 0, *entries)
    path.write_bytes(path.read_bytes().ljust(10 << 20, b"\0"))
    storage = MemoryStorage(tmp_path / "logs")
    partition = kafkalog.open(storage.root, storage=storage).partition("t", 0)
    assert partition.scan(90).count() == 10
    n_read = {path.name: n_bytes for path, n_bytes in storage.n_read.items()}
    assert n_read[f"{0:020}.index"] < 400_000


def test_an_index_is_read_to_its_end_however_long_it_is(tmp_path: Path) -> None:
    for n_entries in (1, 8191, 8192, 8193, 65_536, 70_000):
        path = golden.write_index(tmp_path, 0, *[(at, at * 70) for at in range(1, n_entries + 1)])
        path.write_bytes(path.read_bytes() + bytes(4096))
        index = read_offset_index(LOCAL, Segment(0, str(path.with_suffix(""))))
        assert index.offsets.tolist() == list(range(1, n_entries + 1))
