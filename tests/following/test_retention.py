"""Old files of a copy: which ones go, what streams keep, and what follows from a gap."""

from __future__ import annotations

import copy
import json
import shutil
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import goldens
import rmqstore
from following.fake_master import FILE_BYTES, FakeMaster, log_of, more
from following.followers import (
    Following,
    copied,
    copying,
    follow_once,
    require_exact,
    wait_for,
)
from rmqstore.errors import OptionError, StoreStateError
from rmqstore.replica.retention import (
    OldFiles,
    Retention,
    delete_built_files,
    first_needed,
    new_begin,
    parse_retention,
)
from rmqstore.replica.state import copy_paths, follow_cluster_status, follow_status
from rmqstore.storage.broker.folders import find_store
from rmqstore.storage.files.disk import Disk
from rmqstore.storage.log.commitlog import CommitLog
from store_builder import Record, Store
from written import require_valid

CHECKPOINT_V1 = Path(__file__).parents[1] / "connector" / "checkpoint-v1"


def begin_of(target: Path) -> int:
    return min((int(path.name) for path in (target / "commitlog").glob("0*")), default=-1)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("forever", Retention()), (" Mirror ", Retention(is_mirror=True)), ([], Retention()),
        ("90m", Retention(max_age=90 * 60_000)), ("12h", Retention(max_age=12 * 3_600_000)),
        ("30d", Retention(max_age=30 * 86_400_000)), ("2w", Retention(max_age=14 * 86_400_000)),
        ("500GB", Retention(max_bytes=500 * 10**9)), ("2 TiB", Retention(max_bytes=2 << 40)),
        ("4096b", Retention(max_bytes=4096)),
        (["7d", "1GB"], Retention(max_age=7 * 86_400_000, max_bytes=10**9)),
    ],
)  # fmt: skip
def test_a_retention_is_read(value: str | list[str], expected: Retention) -> None:
    assert parse_retention(value) == expected


@pytest.mark.parametrize(
    "value",
    ["", "30", "0d", "-1d", "5x", "500G", "never", "1.5GB", "0GB", ["7d", "30d"], ["1GB", "2GB"]],
)
def test_what_is_not_a_retention_is_refused(value: str | list[str]) -> None:
    with pytest.raises(OptionError, match="retain"):
        parse_retention(value)


def test_a_mirror_keeps_a_file_of_which_the_broker_has_a_part(tmp_path: Path) -> None:
    with closing(CommitLog((log_of(600).write(tmp_path / "s") / "commitlog",))) as log:
        limit, mirror = log.max_offset, Retention(is_mirror=True)
        for begin in (1, FILE_BYTES - 1):
            assert new_begin(log, mirror, limit=limit, source_begin=begin) is None
        for begin in (FILE_BYTES, FILE_BYTES + 1):
            assert new_begin(log, mirror, limit=limit, source_begin=begin) == FILE_BYTES
        (tmp_path / "s" / "commitlog" / f"{FILE_BYTES:020d}").unlink()
        log.refresh()  # what lies before a gap is left alone
        assert new_begin(log, mirror, limit=limit, source_begin=FILE_BYTES) is None


def test_the_oldest_files_go_by_size_with_their_units_and_items(tmp_path: Path) -> None:
    target, log = tmp_path / "copy", log_of(2000)
    with copying(log, target, retention=Retention(max_bytes=3 * FILE_BYTES)) as (master, run):
        wait_for(lambda: run.follower.progress().queues_end == log.end)
        wait_for(lambda: len(list((target / "commitlog").iterdir())) == 3)
        before = len(list((target / "consumequeue").rglob("0*")))
        more(log, 2000)
        wait_for(lambda: run.follower.progress().queues_end == log.end)
        wait_for(lambda: len(list((target / "commitlog").iterdir())) == 3)
        with rmqstore.open(target) as store:
            assert store.scan().read_all().num_rows > 0
    begin = log.end - log.end % FILE_BYTES - 2 * FILE_BYTES
    require_exact(target, log, begin)
    # Each of three queues holds 2,000 bytes of units in a file, and the index 400 items.
    assert len(list((target / "consumequeue").rglob("0*"))) <= before + 3
    assert len(list((target / "index").iterdir())) <= 3
    assert follow_status(target)[0].begin == begin
    with FakeMaster(log) as master:
        more(log, 100)
        follow_once(master, target)
    require_exact(target, log, begin)


def test_the_newest_file_of_queues_and_index_stays(
    golden_store: goldens.Golden, tmp_path: Path
) -> None:
    """A starting broker goes on from them: a queue without a file would begin at 0 again."""
    root = Path(shutil.copytree(golden_store("basic"), tmp_path / "s"))
    folders = [root / "index", *(root / "consumequeue").glob("*/*")]
    newest = {folder: max(folder.iterdir()) for folder in folders}
    assert len(list((root / "index").iterdir())) > 1
    delete_built_files(Disk(), find_store(root), 1 << 40)
    assert {folder: [*folder.iterdir()] for folder in folders} == {
        folder: [path] for folder, path in newest.items()
    }


def test_files_go_by_age_when_all_of_their_messages_are_old(tmp_path: Path) -> None:
    target, log = tmp_path / "copy", log_of(300)
    now = int(time.time() * 1000)
    n_old = log.end
    more(log, 300, time_ms=now - 1_700_000_000_000)
    copied(log, target, retention=Retention(max_age=3_600_000))
    begin = n_old - n_old % FILE_BYTES
    assert 0 < begin < log.end
    require_exact(target, log, begin)


def test_new_files_stay_if_the_clock_of_the_broker_was_set_back_for_a_moment(
    tmp_path: Path,
) -> None:
    target, log = tmp_path / "copy", Store(segment_bytes=FILE_BYTES)
    places = [at.physical_offset for at in log_of(300).placed]
    first = places.index(FILE_BYTES)  # the first record of the second file
    now = int(time.time() * 1000) - 1_700_000_000_000
    more(log, first, time_ms=now)
    more(log, 1, time_ms=1)
    more(log, 300 - first, time_ms=now)
    assert log.placed[first].physical_offset == FILE_BYTES
    copied(log, target, retention=Retention(max_age=3_600_000))
    assert begin_of(target) == 0


def test_files_go_with_those_of_the_broker(tmp_path: Path) -> None:
    target, log = tmp_path / "copy", log_of(600)
    with copying(log, target, retention=Retention(is_mirror=True)) as (master, run):
        wait_for(lambda: run.follower.progress().queues_end == log.end)
        assert begin_of(target) == 0
        master.low = 2 * FILE_BYTES
        wait_for(lambda: begin_of(target) == 2 * FILE_BYTES)
    require_exact(target, log, master.low)


def test_the_last_file_stays_whatever_is_asked_for(tmp_path: Path) -> None:
    target, log = tmp_path / "copy", log_of(600)
    copied(log, target, retention=Retention(max_age=1, max_bytes=1, is_mirror=True))
    assert begin_of(target) == log.end - log.end % FILE_BYTES


def keeping(checkpoint: Path) -> dict[str, Any]:
    return {"retention": Retention(max_bytes=FILE_BYTES), "keep_for": (checkpoint,)}


class Checkpoint:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.copytree(CHECKPOINT_V1, folder)
        self._number = 0

    def commit(self, log: Store, done: dict[int, int], mark: int) -> None:
        """Write a batch that ends at queue offsets by queue id, when a record was the newest."""
        self._number += 1
        queues = {"T": {"b": {str(each): offset for each, offset in done.items()}}}
        newest = {"physicalOffset": log.placed[mark].physical_offset, "storeTimestamp": 1}
        head = (CHECKPOINT_V1 / "offsets" / "0").read_text().split("\n")[:2]
        offset = json.dumps({"version": 1, "queues": queues, "log": {"b": newest}})
        text = "\n".join([*head, "-", offset])
        (self.folder / "offsets" / str(self._number)).write_text(text)
        (self.folder / "commits" / str(self._number)).write_text("v1\n{}")


def test_what_a_stream_has_not_read_stays(tmp_path: Path) -> None:
    target, log = tmp_path / "copy", log_of(1200)
    checkpoint = Checkpoint(tmp_path / "checkpoint")
    # 200 messages of each of the three queues are read, and those of queue 2 less far.
    checkpoint.commit(log, {0: 200, 1: 200, 2: 150}, 1199)
    settings = keeping(checkpoint.folder)
    needed = log.placed[150 * 3 + 2].physical_offset
    with copying(log, target, **settings) as (_, run):
        wait_for(lambda: begin_of(target) == needed - needed % FILE_BYTES)
        checkpoint.commit(log, {0: 400, 1: 400, 2: 400}, 900)
        last = log.end - log.end % FILE_BYTES
        wait_for(lambda: begin_of(target) == last)
        assert run.is_alive()
    require_valid(target)


def test_the_queue_that_is_read_least_says_what_a_stream_needs(tmp_path: Path) -> None:
    log, checkpoint = log_of(600), Checkpoint(tmp_path / "checkpoint")
    paths = find_store(log.write(tmp_path / "s"))
    for least in range(3):
        checkpoint.commit(log, {0: 100, 1: 100, 2: 100} | {least: 50}, 599)
        needed = first_needed(checkpoint.folder, paths, {"b"}, log.end)
        assert needed == log.placed[50 * 3 + least].physical_offset


def test_a_queue_that_a_query_could_not_know_stays(tmp_path: Path) -> None:
    target, log = tmp_path / "copy", log_of(600)
    checkpoint = Checkpoint(tmp_path / "checkpoint")
    checkpoint.commit(log, {0: 200, 1: 200}, 599)  # queue 2 is older than the newest record
    log.append(Record(topic="New", body=b"1", store_timestamp=1_700_000_009_000))
    needed = log.placed[-1].physical_offset
    more(log, 600)
    checkpoint.commit(log, {0: 400, 1: 400}, 599)
    settings = keeping(checkpoint.folder)
    with FakeMaster(log) as master:
        follow_once(master, target, **settings)
        assert begin_of(target) == needed - needed % FILE_BYTES
        checkpoint.commit(log, {0: 400, 1: 400}, 1200)
        follow_once(master, target, **settings)
        assert begin_of(target) == log.end - log.end % FILE_BYTES


def test_nothing_is_deleted_while_a_checkpoint_does_not_tell_and_that_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    target, log = tmp_path / "copy", log_of(600)
    with copying(log, target, **keeping(tmp_path / "none")) as (_, run):
        wait_for(lambda: "nothing is deleted" in caplog.text)
        run.stop.wait(0.5)  # it is looked at every 0.05 seconds
    assert caplog.text.count("nothing is deleted") == 1
    assert begin_of(target) == 0


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (None, "is missing"), (b"v1\n{}\n{", "damaged"), (b"\xff", "damaged"),
        (b"v1\n{}\n-", "no offset of"),
        (b'v1\n{}\n{"version": 2, "queues": {}, "log": {}}', "version 2"),
        (b'v1\n{}\n{"version": 1, "queues": {"T": 1}, "log": {"b": {"physicalOffset": 1}}}',
         "damaged"),
        (b"no batch", "no committed batch"),
    ],
)  # fmt: skip
def test_a_checkpoint_that_does_not_tell_is_an_error(
    content: bytes | None, match: str, tmp_path: Path
) -> None:
    log = log_of(100)
    copied(log, tmp_path / "copy")
    checkpoint = Checkpoint(tmp_path / "checkpoint")
    checkpoint.commit(log, {0: 1}, 5)
    paths = copy_paths(tmp_path / "copy")
    assert first_needed(checkpoint.folder, paths, {"b"}, log.end) == log.placed[3].physical_offset
    (checkpoint.folder / "offsets" / "1").unlink()
    if content is not None:
        (checkpoint.folder / "offsets" / "1").write_bytes(content)
    if content == b"no batch":
        shutil.rmtree(checkpoint.folder / "commits")
    with pytest.raises(StoreStateError, match=match):
        first_needed(checkpoint.folder, paths, {"b"}, log.end)
    old_files = OldFiles(Retention(is_mirror=True), [checkpoint.folder])
    with closing(CommitLog(paths.commitlogs)) as log_copy:
        assert old_files.find(paths, log_copy, "b", log.end, FILE_BYTES) == (0, FILE_BYTES, 0)


def test_offsets_of_a_later_layout_of_spark_are_read(tmp_path: Path) -> None:
    log = log_of(10)
    copied(log, tmp_path / "copy")
    checkpoint = Checkpoint(tmp_path / "checkpoint")
    checkpoint.commit(log, {0: 2}, 9)
    path = checkpoint.folder / "offsets" / "1"
    lines = path.read_text().split("\n")
    path.write_text("\n".join(["v2", lines[1], f"0:{lines[3]}"]))
    paths = copy_paths(tmp_path / "copy")
    assert first_needed(checkpoint.folder, paths, {"b"}, log.end) == log.placed[6].physical_offset


def test_keeping_needs_a_retention(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="keep_for"):
        rmqstore.follow("h:1", tmp_path / "copy", keep_for=[tmp_path])


def test_after_a_gap_a_new_copy_begins_and_the_old_one_is_kept(tmp_path: Path) -> None:
    target, log = tmp_path / "copy", log_of(300)
    with FakeMaster(log) as master:
        follow_once(master, target)
        old, end = copy.deepcopy(log), log.end
        more(log, 900)
        master.low = 4 * FILE_BYTES
        with pytest.raises(StoreStateError, match="gap"):
            follow_once(master, target)
        done = follow_once(master, target, on_gap="restart")
        assert (done.begin, done.end) == (master.low, log.end)
        require_exact(target, log, master.low)
        require_exact(tmp_path / f"copy.until-{end}", old)
        with Following(master.address, target, on_gap="restart") as run:
            wait_for(lambda: run.follower.progress().end == log.end)
            more(log, 10)
            wait_for(lambda: run.follower.progress().queues_end == log.end)
    require_exact(target, log, master.low)
    assert set(follow_cluster_status(tmp_path)) == {"copy", f"copy.until-{end}"}


def test_a_new_copy_may_begin_with_the_file_that_holds_an_offset(tmp_path: Path) -> None:
    log = log_of(600)
    with FakeMaster(log) as master:
        done = follow_once(master, tmp_path / "copy", start=2 * FILE_BYTES + 77)
        assert done.begin == 2 * FILE_BYTES
        master.low = FILE_BYTES
        for start in (FILE_BYTES - 1, log.end + 1):
            with pytest.raises(OptionError, match=f"start {start}: the log of the broker is from"):
                follow_once(master, tmp_path / "other", start=start)
    require_exact(tmp_path / "copy", log, 2 * FILE_BYTES)


def test_the_offset_where_a_new_copy_began_may_be_deleted_later(tmp_path: Path) -> None:
    target, log = tmp_path / "copy", log_of(300)
    start = FILE_BYTES + 77
    with FakeMaster(log) as master:
        follow_once(master, target, start=start)
        more(log, 300)
        master.low = 2 * FILE_BYTES
        done = follow_once(master, target, start=start)
        assert (done.begin, done.end) == (FILE_BYTES, log.end)
        require_exact(target, log, FILE_BYTES)
        more(log, 900)
        master.low = log.end - log.end % FILE_BYTES
        done = follow_once(master, target, start=start, on_gap="restart")
        assert (done.begin, done.end) == (master.low, log.end)
    require_exact(target, log, master.low)


class SlowMaster(FakeMaster):
    def frame(self, place: int, body: bytes) -> bytes:
        time.sleep(0.01)
        return super().frame(place, body)


def test_a_connected_follower_that_retention_overtakes_says_so(tmp_path: Path) -> None:
    with SlowMaster(log_of(1000), batch=1000) as master:
        run = Following(master.address, tmp_path / "copy")
        wait_for(lambda: run.follower.progress().end > 0)
        master.low = 4 * FILE_BYTES
        with pytest.raises(StoreStateError, match="the copy cannot continue without a gap"):
            run.wait()
    require_valid(tmp_path / "copy")


def test_a_connected_follower_that_retention_overtakes_may_begin_again(tmp_path: Path) -> None:
    log, target = log_of(1000), tmp_path / "copy"
    with SlowMaster(log, batch=1000) as master:
        with Following(master.address, target, on_gap="restart") as run:
            wait_for(lambda: run.follower.progress().end > 0)
            master.low = 4 * FILE_BYTES
            wait_for(lambda: run.follower.progress().end == log.end)
        require_exact(target, log, 4 * FILE_BYTES)
    assert len(list(tmp_path.glob("copy.until-*"))) == 1


def test_a_broker_that_sends_heartbeats_instead_of_its_log_is_left(tmp_path: Path) -> None:
    log = log_of(100)
    with copying(log, tmp_path / "copy") as (master, run):
        wait_for(lambda: run.follower.progress().end == log.end)
        master.is_slow = True
        more(log, 10)
        wait_for(lambda: len(master.reports) > 1)
        master.is_slow = False
        wait_for(lambda: run.follower.progress().end == log.end)


@pytest.mark.parametrize("low", [1, FILE_BYTES - 1, FILE_BYTES + 8])
def test_a_log_that_begins_inside_a_file_is_not_copied(low: int, tmp_path: Path) -> None:
    with FakeMaster(log_of(300)) as master:
        master.low = low
        with pytest.raises(StoreStateError, match="where no file of"):
            follow_once(master, tmp_path / "copy")
