"""Reads of the compacted logs of topics with ``cleanup.policy=COMPACTION``."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path

import pytest

import rmqstore
from connector.engine import Engine
from connector.sparkreads import load
from connector.streams import delivered, drain
from goldens import Golden
from mutations import overwrite
from rmqstore.errors import CorruptQueueError, OptionError, UnsupportedFeatureError
from rmqstore.inspect.counts import count_by_time
from rmqstore.inspect.verify import verify

UNIT = struct.Struct(">qiqqqhii")


@pytest.fixture
def root(copied: Golden) -> Path:
    """Return a store of the real 5.3.3; of its topic Prices it serves what served.json has."""
    return copied("compacted")


def served(root: Path) -> dict[int, list[tuple[int, bytes]]]:
    by_queue = json.loads((root / "served.json").read_text())
    return {
        int(queue_id): [(offset, body.encode()) for offset, body in rows]
        for queue_id, rows in by_queue.items()
    }


def found(store: rmqstore.MessageStore, **options: object) -> dict[int, list[tuple[int, bytes]]]:
    rows = store.scan(columns=["queueId", "queueOffset", "body"], **options).read_all().to_pylist()
    by_queue: dict[int, list[tuple[int, bytes]]] = {}
    for row in rows:
        by_queue.setdefault(row["queueId"], []).append((row["queueOffset"], row["body"]))
    return by_queue


def units(root: Path, queue_id: int = 0) -> Path:
    return max((root / "compaction" / "compactionCq" / "Prices" / str(queue_id)).iterdir())


def test_what_the_broker_serves_is_read(root: Path) -> None:
    expected = served(root)
    with rmqstore.open(root / "compaction") as store:
        assert store.topics() == ["Prices"]
        assert found(store) == expected
        assert store.count() == sum(map(len, expected.values()))
        assert str(store.parts.kind()).startswith("compacted logs in ")
        rows = {row["queueId"]: row for row in store.view("queues").read_all().to_pylist()}
        per_day = count_by_time([store], "day", {}).column("messages")
        assert sum(per_day.to_pylist()) == store.count()
        for queue_id, messages in expected.items():
            assert rows[queue_id]["messages"] == len(messages)
            assert rows[queue_id]["minOffset"] == messages[0][0]
            assert rows[queue_id]["maxOffset"] == messages[-1][0] + 1


def test_ranges_may_begin_and_end_between_messages(root: Path) -> None:
    expected = served(root)
    gap = next(at for at in range(expected[0][0][0], 1000) if at not in dict(expected[0]))
    with rmqstore.open(root / "compaction") as store:
        for start, end in ((0, 5), (0, gap), (gap, gap + 2), (gap, gap + 1), (gap - 1, gap + 1)):
            bounds = {
                "starting_offsets": {"Prices": {"0": start}},
                "ending_offsets": {"Prices": {"0": end}},
            }
            rows = [row for row in expected[0] if start <= row[0] < end]
            assert found(store, assign={"Prices": [0]}, **bounds).get(0, []) == rows
        assert found(store, last=3) == {queue: rows[-3:] for queue, rows in expected.items()}
        times = store.scan(columns=["queueId", "queueOffset", "storeTimestamp"]).read_all()
        time = times.filter(times["queueId"].to_numpy() == 0)["storeTimestamp"][7].as_py()
        late = found(store, assign={"Prices": [0]}, starting_timestamp=time)
        assert late[0][-1] == expected[0][-1]
        assert late[0][0][0] <= expected[0][7][0]
        some = store.scan(where="queueOffset >= 190 and keys = 'k1'").read_all()
        assert set(some["keys"].to_pylist()) == {"k1"}


def test_spark_reads_and_streams_them(engine: Engine, root: Path, tmp_path: Path) -> None:
    expected = sorted(row[0] for rows in served(root).values() for row in rows)
    folder = root / "compaction"
    rows = load(engine, folder, maxBytesPerPartition="500").collect()
    assert sorted(row.queueOffset for row in rows) == expected
    options = {"startingOffsets": '{"Prices": {"0": 3, "1": 3}}', "maxOffsetsPerTrigger": "20"}
    drain(engine, folder, tmp_path / "query", **options)
    streamed = delivered(engine, tmp_path / "query")
    assert sorted(offset for rows in streamed.values() for offset, _ in rows) == expected


def test_the_store_itself_says_where_they_are(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    with rmqstore.open(root) as store:
        assert len(found(store)[0]) > len(served(root)[0])
        assert f"open {root / 'compaction'} to read them" in caplog.text


def test_what_needs_the_log_of_the_broker_is_refused(root: Path) -> None:
    with rmqstore.open(root / "compaction") as store:
        for ask in (lambda: store.scan(scan="commitlog").read_all(), lambda: [*verify(store)]):
            with pytest.raises(UnsupportedFeatureError, match="compacted logs"):
                ask()
    with pytest.raises(OptionError, match=r"tiered: .*compacted logs"):
        rmqstore.open(root / "compaction", tiered=root)


def test_a_damaged_unit_is_found_and_left_out(root: Path) -> None:
    expected = served(root)[0]
    path = units(root)
    lost = UNIT.unpack_from(path.read_bytes(), UNIT.size)[4]
    overwrite(path, UNIT.size, bytes(UNIT.size))
    with rmqstore.open(root / "compaction") as store:
        with pytest.raises(CorruptQueueError, match=path.name):
            found(store)
        rest = found(store, mode="DROPMALFORMED")
        assert rest[0] == [row for row in expected if row[0] != lost]


def test_a_file_without_its_counterpart_is_named(root: Path) -> None:
    path = units(root)
    path.unlink()
    with rmqstore.open(root / "compaction") as store:
        with pytest.raises(CorruptQueueError, match="no file of the units with its name"):
            found(store)
        rest = found(store, mode="DROPMALFORMED")
        assert rest[1] == served(root)[1]
        assert set(rest.get(0, [])) < set(served(root)[0])


@pytest.mark.parametrize("seed", range(40))
def test_changed_bytes_give_no_wrong_message(root: Path, seed: int) -> None:
    chosen = random.Random(seed)
    data = bytearray(units(root).read_bytes())
    n_bytes = len(bytes(data).rstrip(b"\0"))
    for _ in range(chosen.choice([1, 4, 40])):
        at = chosen.randrange(n_bytes)
        data[at] = chosen.choice([0, 255, 127, data[at] ^ 1 << chosen.randrange(8)])
    units(root).write_bytes(data)
    expected = served(root)
    with rmqstore.open(root / "compaction") as store:
        rest = found(store, mode="DROPMALFORMED", fail_on_data_loss=False)
        assert rest[1] == expected[1]
        assert set(rest.get(0, [])) <= set(expected[0])
