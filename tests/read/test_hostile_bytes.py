"""Any byte changed, any file cut: a read raises an error with a path or returns right messages.

The judge here knows the format by itself (struct), the damage by comparing bytes, and nothing of
the code under test.
"""

from __future__ import annotations

import random
import re
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import rmqstore
import store_builder as build
import tiers
from reading import plain, time_limit
from rmqstore import CorruptConfigError, RmqStoreError

SEGMENT, UNITS = 2048, 8
SECONDS = 10
MODES = ("FAILFAST", "DROPMALFORMED", "PERMISSIVE")
SCANS = ("queue", "commitlog")
COLUMNS = [
    "topic", "queueId", "queueOffset", "body", "tags", "keys", "msgId", "properties",
    "bornTimestamp", "storeTimestamp", "bornHost", "storeHost", "flag", "sysFlag", "reconsumeTimes",
    "bodyCRC", "preparedTransactionOffset", "commitLogOffset", "storeSize", "brokerName",
    "offsetMsgId",
]  # fmt: skip


def _build() -> tuple[build.Store, dict[int, bytes]]:
    """Return a store of three log files and four queues, and the sent bodies by physical offset."""
    rng = random.Random(7)
    store, bodies = build.Store(SEGMENT, UNITS), {}
    for number in range(38):
        body = rng.choice((b"", rng.randbytes(rng.randrange(60)), b"words " * rng.randrange(1, 9)))
        packed = number % 5 == 0
        record = build.Record(
            topic=("A", "A", "A", "Long" * 5)[number % 4],
            queue_id=(0, 0, 1)[number % 3],
            body=zlib.compress(body) if packed else body,
            properties=build.properties(
                {"TAGS": "x", "UNIQ_KEY": f"{number:04X}"}, last_separator=number % 2 == 0
            ),
            sys_flag=build.COMPRESSED if packed else 0,
            store_timestamp=build.T0 + 700 * number,
            born_host=build.HOST_V6 if number % 7 == 3 else build.HOST,
            store_host=build.HOST_V6 if number % 9 == 4 else build.HOST,
            magic=build.V2 if number % 4 == 3 else build.V1,
            prop_crc=number % 6 == 2,
        )
        at = store.append(record, queued=number % 11 != 5, tags="x")
        bodies[at.physical_offset] = body
    assert len(store.segments) == 3
    return store, bodies


@dataclass(slots=True)
class Judge:
    """The store as it was, and what a read of a damaged one may say."""

    root: Path
    store: build.Store
    bodies: dict[int, bytes]
    abort: bool

    def log(self) -> bytes:
        """Return the log as it is now, zeros where a file ends early or is missing."""
        paths = [self.root / "commitlog" / f"{start:020d}" for start in self.store.segments]
        return b"".join(
            (path.read_bytes()[:SEGMENT] if path.exists() else b"").ljust(SEGMENT, b"\0")
            for path in paths
        )

    def units(self) -> dict[tuple[str, int, int], bytes]:
        """Return the units as they are now, by topic, queue and number."""
        found = {}
        for topic, queue_id in self.store.queues:
            for path in (self.root / "consumequeue" / topic / str(queue_id)).iterdir():
                data = path.read_bytes()[: UNITS * 20]
                for at in range(0, len(data) // 20 * 20, 20):
                    found[topic, queue_id, (int(path.name) + at) // 20] = data[at : at + 20]
        return found

    def complaints(self) -> list[str]:
        """Read the store in all ways and return what is wrong with the answers."""
        return [
            f"{scan}, {mode}: {text}"
            for scan in SCANS
            for mode in MODES
            for text in self._complaints(scan, mode)
        ]

    def _complaints(self, scan: str, mode: str) -> list[str]:
        options: dict[str, Any] = {"scan": scan, "mode": mode, "columns": COLUMNS}
        if mode != "FAILFAST":
            options["fail_on_data_loss"] = False
        try:
            with time_limit(SECONDS), rmqstore.open(self.root) as store:
                rows = [plain(row) for row in store.scan(**options).read_all().to_pylist()]
        except CorruptConfigError as err:
            return [] if str(self.root) in str(err) else [f"names no path: {err!r}"]
        except RmqStoreError as err:
            if mode != "FAILFAST":
                return [f"escaped: {err!r}"]
            return [] if str(self.root) in str(err) else [f"names no path: {err!r}"]
        except Exception as err:  # noqa: BLE001 - what else may come is the question
            return [f"foreign: {type(err).__name__}: {err}"]
        return self._judge_rows(rows, scan)

    def _judge_rows(self, rows: list[dict[str, Any]], scan: str) -> list[str]:
        log, units = self.log(), self.units()
        good = [row for row in rows if _is_whole(row)]
        wrong = [
            f"corrupt row names no path: {row}"
            for row in rows
            if not _is_whole(row) and str(self.root) not in row["_corrupt_record"]
        ]
        for row in good:
            wrong += self._judge_message(row, log, units if scan == "queue" else None)
        got = [
            (row["topic"], row["queueId"], row["queueOffset"], row["commitLogOffset"])
            for row in good
        ]
        if len(set(got)) < len(got):
            wrong.append("a message twice")
        if scan == "commitlog" and [row[3] for row in got] != sorted(row[3] for row in got):
            wrong.append("not in the order of the log")
        lost = self._must_be_there(log, units if scan == "queue" else None) - {
            row[3] for row in got
        }
        if lost:
            wrong.append(f"undamaged, but missing: {sorted(lost)}")
        return wrong

    def _judge_message(
        self, row: dict[str, Any], log: bytes, units: dict[tuple[str, int, int], bytes] | None
    ) -> list[str]:
        at, size = row["commitLogOffset"], row["storeSize"]
        record = log[at : at + size]
        if len(record) < 91:
            return [f"not in the log: {row}"]
        stored_size, magic, crc, queue_id, _, queue_offset, place, sys_flag, born_at = (
            struct.unpack_from(">iIiiiqqIq", record)
        )
        hosts = 12 * ((sys_flag >> 4 & 1) + (sys_flag >> 5 & 1))
        (body_length,) = struct.unpack_from(">i", record, 84 + hosts)
        body = record[88 + hosts : 88 + hosts + body_length]
        facts = {
            "size": stored_size == size,
            "magic": magic in (build.V1, build.V2),
            "place": place == at,
            "body": build.body_crc(body) == crc == row["bodyCRC"],
            "queue": (queue_id, queue_offset) == (row["queueId"], row["queueOffset"]),
        }
        if row.get("_corrupt_record") is not None:
            is_said = row["_corrupt_record"].endswith(f": {born_at} ms")
            facts["born time"] = row["bornTimestamp"] is None and is_said
        if units is not None:
            facts["queue"] = queue_id == row["queueId"]  # the place of the unit decides the rest
            unit = units.get((row["topic"], row["queueId"], row["queueOffset"]), b"")
            # Units that a queue lacks are taken from the log: after the end of its files, and where
            # a crash may have damaged it.
            is_recovered = self.abort or not unit.strip(b"\0")
            facts["unit"] = unit[:12] == struct.pack(">qi", at, size) or is_recovered
        placed = next((known for known in self.store.placed if known.physical_offset == at), None)
        if placed is not None and record == build.pack(placed.record, at):
            facts |= self._facts_of_undamaged(row, placed)
        return [f"{name} is wrong in {row}" for name, holds in facts.items() if not holds]

    def _facts_of_undamaged(self, row: dict[str, Any], placed: build.Placed) -> dict[str, bool]:
        record = placed.record
        pairs = dict(
            part.split("\x01") for part in record.properties.decode().split("\x02") if part
        )
        found = {name: value for name, value in row["properties"].items() if name != "__CRC32#"}
        return {
            "sent body": row["body"] == self.bodies[placed.physical_offset],
            "properties": found == pairs,
            "topic": row["topic"] == record.topic,
            "queue id": row["queueId"] == record.queue_id,
            # A broker appends a record with queue offset 0 to any queue.
            "queue offset": record.queue_offset in (0, row["queueOffset"]),
            "msgId": row["msgId"] == pairs["UNIQ_KEY"],
            "times": (row["bornTimestamp"], row["storeTimestamp"])
            == (record.born_timestamp, record.store_timestamp),
        }

    def _must_be_there(
        self, log: bytes, units: dict[tuple[str, int, int], bytes] | None
    ) -> set[int]:
        """Return the physical offsets of messages that no damage touched."""
        found: set[int] = set()
        for placed in self.store.placed:
            at, record = placed.physical_offset, placed.record
            if log[at : at + placed.size] != build.pack(record, at):
                if self.abort:  # the log of a store that was not closed ends here
                    break
                continue
            key = str(record.topic), record.queue_id, record.queue_offset
            known = self.store.queues[key[:2]]
            if units is None or (
                known[key[2]][0] == at and units.get(key) == build.pack_unit(*known[key[2]])
            ):
                found.add(at)
        return found


@pytest.fixture(scope="module", params=[False, True], ids=["closed", "abort"])
def judge(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Judge:
    store, bodies = _build()
    root = store.write(tmp_path_factory.mktemp("hostile") / "s", abort=request.param)
    build.write_config(root, topics=["A", "Long" * 5], offsets={"A@g": {0: 3}})
    return Judge(root, store, bodies, request.param)


LOG_FILES = [f"commitlog/{at:020d}" for at in range(0, 3 * SEGMENT, SEGMENT)]
QUEUE_FILES = [
    f"consumequeue/{topic}/{queue_id}/{at * 20:020d}"
    for (topic, queue_id), units in sorted(_build()[0].queues.items())
    for at in range(0, len(units), UNITS)
]
OTHER_FILES = ["checkpoint", "lock", "config/topics.json", "config/consumerOffset.json"]


def _replace(path: Path, data: bytes) -> None:
    """Put a new file in place of one that may be mapped still."""
    fresh = path.with_name("fresh")
    fresh.write_bytes(data)
    fresh.replace(path)


def _run(judge: Judge, file: str, cases: list[tuple[str, bytes]]) -> None:
    path = judge.root / file
    valid, wrong = path.read_bytes(), []
    try:
        for name, data in cases:
            _replace(path, data)
            wrong += [f"{name}, {text}" for text in judge.complaints()]
    finally:
        _replace(path, valid)
    assert not wrong, f"{len(wrong)} complaints in {len(cases)} damages of {file}\n{_digest(wrong)}"


def _digest(wrong: list[str]) -> str:
    """Return one complaint of each kind."""
    kinds: dict[str, str] = {}
    for text in wrong:
        kinds.setdefault(re.sub(r"\d+", "", text.partition(", ")[2])[:80], text)
    return "\n".join(kinds.values())


def _is_whole(row: dict[str, Any]) -> bool:
    """Return whether a row is a message; a time of its client that no calendar has is no damage."""
    reason = row.get("_corrupt_record")
    return reason is None or reason.startswith("bornTimestamp: ")


def _flipped(data: bytes, at: int, mask: int) -> tuple[str, bytes]:
    return f"byte {at} ^ {mask:#x}", data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :]


def _cut(data: bytes, at: int) -> tuple[str, bytes]:
    return f"cut to {at}", data[:at]


def test_the_undamaged_store_reads_whole(judge: Judge) -> None:
    assert judge.complaints() == []


@pytest.mark.parametrize("file", LOG_FILES + QUEUE_FILES + OTHER_FILES)
def test_changed_bytes_of_a_sample(judge: Judge, file: str) -> None:
    data, rng = (judge.root / file).read_bytes(), random.Random(file)
    used = len(data.rstrip(b"\0")) or len(data)
    places = [
        *rng.sample(range(used), min(4 if file in LOG_FILES else 2, used)),
        rng.randrange(len(data)),
    ]
    if file in LOG_FILES:  # the headers of records above all: everything hangs on them
        base = int(Path(file).name)
        starts = [
            at.physical_offset - base
            for at in judge.store.placed
            if 0 <= at.physical_offset - base < SEGMENT
        ]
        places += [start + rng.randrange(48) for start in starts[::10]]
    _run(
        judge,
        file,
        [_flipped(data, at, rng.choice((0x80, 0xFF, rng.randrange(1, 256)))) for at in places],
    )


@pytest.mark.parametrize("count", tiers.sampled(1, 1 << 20))
@pytest.mark.parametrize("file", LOG_FILES + QUEUE_FILES + OTHER_FILES)
def test_cuts(judge: Judge, file: str, count: int) -> None:
    data, rng = (judge.root / file).read_bytes(), random.Random(file)
    places = {0, 1, len(data) - 1, *rng.sample(range(len(data)), min(count, len(data)))}
    _run(judge, file, [_cut(data, at) for at in sorted(places)])


@pytest.mark.parametrize("file", LOG_FILES + QUEUE_FILES)
def test_missing_files(judge: Judge, file: str) -> None:
    path, aside = judge.root / file, judge.root / "aside"
    path.rename(aside)
    try:
        wrong = judge.complaints()
    finally:
        aside.rename(path)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "tail",
    [
        pytest.param(b"\0", id="0"),
        pytest.param(b"\xda\xa3\x20\xa7" * 99, id="headers"),
        pytest.param(b"\0" * 100, id="0s", marks=pytest.mark.slow),
        pytest.param(b"\xff" * 7, id="1s", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("file", LOG_FILES + QUEUE_FILES + OTHER_FILES)
def test_grown_files(judge: Judge, file: str, tail: bytes) -> None:
    """The judge reads a file of the right length; nothing in it may be lost without an error."""
    data = (judge.root / file).read_bytes()
    _run(judge, file, [(f"{len(tail)} bytes more", data + tail)])


@pytest.mark.slow
@pytest.mark.parametrize("file", LOG_FILES + QUEUE_FILES + OTHER_FILES)
def test_every_byte_changed(judge: Judge, file: str) -> None:
    data, rng = (judge.root / file).read_bytes(), random.Random(file)
    used = min(len(data), len(data.rstrip(b"\0")) + 64)
    _run(
        judge,
        file,
        [_flipped(data, at, mask) for at in range(used) for mask in (0x80, rng.randrange(1, 256))],
    )


@pytest.mark.parametrize("name", ["99999999999999999999", "09223372036854775800"])
def test_a_file_whose_name_no_offset_has_is_none_of_the_log(tmp_path: Path, name: str) -> None:
    store = build.filled([build.Record()])
    root = store.write(tmp_path / "s")
    (root / "commitlog" / name).write_bytes(bytes(4096))
    with rmqstore.open(root) as opened:
        assert len(opened.scan().read_all()) == len(opened.scan(scan="commitlog").read_all()) == 1
        assert opened.view("commitlog").read_all().num_rows == 2  # and where the log ends
        assert not opened.query("T", "none", scan_uncovered=True)
