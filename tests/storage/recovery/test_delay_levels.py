"""A broker's own messageDelayLevel decides times of delivery, where units are made or checked."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import pyarrow as pa
import pytest

import rmqstore
from goldens import Golden
from rmqstore.errors import OptionError, StoreStateError
from rmqstore.format.layout import DELAY_LEVELS_MS, SCHEDULE_TOPIC
from rmqstore.inspect.changes import planned_rebuild
from rmqstore.inspect.verify import verify
from rmqstore.storage.broker.store_config import StoreConfig, format_levels
from rmqstore.write.messages import WriteSpec
from written import require_valid

DOUBLED = "2s 10s 20s 1m 2m 4m 6m 8m 10m 12m 14m 16m 18m 20m 40m 1h 2h 4h"
UNIT = struct.Struct(">qiq")


@pytest.fixture
def root(copied: Golden) -> Path:
    """Return a store whose delayed messages have the times of a broker with doubled delays."""
    root = copied("live")
    for file in units(root):
        data = bytearray(file.read_bytes())
        level = int(file.parent.name) + 1
        for position in range(0, len(data), UNIT.size):
            place, size, due = UNIT.unpack_from(data, position)
            if size:
                UNIT.pack_into(data, position, place, size, due + DELAY_LEVELS_MS[level - 1])
        file.write_bytes(data)
    return root


def units(root: Path) -> list[Path]:
    return sorted((root / "consumequeue" / SCHEDULE_TOPIC).glob("*/*"))


def stored_units(root: Path) -> list[bytes]:
    return [file.read_bytes() for file in units(root)]


@pytest.fixture
def conf(root: Path, tmp_path: Path) -> Path:
    file = tmp_path / "broker.conf"
    file.write_text(f"storePathRootDir={root}\nmessageDelayLevel={DOUBLED}\n")
    return file


def test_a_table_is_read_as_the_broker_reads_it() -> None:
    config = StoreConfig().updated({"messageDelayLevel": "1s 90s 3m 2h 1d"})
    assert config.delay_levels == (1000, 90_000, 180_000, 7_200_000, 86_400_000)
    doubled = StoreConfig().updated({"messageDelayLevel": DOUBLED}).delay_levels
    assert doubled == tuple(2 * delay for delay in DELAY_LEVELS_MS)
    usual = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    assert format_levels(DELAY_LEVELS_MS) == usual


@pytest.mark.parametrize("text", ["", "1s  5s", "1", "s", "-1s", "1w", "1s,5s", "9" * 30 + "d"])
def test_what_is_no_table_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="messageDelayLevel"):
        StoreConfig().updated({"messageDelayLevel": text})


def test_with_the_brokers_file_the_store_is_valid_and_a_rebuild_changes_no_time(
    root: Path, conf: Path
) -> None:
    before = stored_units(root)
    with rmqstore.open(conf=conf) as store:
        assert list(verify(store)) == []
    with rmqstore.open(None, "a", conf=conf) as writer:
        assert writer.rebuild() == []
    assert stored_units(root) == before


def test_without_it_verify_says_so_once_and_a_rebuild_refuses_to_guess(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    require_valid(root)
    (said,) = caplog.messages
    assert "another messageDelayLevel than RocketMQ's usual one" in said
    assert "4m 6m 8m" in said
    before = stored_units(root)
    with (
        rmqstore.open(root, "a") as writer,
        pytest.raises(StoreStateError, match=r"table of levels.*conf"),
    ):
        writer.rebuild()
    with pytest.raises(StoreStateError, match=r"table of levels.*conf"):
        planned_rebuild(root)
    assert stored_units(root) == before


def test_one_wrong_time_among_others_is_damage(root: Path) -> None:
    file = units(root)[0]
    place, size, due = UNIT.unpack_from(file.read_bytes())
    with file.open("r+b") as opened:
        opened.write(UNIT.pack(place, size, due + 60_000))
    with rmqstore.open(root) as store:
        found = list(verify(store))
    assert [one.place for one in found] == [f"{SCHEDULE_TOPIC}-{file.parent.name}"]


def test_delayed_messages_are_appended_by_the_brokers_table_and_refused_without_it(
    root: Path, conf: Path
) -> None:
    delayed = pa.table(
        {"topic": ["T"], "body": [b"x"], "delayTimeLevel": pa.array([99], pa.int32())}
    )
    plain = pa.table({"topic": ["T"], "body": [b"x"]})
    with rmqstore.open(root, "a") as writer:
        writer.append(plain)
        with pytest.raises(StoreStateError, match=r"delayed messages need.*conf"):
            writer.append(delayed)
    with rmqstore.open(None, "a", conf=conf, spec=WriteSpec()) as writer:
        writer.append(delayed)
    with rmqstore.open(conf=conf) as store:
        assert list(verify(store)) == []
        rows = store.scan(include_pending=True, subscribe="T").read_all().to_pylist()
    (pending,) = (row for row in rows if row["pending"] == "delay")
    delay = pending["dueTimestamp"] - pending["storeTimestamp"]
    assert delay.total_seconds() == 4 * 3600


def test_units_that_the_files_lack_get_times_by_the_brokers_table(root: Path, conf: Path) -> None:
    def pending() -> list[dict[str, object]]:
        with rmqstore.open(conf=conf) as store:
            scan = store.scan(include_pending=True, columns=["dueTimestamp", "body"])
            return [row for row in scan.read_all().to_pylist() if row["dueTimestamp"]]

    before = pending()
    assert before
    shutil.rmtree(root / "consumequeue")
    (root / "abort").touch()
    assert pending() == before


def test_what_lacks_no_delayed_message_is_repaired_and_copied_without_the_table(
    root: Path, tmp_path: Path
) -> None:
    before = stored_units(root)
    shutil.rmtree(root / "index")
    (root / "abort").touch()
    rmqstore.copy(root, tmp_path / "copied")
    with rmqstore.open(root, "a", config=StoreConfig()) as writer:
        writer.append(pa.table({"topic": ["T"], "body": [b"x"]}))
    assert stored_units(root) == before
    require_valid(root)


def test_a_delayed_message_without_a_unit_is_not_repaired_by_a_guess(root: Path) -> None:
    newest = units(root)[-1]
    data = newest.read_bytes()
    n_units = sum(1 for at in range(0, len(data), UNIT.size) if UNIT.unpack_from(data, at)[1])
    assert n_units
    last = (n_units - 1) * UNIT.size
    newest.write_bytes(data[:last] + bytes(len(data) - last))
    (root / "abort").touch()
    (root / "checkpoint").unlink()
    with pytest.raises(StoreStateError, match=r"delayed messages need.*conf"):
        rmqstore.open(root, "a")
