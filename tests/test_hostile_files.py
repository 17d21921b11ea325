"""Store entries that are links or devices, and values no broker writes: only errors of our own.

A read changes nothing, and a write does not touch the targets of links. Each of these cases once
blocked, filled the memory, escaped as a traceback or changed files outside the store.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

import rmqstore
import store_builder as build
from reading import time_limit
from rmqstore.cli import main
from rmqstore.errors import (
    CorruptConfigError,
    CorruptRecordError,
    OptionError,
    RmqStoreError,
    StoreStateError,
    UnreadableFileError,
)
from rmqstore.inspect.report import gather
from rmqstore.inspect.verify import verify
from rmqstore.read.views.schema import VIEWS
from rmqstore.storage.broker.config_files import BrokerConfig, batch_topics_of, integer
from rmqstore.storage.broker.folders import find_store
from rmqstore.storage.broker.store_config import StoreConfig, read_properties
from rmqstore.storage.broker.topic_table import queue_nums
from rmqstore.storage.files.disk import Disk
from rmqstore.storage.files.local import LOCAL, MappedFile
from rmqstore.storage.files.storage import read_small
from rmqstore.storage.index_appender import next_name
from rmqstore.storage.index_files import index_files
from rmqstore.storage.queue.consumequeue import ConsumeQueue
from rmqstore.storage.queue.queue import chunks, valid_end

SECONDS = 60
MEMORY_BYTES = 2 << 30  # Arrow's allocator reserves a GiB of it ahead
SIZES = StoreConfig(4096, 200, max_hash_slot_num=50, max_index_num=60)
MODES = ("FAILFAST", "DROPMALFORMED", "PERMISSIVE")


@contextmanager
def _limited_memory() -> Iterator[None]:
    import resource

    limits = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (data_bytes() + MEMORY_BYTES, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_DATA, limits)


@pytest.fixture(autouse=True)
def _limits() -> Iterator[None]:
    """A call that waits for another process, or uses more than a GiB of memory, fails instead."""
    with time_limit(SECONDS), _limited_memory() if find_spec("resource") else nullcontext():
        yield  # a Windows has no limits of memory


def data_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmData:")[2].split()[0]) << 10


def messages(count: int, topic: str = "T") -> pa.RecordBatch:
    names = ("topic", "body", "keys")
    return pa.RecordBatch.from_pylist(
        [dict(zip(names, (topic, b"body", f"k{row}"), strict=True)) for row in range(count)]
    )


@pytest.fixture(scope="module")
def _valid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("valid") / "s"
    with rmqstore.create(root, config=SIZES) as writer:
        for _ in range(3):
            writer.append(messages(20))
            writer.flush(txn=("app", 1))
    (root / "brokerIdentity").write_text("cluster#broker#0")
    (root / "config/consumerOffset.json").write_text('{"offsetTable":{"T@g":{0:3,1:2}}}')
    (root / "config/delayOffset.json").write_text('{"offsetTable":{1:3}}')
    (root / "config/timercheck").write_bytes(struct.pack(">q", 5))
    return root


@pytest.fixture
def root(_valid: Path, tmp_path: Path) -> Path:
    return shutil.copytree(_valid, tmp_path / "s")


def put_fifo(path: Path) -> None:
    os.mkfifo(path)


def put_endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def put_loop(path: Path) -> None:
    path.symlink_to(path.name)


def put_folder(path: Path) -> None:
    path.mkdir()


def put_terabyte(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)
        file.seek(-10, os.SEEK_END)
        file.write(b"\1" * 10)


PUTS: list[Callable[[Path], None]] = [put_fifo, put_endless, put_loop, put_folder, put_terabyte]
FILES = [
    "checkpoint", "lock", "brokerIdentity", "abort", "config/topics.json",
    "config/consumerOffset.json", "config/delayOffset.json", "config/consumerFilter.json",
    "config/timercheck", ".rmqstore/append", ".rmqstore/ledger/app.json",
    "commitlog/00000000000000004096", "commitlog/00000000000000008192",
    "consumequeue/T/0/00000000000000000000", "index/20200101000000000",
]  # fmt: skip
# Each file is two other things in the normal tier; the slow tier has all the others.
FILES_AND_PUTS = [
    pytest.param(file, put, marks=[] if (turn - number) % len(PUTS) < 2 else pytest.mark.slow)
    for number, file in enumerate(FILES)
    for turn, put in enumerate(PUTS)
]


def tree(root: Path) -> dict[str, Any]:
    """Return what there is below a folder; links are not followed."""
    found = {}
    for folder, names, files in os.walk(root):
        for path in (Path(folder, name) for name in names + files):
            status = path.lstat()
            content = path.read_bytes() if path.is_file() and status.st_size < 1 << 20 else None
            found[str(path.relative_to(root))] = (
                status.st_mode, status.st_ino, status.st_size, content,
            )  # fmt: skip
    return found


def read_everything(root: Path) -> list[str]:
    """Read a store in every way; return how often it was refused, with our errors only."""
    refused: list[str] = []

    def ask(action: Callable[[rmqstore.MessageStore], object]) -> None:
        try:
            with rmqstore.open(root) as store:
                action(store)
        except RmqStoreError as err:
            refused.append(str(err))

    for scan in ("queue", "commitlog"):
        for mode in MODES:
            options: dict[str, Any] = {
                "scan": scan, "mode": mode, "fail_on_data_loss": mode == "FAILFAST",
            }  # fmt: skip
            ask(lambda store, options=options: store.scan(**options).read_all().to_pylist())
    for name in VIEWS:
        ask(lambda store, name=name: store.view(name).read_all().to_pylist())
    ask(lambda store: store.scan(include_pending=True).read_all())
    ask(lambda store: store.query("T", "k1", scan_uncovered=True))
    ask(lambda store: store.offsets_at("T", "ms:5"))
    ask(lambda store: store.matched_groups("T", 0, 1))
    ask(lambda store: store.parts.config.timer_progress())
    ask(lambda store: store.broker_name)
    ask(lambda store: list(verify(store)))
    ask(gather)
    ended = CliRunner().invoke(main, ["stat", str(root), "--all"])
    assert ended.exception is None or isinstance(ended.exception, SystemExit), repr(ended.exception)
    return refused


def write_everything(root: Path) -> list[str]:
    refused: list[str] = []
    for rebuilds in (False, True):
        try:
            with rmqstore.open(root, mode="a", truncate=True, broker_stopped=True) as writer:
                writer.rebuild() if rebuilds else writer.append(messages(3))
        except RmqStoreError as err:
            refused.append(str(err))
    return refused


@pytest.mark.parametrize(("file", "put"), FILES_AND_PUTS)
def test_what_is_not_a_file_of_the_store_is_refused_and_left_alone(
    root: Path, file: str, put: Callable[[Path], None]
) -> None:
    path = root / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    put(path)
    before = tree(root)
    refusals = read_everything(root)
    assert tree(root) == before
    refusals += write_everything(root)
    assert [text for text in refusals if str(root) not in text] == []


@pytest.mark.parametrize(
    "folder", ["consumequeue", "index", "config", "consumequeue/T", "consumequeue/T/0"]
)
@pytest.mark.parametrize("put", [put_fifo, put_loop, Path.touch])
def test_what_is_not_a_folder_of_the_store_is_refused(
    root: Path, folder: str, put: Callable[[Path], None]
) -> None:
    shutil.rmtree(root / folder)
    put(root / folder)
    before = tree(root)
    read_everything(root)
    assert tree(root) == before
    write_everything(root)


@pytest.mark.parametrize(
    ("put", "found"),
    [
        (put_fifo, "a FIFO"), (put_endless, "a character device"),
        (put_loop, "levels of symbolic links"), (put_folder, "a folder"),
        (put_terabyte, "longer than 9 bytes"),
    ],
)  # fmt: skip
def test_a_refusal_names_the_path_and_what_was_found_and_expected(
    tmp_path: Path, put: Callable[[Path], None], found: str
) -> None:
    put(tmp_path / "x")
    with pytest.raises(UnreadableFileError, match=found) as caught:
        read_small(LOCAL, tmp_path / "x", 9)
    assert str(caught.value).startswith(f"{tmp_path}/x is ")
    assert "is expected" in str(caught.value)
    assert "file" in caught.value.expected


def test_a_small_file_is_read_whole_and_of_a_large_one_what_is_wanted(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"123456789")
    assert read_small(LOCAL, tmp_path / "x", 9) == b"123456789"
    assert LOCAL.read_bytes(tmp_path / "x", 4) == b"1234"
    assert LOCAL.read_bytes(tmp_path / "x", 99) == b"123456789"
    put_terabyte(tmp_path / "y")
    assert LOCAL.read_bytes(tmp_path / "y", 5) == bytes(5)
    with pytest.raises(UnreadableFileError, match="1099511627776 bytes long"):
        MappedFile(tmp_path / "y")
    with pytest.raises(FileNotFoundError):
        read_small(LOCAL, tmp_path / "z", 9)
    with pytest.raises(UnreadableFileError, match="a folder is expected"):
        LOCAL.list_folder(tmp_path / "x")
    (tmp_path / "broker.conf").symlink_to("/dev/zero")
    with pytest.raises(UnreadableFileError, match="a character device"):
        read_properties(tmp_path / "broker.conf")


# ---- links

REFUSED = ["commitlog", "consumequeue", "index", "config", ".rmqstore", "lock"]
LINKED = [  # some are written to only after a crash, or are replaced
    *REFUSED, "consumequeue/T", "consumequeue/T/0", "consumequeue/T/0/00000000000000000000",
    "abort", "checkpoint", "commitlog/00000000000000000000", "commitlog/00000000000000004096",
    "commitlog/00000000000000008192", ".rmqstore/cut", ".rmqstore/replaced", ".rmqstore/ledger",
    ".rmqstore/append", "config/topics.json",
]  # fmt: skip


@pytest.mark.parametrize("name", LINKED)
@pytest.mark.parametrize("crashed", [False, True])
def test_a_link_in_a_store_leads_no_change_out_of_it(
    root: Path, tmp_path: Path, name: str, *, crashed: bool
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").mkdir()
    (outside / "precious" / "deep").write_text("precious")
    target = outside / Path(name).name
    if (root / name).exists():
        (root / name).rename(target)
    elif name.startswith(".rmqstore"):
        target.mkdir()
    else:
        target.write_text("precious")
    (root / name).parent.mkdir(exist_ok=True)
    (root / name).symlink_to(target)
    if crashed and name != "abort":
        (root / "abort").touch()
        if name != "lock":
            (root / "lock").write_bytes(b"lock")  # as a broker leaves it
    before = tree(outside)
    refusals = write_everything(root)
    assert tree(outside) == before
    if name in REFUSED:
        assert len(refusals) == 2
        assert all("symbolic link" in text for text in refusals)


def test_folders_that_the_user_names_may_be_links(root: Path, tmp_path: Path) -> None:
    (root / "commitlog").rename(tmp_path / "log")
    (tmp_path / "link-to-log").symlink_to("log")
    (tmp_path / "link-to-root").symlink_to("s")
    with rmqstore.open(
        tmp_path / "link-to-root", mode="a", commitlogs=[str(tmp_path / "link-to-log")]
    ) as writer:
        writer.append(messages(3))
    with rmqstore.open(root, commitlogs=[str(tmp_path / "log")]) as store:
        assert len(store.scan().read_all()) == 63


def test_changes_stay_within_the_folders(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    for folder in (inside, outside):
        folder.mkdir()
        (folder / "file").write_bytes(b"12")
    (inside / "link").symlink_to(outside)
    (inside / "file-link").symlink_to(outside / "file")
    (inside / "fifo").touch()
    disk = Disk()
    disk.keep_within(inside)
    before = tree(outside)
    for refused in (
        lambda: disk.write(inside / "link/file", 0, b"x"),
        lambda: disk.write(inside / "file-link", 0, b"x"),
        lambda: disk.create(inside / "link/new", 0), lambda: disk.make_folder(inside / "link/new"),
        lambda: disk.delete(inside / "link/file"), lambda: disk.delete_tree(inside / "link/x"),
        lambda: disk.rename(inside / "link/file", inside / "x"),
        lambda: disk.rename(inside / "file", outside / "x"),
        lambda: disk.replace(inside / "link/file", b"x"),
        lambda: disk.write(outside / "file", 0, b"x"),
        lambda: disk.replace(inside / "link/file", b"x"),
        lambda: disk.flush_all([inside / "file-link"]),
    ):  # fmt: skip
        with pytest.raises(StoreStateError, match=r"symbolic link|outside of the store"):
            refused()
    disk.delete_tree(inside / "link")
    disk.delete(inside / "file-link")
    assert tree(outside) == before
    assert not (inside / "link").is_symlink()
    assert not (inside / "file-link").is_symlink()
    disk.close()


# ---- values

VALUES = [
    None, True, -1, 1.5, float("inf"), float("nan"), 10**30, "x", "\ud800", [], [[1, 2]], {},
    {"a": 1}, {"0": []},
]  # fmt: skip
ONE_OF_A_TYPE = ("None", "inf", "'x'", "[]", "{'a': 1}")


def _value(value: object) -> Any:
    """Return a case of a table of values; a second one of its type belongs to the slow tier."""
    return pytest.param(
        value, id=repr(value), marks=[] if repr(value) in ONE_OF_A_TYPE else pytest.mark.slow
    )


@pytest.mark.parametrize("value", [*map(_value, VALUES)])
@pytest.mark.parametrize(
    ("file", "form"),
    [
        ("topics.json", "{}"),
        ("topics.json", '{{"topicConfigTable":{}}}'),
        ("topics.json", '{{"topicConfigTable":{{"T":{}}}}}'),
        ("topics.json", '{{"topicConfigTable":{{"T":{{"attributes":{}}}}}}}'),
        ("topics.json", '{{"topicConfigTable":{{"T":{{"writeQueueNums":{}}}}}}}'),
        ("topics.json", '{{"dataVersion":{}}}'),
        ("topics.json", '{{"dataVersion":{{"counter":{}}}}}'),
        ("consumerOffset.json", '{{"offsetTable":{}}}'),
        ("consumerOffset.json", '{{"offsetTable":{{"T@g":{}}}}}'),
        ("consumerOffset.json", '{{"offsetTable":{{"T@g":{{0:{}}}}}}}'),
        ("lmqConsumerOffset.json", '{{"offsetTable":{}}}'),
        ("lmqConsumerOffset.json", '{{"lmqOffsetTable":{{"%LMQ%T@%LMQ%g":{}}}}}'),
        ("delayOffset.json", '{{"offsetTable":{{1:{}}}}}'),
        ("consumerFilter.json", '{{"filterDataByTopic":{{"T":{{"groupFilterData":{}}}}}}}'),
        ("consumerFilter.json",
         '{{"filterDataByTopic":{{"T":{{"groupFilterData":{{"g":{{"bornTime":{}}}}}}}}}}}'),
    ],
)  # fmt: skip
def test_json_of_every_type_in_every_place(root: Path, file: str, form: str, value: object) -> None:
    if file.startswith("lmq"):  # it counts only where the other file is not there
        (root / "config/consumerOffset.json").unlink()
    (root / "config" / file).write_text(form.format(json.dumps(value)))
    config = BrokerConfig(find_store(root))
    for ask in (
        config.topics, config.topic_entries, config.committed_offsets,
        config.delay_offsets, config.groups, config.broker_name,
        lambda: config.consumer_offsets("g"), lambda: config.consumer_offsets("%LMQ%g"),
        lambda: config.filter_groups("T"), lambda: batch_topics_of(config.topic_entries()),
        lambda: queue_nums(find_store(root)), lambda: read_view(root, "topics"),
        lambda: read_view(root, "groups"), lambda: append(root),
    ):  # fmt: skip
        reason = refusal(ask)
        assert reason is None or f"{root}/config/" in reason


def refusal(ask: Callable[[], object]) -> str | None:
    """Return the refusal of a broken table, or None if the call does not need what is broken."""
    try:
        ask()
    except CorruptConfigError as err:
        return str(err)
    return None


def read_view(root: Path, name: str) -> list[dict[str, Any]]:
    with rmqstore.open(root) as store:
        return list(store.view(name).read_all().to_pylist())


def append(root: Path) -> None:
    with rmqstore.open(root, mode="a") as writer:
        writer.append(messages(3, "New"))


@pytest.mark.parametrize(
    "value",
    [True, None, 1.0, "", "1.5", " 1", "1_0", "\u0663", [], 1 << 63, str(1 << 63)],
    ids=repr,
)
def test_an_integer_is_one_that_java_holds(value: object) -> None:
    with pytest.raises(ValueError, match="not an integer"):
        integer(value)
    assert [integer(one) for one in (7, "7", "-7", (1 << 63) - 1, -(1 << 63))] == [
        7, 7, -7, (1 << 63) - 1, -(1 << 63),
    ]  # fmt: skip


def test_names_that_are_not_queue_ids_or_topics_are_passed_over(root: Path) -> None:
    queues = root / "consumequeue"
    for name in ("99999999999", "2147483648", "007", "-1", "\u0663", "9" * 200):
        shutil.copytree(queues / "T" / "0", queues / "T" / name)
    shutil.copytree(queues / "T", queues / os.fsdecode(b"\xff\xfe"))
    with rmqstore.open(root) as store:
        assert store.topics() == ["T"]
        assert store.queue_ids("T") == [0, 1, 2, 3]
        assert len(store.scan().read_all()) == 60
    with rmqstore.open(root, mode="a") as writer:
        writer.append(messages(4))


def test_a_topic_that_is_too_long_for_a_folder_has_no_queue(tmp_path: Path) -> None:
    store = build.Store()
    store.append(build.Record(topic=b"\xff" * 127), queued=False)
    store.append(build.Record(topic="T"))
    root = store.write(tmp_path / "s", abort=True)
    assert all("cannot name a folder of queues" in text for text in read_everything(root))
    with rmqstore.open(root) as opened:
        assert len(opened.scan(scan="commitlog").read_all()) == 2


@pytest.mark.parametrize("timestamp", [1 << 60, -(1 << 60), 253_402_300_800_000])
def test_a_time_that_no_calendar_has_is_damage(tmp_path: Path, timestamp: int) -> None:
    store = build.filled([build.Record(store_timestamp=timestamp)])
    root = store.write(tmp_path / "s")
    with (
        rmqstore.open(root) as opened,
        pytest.raises(CorruptRecordError, match="is not in the years 1 to 9999"),
    ):
        opened.queues("T")
    ended = CliRunner().invoke(main, ["stat", str(root)])
    assert (ended.exit_code, isinstance(ended.exception, SystemExit)) == (1, True)
    read_everything(root)


def test_the_rates_of_a_report_bear_a_first_time_after_the_last(tmp_path: Path) -> None:
    store = build.Store()
    for timestamp in (253_402_300_799_999, build.T0):
        store.append(build.Record(store_timestamp=timestamp))
    with rmqstore.open(store.write(tmp_path / "s")) as opened:
        assert gather(opened, with_verify=False).rates is not None


@pytest.mark.parametrize(
    "last", ["20261399999999999", "99991231235959999", "5", "1" + "9" * 17, "00000000000000001"]
)
def test_an_index_file_follows_any_other(tmp_path: Path, last: str) -> None:
    name = next_name(last, datetime.now(UTC))
    for each in (last, name):
        (tmp_path / each).touch()
    assert [path.name for path in index_files(tmp_path)] == [last, name]


def test_no_index_file_follows_the_last_name_there_is(tmp_path: Path) -> None:
    for last in ("9" * 18, str((1 << 63) - 1)):
        with pytest.raises(StoreStateError, match="rebuild"):
            next_name(last, datetime.now(UTC))
    (tmp_path / str(1 << 63)).touch()  # which RocketMQ passes over
    assert index_files(tmp_path) == []


@pytest.mark.parametrize("size", [1 << 31, 1 << 40])
def test_a_file_of_a_queue_that_no_broker_makes_is_not_taken_for_a_size(
    root: Path, size: int
) -> None:
    """Its size would be that of every new file, and of the filler before a queue's first offset."""
    os.truncate(root / "consumequeue/T/0/00000000000000000000", size)
    with pytest.raises(StoreStateError, match="no broker uses"):
        rmqstore.open(root, mode="a")
    with pytest.raises(OptionError, match="mappedFileSizeConsumeQueue"):
        StoreConfig(mapped_file_size_consume_queue=size)


def test_a_huge_sparse_file_of_a_queue_is_looked_through_in_chunks(tmp_path: Path) -> None:
    folder = tmp_path / "0"
    build.write_queue(folder, [(0, 100, 0), (100, 100, 0)])
    file = folder / f"{0:020d}"
    os.truncate(file, 100_000_000)
    with file.open("r+b") as opened:
        opened.seek(99_999_980)
        opened.write(build.pack_unit(1 << 40, 100, 0))
    queue = ConsumeQueue(folder)
    assert queue.end() == 5_000_000
    assert queue.first(5_000_000, 100) == 1
    assert valid_end(queue, 0, 4_999_999) == 2
    assert valid_end(queue, 2, 4_999_999) == 2
    assert max(high - low for low, high in chunks(queue, 0, 5_000_000)) < 1_000_000
    assert queue.cut(0, 5_000_000, 1 << 30) <= 5_000_000


def test_filler_of_a_large_file_is_written_in_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = build.Store()
    store.append(build.Record(queue_offset=1_500_000), queued=False)
    root = store.write(tmp_path / "s", abort=True)
    written: list[int] = []
    create = Disk.create

    def counted(content: Iterable[Any]) -> Iterator[Any]:
        for chunk in content:
            written.append(memoryview(chunk).nbytes)
            yield chunk

    def count(disk: Disk, path: Path, size: int, content: Iterable[Any] = ()) -> None:
        create(disk, path, size, counted(content))

    monkeypatch.setattr(Disk, "create", count)
    with rmqstore.open(
        root, mode="a", config=StoreConfig(mapped_file_size_consume_queue=40_000_000)
    ):
        pass
    assert sum(written) >= 1_500_000 * 20
    assert max(written) < 20_000_000
    with rmqstore.open(root) as opened:
        assert opened.queue_range("T", 0) == (1_500_000, 1_500_001)


def test_a_ledger_of_other_types_is_not_a_ledger(root: Path) -> None:
    path = root / ".rmqstore/ledger/app.json"
    valid = json.loads(path.read_bytes())
    for change in (
        {"version": float("inf")},
        {"first": {"physical_offset": "x", "size": 1, "sha256": ""}},
        {"previous": []},
        {"is_done": 1},
        {"last": 5},
    ):
        path.write_text(json.dumps(valid | change))
        with rmqstore.open(root, mode="a") as writer:
            assert writer.done_version("app") is None
    path.write_text("[" * 4000)
    with rmqstore.open(root, mode="a") as writer:
        assert writer.done_version("app") is None
