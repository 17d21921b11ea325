"""The note of where the log ended at a clean close: it is believed only if the log proves it."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import rmqstore
from rmqstore.inspect.verify import verify
from rmqstore.storage.broker.folders import find_store
from rmqstore.storage.broker.store_config import StoreConfig
from rmqstore.storage.files.disk import Disk
from rmqstore.storage.log import writer_notes
from rmqstore.write import queue_files, repairer, writer
from rmqstore.write.writer import StoreWriter

NOW = 1_700_000_000_000
SIZES = StoreConfig(16384, 2000, max_hash_slot_num=100, max_index_num=400)
Change = Callable[[Path], None]


@pytest.fixture(autouse=True)
def _fixed_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "now_ms", lambda: NOW)


def messages(prefix: str, n_rows: int, topic: str = "T") -> pa.RecordBatch:
    bodies = [b"%s-%04d" % (prefix.encode(), number) for number in range(n_rows)]
    properties = [{"UNIQ_KEY": f"{prefix}{number}"} for number in range(n_rows)]
    return pa.record_batch(
        {
            "topic": [topic] * n_rows,
            "queueId": pa.array([number % 4 for number in range(n_rows)], pa.int32()),
            "body": bodies,
            "properties": pa.array(properties, pa.map_(pa.string(), pa.string())),
            "bornTimestamp": pa.array([NOW] * n_rows, pa.timestamp("ms", "UTC")),
        }
    )


def append(root: Path, batch: pa.RecordBatch, *, check_log: bool = False) -> None:
    with rmqstore.open(root, "a", config=SIZES, check_log=check_log) as store:
        store.append(batch)


def count(root: Path) -> int:
    with rmqstore.open(root) as store:
        return store.count()


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    root = tmp_path / "s"
    with rmqstore.create(root, config=SIZES) as store:
        store.append(messages("first", 200))
        store.append(messages("other", 8, "Other"))
    return root


def contents(root: Path) -> dict[str, bytes]:
    """Return the files of a store; index files are named by the time, so they are numbered."""
    files = [path for path in sorted(root.rglob("*")) if path.is_file()]
    indexes = [path for path in files if path.parent.name == "index"]
    names = {path: f"index/{number}" for number, path in enumerate(indexes)}
    return {
        names.get(path, str(path.relative_to(root))): path.read_bytes()
        for path in files
        if path.name not in ("lock", "checkpoint", "end", "commits")
    }


def _refuse(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def walks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what is filled with an entry for each search for the end of the log."""
    searches: list[str] = []
    find = repairer.find_log_end

    def noted(*args: object) -> object:
        searches.append("walk")
        return find(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(repairer, "find_log_end", noted)
    return searches


def test_the_log_is_not_walked_after_a_clean_close(closed: Path, walks: list[str]) -> None:
    for number in range(3):
        append(closed, messages(f"next{number}", 5))
    assert not walks
    append(closed, messages("last", 5), check_log=True)
    StoreWriter(find_store(closed), StoreConfig(), truncate=True).close()
    assert len(walks) == 2
    assert count(closed) == 200 + 8 + 20


def test_a_note_is_removed_before_the_store_is_changed(closed: Path) -> None:
    with rmqstore.open(closed, "a") as store:
        assert not find_store(closed).own.clean_end.exists()
        store.append(messages("more", 1))
    assert find_store(closed).own.clean_end.exists()


def test_a_writer_that_failed_leaves_no_note(
    closed: Path, walks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(StoreWriter, "_complete", _refuse)
        with pytest.raises(rmqstore.errors.CommitError):
            append(closed, messages("lost", 3))
    assert not find_store(closed).own.clean_end.exists()
    append(closed, messages("more", 3))
    assert len(walks) == 1
    assert count(closed) == 200 + 8 + 6


def broker_appended(root: Path) -> None:
    append(root, messages("broker", 7))


def broker_appended_a_file(root: Path) -> None:
    append(root, messages("broker", 150))


def broker_cut_and_wrote_as_much(root: Path) -> None:
    """Another store that differs in the last message only."""
    shutil.rmtree(root)
    with rmqstore.create(root, config=SIZES) as store:
        store.append(messages("first", 200))
        store.append(messages("OTHER", 8, "Other"))


def deleted_topic(root: Path) -> None:
    shutil.rmtree(root / "consumequeue/T")


def older_queue(root: Path) -> None:
    """The folder of a queue as it was some messages ago."""
    path = root / "consumequeue/T/1" / f"{0:020d}"
    stored = path.read_bytes()
    path.write_bytes(stored[: 20 * 45] + bytes(len(stored) - 20 * 45))


def stale_units(root: Path) -> None:
    """A queue with a unit for a record that the log does not have."""
    paths = find_store(root)
    end = json.loads(paths.own.clean_end.read_bytes())["physical_offset"]
    path = root / "consumequeue/T/1" / f"{0:020d}"
    with path.open("r+b") as file:
        file.seek(20 * 50)
        file.write(end.to_bytes(8) + (100).to_bytes(4) + bytes(8))


def no_queues(root: Path) -> None:
    shutil.rmtree(root / "consumequeue")
    shutil.rmtree(root / "index")


def older_queues(root: Path) -> None:
    """All queues as they were some messages ago."""
    for path in (root / "consumequeue").rglob("0*"):
        if path.is_file():
            stored = path.read_bytes()
            written = len(stored.rstrip(b"\0")) // 20 * 20
            path.write_bytes(stored[: max(written - 60, 0)].ljust(len(stored), b"\0"))


UNPROVED = [broker_appended, broker_appended_a_file, broker_cut_and_wrote_as_much]


@pytest.mark.parametrize(
    "change",
    [*UNPROVED, deleted_topic, older_queue, older_queues, no_queues, stale_units],
    ids=lambda one: one.__name__,
)
def test_a_writer_does_the_same_with_the_note_as_without(
    closed: Path, tmp_path: Path, walks: list[str], change: Change
) -> None:
    note = find_store(closed).own.clean_end.read_bytes()
    change(closed)
    find_store(closed).own.clean_end.write_bytes(note)  # the old one
    twin = Path(shutil.copytree(closed, tmp_path / "twin"))
    walks.clear()
    append(closed, messages("after", 9))
    assert len(walks) == (change in UNPROVED)
    append(twin, messages("after", 9), check_log=True)
    assert contents(closed) == contents(twin)


def test_a_broker_that_ran_since_is_seen_by_its_checkpoint(closed: Path, walks: list[str]) -> None:
    checkpoint = closed / "checkpoint"
    checkpoint.write_bytes(checkpoint.read_bytes())
    append(closed, messages("after", 9))
    assert len(walks) == 1


def test_a_note_that_cannot_be_written_does_not_fail_a_commit(
    closed: Path, walks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(writer_notes, "write_clean_end", _refuse)
        append(closed, messages("more", 3))
    assert not find_store(closed).has_abort
    append(closed, messages("after", 3))
    assert len(walks) == 1
    assert count(closed) == 200 + 8 + 6


def test_no_unit_is_left_for_the_lost_end_of_a_log_with_many_queues(
    closed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repairer, "_FEW_QUEUES", 0)
    with rmqstore.open(closed) as store:
        last = store.scan(columns="commitLogOffset,storeSize,topic").read_all().to_pylist()[-1]
    assert last["topic"] == "Other"
    start, position = divmod(last["commitLogOffset"], 16384)
    with (closed / "commitlog" / f"{start * 16384:020d}").open("r+b") as file:
        file.seek(position)
        file.write(bytes(last["storeSize"]))
    checkpoint = closed / "checkpoint"
    stored = checkpoint.read_bytes()
    checkpoint.write_bytes((NOW + 1).to_bytes(8) * 2 + stored[16:])  # the lost one was the newest
    append(closed, messages("after", 9))
    with rmqstore.open(closed) as store:
        assert store.count() == 200 + 7 + 9
        assert not [one for one in verify(store) if one.part != "index"]


def _note(**changes: object) -> bytes:
    fields = {"version": 1, "physical_offset": 100, "last_store_timestamp": NOW, "proof": "00"}
    return json.dumps(fields | changes).encode()


@pytest.mark.parametrize(
    "note",
    [
        b"", b"{", b"[]", b"[" * 900, b"null", b"\xff\xfe", b" " * 2000, _note(), _note(version=2),
        _note(physical_offset=-1), _note(physical_offset=1 << 70), _note(physical_offset=True),
        _note(physical_offset="100"), _note(physical_offset=None),
        _note(last_store_timestamp=1 << 62), _note(proof=7),
    ],
    ids=range(16),
)  # fmt: skip
def test_a_note_that_proves_nothing_is_ignored(closed: Path, walks: list[str], note: bytes) -> None:
    find_store(closed).own.clean_end.write_bytes(note)
    append(closed, messages("after", 3))
    assert len(walks) == 1
    assert count(closed) == 200 + 8 + 3


@pytest.mark.parametrize("kind", ["folder", "fifo", "link"])
def test_something_else_in_the_place_of_the_note_is_never_read(
    closed: Path, walks: list[str], kind: str
) -> None:
    path = find_store(closed).own.clean_end
    path.unlink()
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
        with pytest.raises(rmqstore.errors.StoreStateError):
            append(closed, messages("after", 3))
        return
    append(closed, messages("after", 3))
    assert len(walks) == 1


@pytest.mark.parametrize("lead", [0, 500, 5000])
def test_many_queues_are_checked_when_they_are_written_to(
    closed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lead: int
) -> None:
    stale_units(closed)
    find_store(closed).own.clean_end.unlink()
    checkpoint = (NOW + lead).to_bytes(8) * 3
    (closed / "checkpoint").write_bytes(checkpoint + bytes(4096 - len(checkpoint)))
    twin = Path(shutil.copytree(closed, tmp_path / "twin"))
    checked = []
    cut_queue = queue_files.cut_queue
    monkeypatch.setattr(
        queue_files,
        "cut_queue",
        lambda *args, **named: checked.append(1) or cut_queue(*args, **named),
    )
    monkeypatch.setattr(repairer, "_FEW_QUEUES", 0)
    append(closed, messages("after", 9))
    # Eight queues, of which four are written to; all are checked if the checkpoint knows more.
    assert len(checked) == (8 if lead else 4)
    append(twin, messages("after", 9), check_log=True)
    assert contents(closed) == contents(twin)


def test_a_long_log_without_an_index_is_not_indexed_on_opening(
    closed: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.rmtree(closed / "index")
    monkeypatch.setattr(repairer, "_SHORT_LOG", 1000)
    append(closed, messages("after", 3), check_log=True)
    assert "there is no index; keys are added from here on" in caplog.text
    with rmqstore.open(closed) as store:
        assert len(list(store.query("T", "after1"))) == 1
        assert len(list(store.query("T", "first1"))) == 1, "found in the log"


def test_a_store_that_cannot_be_marked_as_closed_does_not_fail_a_commit(
    closed: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    delete = Disk.delete

    def refuse_abort(disk: Disk, path: Path) -> None:
        if path == closed / "abort":
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        delete(disk, path)

    with monkeypatch.context() as patched:
        patched.setattr(Disk, "delete", refuse_abort)
        append(closed, messages("more", 3))
    assert "is not marked as closed" in caplog.text
    assert "all is committed" in caplog.text
    append(closed, messages("after", 3))
    assert count(closed) == 200 + 8 + 6
