"""Masters that send anything: the copy stays valid, nothing hangs, and memory stays bounded."""

from __future__ import annotations

import itertools
import random
import struct
import threading
import tracemalloc
from contextlib import suppress
from pathlib import Path

import pytest

import rmqstore
import tiers
from following.fake_master import FILE_BYTES, FakeMaster, content, log_of, more
from following.followers import (
    Following,
    files,
    follow_once,
    mangler,
    require_exact,
    require_survival,
    wait_for,
)
from rmqstore.errors import CorruptRecordError, RmqStoreError
from rmqstore.replica import follower
from rmqstore.replica.ha import MAX_BODY_BYTES
from store_builder import BLANK, Record, Store, pack


def with_wrong_header(dice: random.Random, frame: bytes) -> list[bytes]:
    place, size = struct.unpack_from(">qi", frame)
    places, sizes = (
        [-1, 0, place + 1, place - 1, 1 << 62],
        [-1, -(1 << 31), (1 << 31) - 1, size + 1],
    )
    return [
        struct.pack(">qi", dice.choice(places), size) + frame[12:],
        struct.pack(">qi", place, dice.choice(sizes)) + frame[12:],
        struct.pack(">qi", place, 0) * dice.randrange(50) + frame,
    ]


@pytest.mark.parametrize("seed", tiers.split(range(30), 5))
def test_mangled_headers_delay_a_copy_and_do_not_damage_it(seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    log, target = log_of(300), tmp_path / "copy"
    with FakeMaster(log, batch=1000) as master:
        master.mangle = mangler(dice, with_wrong_header)
        require_survival(master, target)
        master.mangle = lambda frame: frame
        follow_once(master, target)
    require_exact(target, log)


@pytest.mark.parametrize("seed", tiers.split(range(60), 8))
def test_other_bytes_than_records_end_a_copy_with_what_is_whole(seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    log, target = log_of(200), tmp_path / "copy"
    for _ in range(dice.randint(1, 3)):
        place = dice.randrange(log.end - 40)
        start = place - place % FILE_BYTES
        length = min(dice.choice([1, 4, 40]), start + FILE_BYTES - place)
        log.put(place, dice.randbytes(length))
    with FakeMaster(log) as master, suppress(RmqStoreError):
        follow_once(master, target)
    end = max(
        (int(name) + len(data.rstrip(b"\0")) for name, data in files(target).items()), default=0
    )
    for name, data in files(target).items():
        assert len(data) == FILE_BYTES
        size = max(min(end - int(name), FILE_BYTES), 0)
        assert data[:size] == content(log)[name][:size]
    assert not (target / "abort").exists()
    with rmqstore.open(target) as store:
        store.scan(mode="DROPMALFORMED", scan="commitlog").read_all()


@pytest.mark.parametrize(
    "head",
    [
        struct.pack(">iI", 0, 0), struct.pack(">iI", 1 << 30, 0xDAA320A7),
        struct.pack(">iI", -5, 0xDAA320A7), struct.pack(">iI", 90, 0xDAA320A7)[:7] + b"\0",
        struct.pack(">iI", 1 << 20, BLANK), struct.pack(">iI", 4, BLANK),
        pack(Record(physical_offset=5), 0), b"\xff" * 100,
    ],
)  # fmt: skip
def test_a_first_record_that_cannot_be_is_refused(head: bytes, tmp_path: Path) -> None:
    log = Store(segment_bytes=FILE_BYTES)
    log.put(0, head + b"x" * 500)
    log.end = len(head) + 500
    with FakeMaster(log) as master, pytest.raises(RmqStoreError):
        follow_once(master, tmp_path / "copy")
    assert not any(data.strip(b"\0") for data in files(tmp_path / "copy").values())


def test_a_master_that_sends_without_an_end_takes_bounded_memory(tmp_path: Path) -> None:
    """Bodies as long as they may be, records that never end, and heartbeats without a pause."""
    log = Store(segment_bytes=1 << 26)
    record = struct.pack(">iI", (16 << 20) - 1, 0xDAA320A7)
    frame = struct.pack(">qi", 0, MAX_BODY_BYTES) + record + bytes(MAX_BODY_BYTES - 8)
    beats = struct.pack(">qi", MAX_BODY_BYTES, 0) * 10_000
    log.put(0, record)
    log.end = 8
    with FakeMaster(log) as master:
        sent = itertools.chain([frame], itertools.repeat(beats, 100))
        master.mangle = lambda _: next(sent, b"")
        run = Following(master.address, tmp_path / "copy")
        tracemalloc.start()
        wait_for(lambda: run.error is not None or len(master.reports) > 1)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        with suppress(RmqStoreError):
            run.end()
    assert peak < 120 << 20  # the master's own copies of the frame are among these


@pytest.mark.parametrize("says", [b"", b"\0" * 11, struct.pack(">qi", 0, 100)])
def test_a_master_that_falls_silent_is_left_and_asked_again(says: bytes, tmp_path: Path) -> None:
    log = log_of(50)
    is_silent = threading.Event()
    is_silent.set()
    said: set[int] = set()

    def mangle(frame: bytes) -> bytes:
        if not is_silent.is_set():
            return frame
        is_first = len(master.reports) not in said
        said.add(len(master.reports))
        return says if is_first else b""

    with FakeMaster(log) as master:
        master.heartbeat = 3600
        master.mangle = mangle
        run = Following(master.address, tmp_path / "copy")
        wait_for(lambda: len(master.reports) > 2)
        is_silent.clear()
        wait_for(lambda: run.follower.progress().queues_end == log.end)
        run.end()
    require_exact(tmp_path / "copy", log)
    # Nothing is reported before a header has come: a broker may take it for something else.
    assert [len(reports) for reports in master.reports[:2] if len(says) < 12] in ([], [1, 1])


@pytest.mark.parametrize(
    ("size", "text"), [(FILE_BYTES // 2, "are left"), (2 * FILE_BYTES, "a blank of")]
)
def test_a_wrong_size_of_files_is_found(size: int, text: str, tmp_path: Path) -> None:
    with FakeMaster(log_of(500)) as master:
        master.settings["mappedFileSizeCommitLog"] = str(size)
        with pytest.raises(CorruptRecordError, match=text):
            follow_once(master, tmp_path / "copy")


def test_an_unexpected_error_of_the_questions_ends_the_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("unexpected")

    monkeypatch.setattr(follower, "BrokerClient", fail)
    with FakeMaster(log_of(50)) as master:
        run = Following(master.address, tmp_path / "copy")
        with pytest.raises(RuntimeError, match="unexpected"):
            run.wait()
    assert not run.is_alive()


def test_a_copy_whose_last_record_has_an_impossible_time_is_resumed(tmp_path: Path) -> None:
    log, target = log_of(50), tmp_path / "copy"
    log.append(Record(store_timestamp=1 << 62))
    with FakeMaster(log) as master:
        follow_once(master, target)
        more(log, 20)
        done = follow_once(master, target)
    assert done.end == log.end
    for name, data in content(log).items():
        assert files(target)[name] == data
