"""What a writer refuses because an old broker may run on a store, or could not read a record."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import rmqstore
from goldens import Golden
from rmqstore.errors import OptionError, StoreStateError, UnsupportedFeatureError
from rmqstore.inspect.changes import planned_append, planned_rebuild
from rmqstore.write.messages import WriteSpec
from written import files_of

LONG = "%RETRY%" + "g" * 121  # 128 bytes: its length does not fit the byte of version 1
SMALL = rmqstore.StoreConfig(65536, 400, max_hash_slot_num=100, max_index_num=400)


def rows(topic: str, born_host: str = "10.0.0.1:1") -> pa.Table:
    return pa.table({"topic": [topic], "body": [b"x"], "bornHost": [born_host]})


def count(root: Path) -> int:
    with rmqstore.open(root) as store:
        return store.count(include_system_topics=True)


def append(root: Path, table: pa.Table, broker_version: str | None = None) -> None:
    spec = WriteSpec(broker_version=broker_version, allow_system_topics=True)
    with rmqstore.open(root, "a", spec=spec) as writer:
        writer.append(table)


@pytest.mark.parametrize(
    ("table", "number"),
    [(rows(LONG), "5.1"), (rows("T", "[2001:db8:0:0:0:0:0:1]:99"), "4.7")],
    ids=["topic", "host"],
)
@pytest.mark.parametrize("given", [None, "4.5.2"])
def test_a_record_that_the_broker_may_not_know_is_refused(
    copied: Golden, table: pa.Table, number: str, given: str | None
) -> None:
    old = copied("3.2.6-clean")
    before = count(old)
    with pytest.raises(UnsupportedFeatureError, match=f"broker_version={number}"):
        append(old, table, given)
    spec = WriteSpec(broker_version=given, allow_system_topics=True)
    with pytest.raises(UnsupportedFeatureError, match=f"broker_version={number}"):
        planned_append(old, table.to_batches(), spec)
    assert count(old) == before


def test_what_the_named_release_knows_is_written(copied: Golden) -> None:
    old = copied("v49")  # of 4.9.8
    before = count(old)
    append(old, rows("T", "[2001:db8:0:0:0:0:0:1]:99"), "4.9.8")
    append(old, rows(LONG), "5.3.3")
    append(old, rows(LONG))  # the newest record shows now that the broker knows it
    assert count(old) == before + 3


@pytest.mark.parametrize("name", ["v2", "v55-basic"])
def test_the_files_and_the_newest_records_show_a_broker_that_knows_long_topics(
    copied: Golden, name: str
) -> None:
    append(copied(name), rows(LONG))


def test_a_new_store_takes_every_record(tmp_path: Path) -> None:
    spec = WriteSpec(allow_system_topics=True)
    with rmqstore.create(tmp_path / "s", config=SMALL, spec=spec) as writer:
        writer.append(rows("T"))
        writer.flush()
        writer.append(rows(LONG, "[2001:db8:0:0:0:0:0:1]:99"))
    assert count(tmp_path / "s") == 2


def test_a_store_that_only_we_have_written_takes_every_record_later_too(tmp_path: Path) -> None:
    spec = WriteSpec(allow_system_topics=True)
    rmqstore.create(tmp_path / "s", config=SMALL, spec=spec).close()
    for _ in range(3):
        append(tmp_path / "s", rows("T"), "5.3.3")
    append(tmp_path / "s", pa.concat_tables([rows("T")] * 1000))
    append(tmp_path / "s", rows(LONG))
    assert count(tmp_path / "s") == 1004


@pytest.mark.parametrize("text", ["", "5", "five.one", "5.1-SNAPSHOT"])
def test_a_release_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match=r"broker_version.*release such as"):
        WriteSpec(broker_version=text)


@pytest.fixture
def unlocked(copied: Golden) -> Path:
    """Return a store as a running broker of 4.1 leaves it: with abort, without lock."""
    root = copied("3.2.6-clean")
    (root / "abort").touch()
    return root


def test_a_store_that_a_broker_without_a_lock_may_hold_is_refused_each_time(unlocked: Path) -> None:
    before = files_of(unlocked)
    for ask in (
        lambda: rmqstore.open(unlocked, "a"),
        lambda: rmqstore.open(unlocked, "a"),
        lambda: planned_rebuild(unlocked),
        lambda: planned_append(unlocked, [], WriteSpec()),
    ):
        with pytest.raises(StoreStateError, match="broker_stopped=True"):
            ask()
    assert files_of(unlocked) == before


def test_a_store_whose_broker_is_said_to_be_stopped_is_written(unlocked: Path) -> None:
    n_before = count(unlocked)
    with rmqstore.open(unlocked, "a", broker_stopped=True) as writer:
        writer.append(rows("T"))
    assert count(unlocked) == n_before + 1
    (unlocked / "abort").touch()  # the broker runs again, beside the lock file that we made
    with pytest.raises(StoreStateError, match="broker_stopped=True"):
        rmqstore.open(unlocked, "a")


def test_what_our_own_writer_left_open_is_taken_up(unlocked: Path) -> None:
    (unlocked / "abort").write_bytes(b"rmqstore 4711")
    rmqstore.open(unlocked, "a").close()
