"""How many requests a remote storage gets: bounds that do not grow with the messages."""

from __future__ import annotations

from pathlib import Path

import fsspec
import pyarrow as pa
import pytest
from pyarrow.fs import LocalFileSystem

import rmqstore
from goldens import Golden
from reading import column
from rmqstore.errors import RemoteReadError
from rmqstore.storage.files.remote_requests import Counts
from rmqstore.store.message_store import MessageStore
from rmqstore.write.messages import WriteSpec


def written(root: Path, n_queues: int, n_messages: int) -> Path:
    """Write a store whose queues take turns; every hundredth message has a key."""
    numbers = range(n_messages)
    table = pa.table(
        {
            "topic": ["T"] * n_messages,
            "queueId": pa.array([number % n_queues for number in numbers], pa.int32()),
            "body": [b"%d" % number * 200 for number in numbers],
            "keys": [f"k{number}" if number % 100 == 0 else None for number in numbers],
        }
    )
    with rmqstore.create(root, spec=WriteSpec(queue_nums={"T": n_queues})) as store:
        store.append(table)
    return root


def remote(root: Path) -> MessageStore:
    return rmqstore.open(root, filesystem=LocalFileSystem(), broker_name="b")


def counts(store: MessageStore) -> Counts:
    found = store.parts.paths.storage.counts  # type: ignore[attr-defined]
    assert isinstance(found, Counts)
    return found


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("budgets") / "store", 8, 60_000)


def test_the_ends_of_eight_queues_take_few_requests(root: Path) -> None:
    with remote(root) as store:
        assert store.count() == 60_000
        assert len(store.parts.sampler.log_headers()) < 64
        assert counts(store).gets <= 60
        assert counts(store).bytes <= 8_000_000
        assert counts(store).listings < 20


@pytest.mark.parametrize("scan", ["queue", "commitlog"])
def test_a_whole_store_is_fetched_once(root: Path, scan: str) -> None:
    n_bytes = sum(column(root, "storeSize"))
    with remote(root) as store:
        assert store.scan(scan=scan).read_all().num_rows == 60_000
        # What is fetched ahead and at the ends of files is some MB, whatever the store's size.
        assert counts(store).bytes <= 1.1 * n_bytes + (4 << 20)


def test_many_queues_take_two_requests_each_at_most(tmp_path: Path) -> None:
    n_queues = 300
    root = written(tmp_path / "store", n_queues, 3 * n_queues)
    with remote(root) as store:
        assert store.count() == 3 * n_queues
        assert counts(store).gets <= 2 * n_queues


def test_a_key_in_an_index_of_twenty_million_items_takes_few_requests(root: Path) -> None:
    (index,) = (root / "index").iterdir()
    assert index.stat().st_size > 400_000_000  # 5 million slots, 20 million items
    with remote(root) as store:
        assert len(store.query("T", "k59900")) == 1
        assert counts(store).gets <= 40


def test_a_file_system_of_fsspec_gives_the_same(root: Path) -> None:
    memory = fsspec.filesystem("memory")
    memory.put(str(root / "commitlog"), "/copied/commitlog", recursive=True)
    for name in ("consumequeue", "config"):
        memory.put(str(root / name), f"/copied/{name}", recursive=True)
    with (
        rmqstore.open(root) as expected,
        rmqstore.open("/copied", filesystem=memory, broker_name=expected.broker_name) as found,
    ):
        columns = "topic,queueId,queueOffset,commitLogOffset,body,properties"
        for scan in ("queue", "commitlog"):
            assert (
                found.scan(scan=scan, columns=columns).read_all().to_pylist()
                == expected.scan(scan=scan, columns=columns).read_all().to_pylist()
            )


def test_what_a_file_system_of_the_caller_raises_is_an_error_with_the_file(
    golden_store: Golden, tmp_path: Path
) -> None:
    """fsspec's blockcache reads no files of its own memory file system."""
    memory = fsspec.filesystem("memory")
    root = golden_store("one")
    for path in root.rglob("*"):
        if path.is_file():
            memory.pipe(f"/caller/one/{path.relative_to(root)}", path.read_bytes())
    cached = fsspec.filesystem("blockcache", target_protocol="memory", cache_storage=str(tmp_path))
    text = r"/caller/one/.*the file system fails: AttributeError"
    with (
        rmqstore.open("/caller/one", filesystem=cached) as store,
        pytest.raises(RemoteReadError, match=text),
    ):
        store.scan(columns="topic").read_all()
