"""Timed messages by the timer wheel and its log, judged by a plain reader of these files."""

from __future__ import annotations

import random
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import rmqstore
import store_builder as build
import tiers
from goldens import Golden
from reading import read
from rmqstore.errors import RmqStoreError
from test_hostile_files import PUTS

TIMER = "rmq_sys_wheel_timer"
SLOTS, SLOT_BYTES, UNIT_BYTES = 2 * 7 * 86400, 32, 52
DEFAULT, ROLL, DELETE = 1, 2, 4
BLANK_MAGIC = 0xBBCCDDEE ^ (1880681586 + 8)
NOW = 1_700_000_000_000  # ms, the read time of the stores that are built here
PLACES = "keys,commitLogOffset,pending"


def pending(root: Path, **options: Any) -> list[dict[str, Any]]:
    with rmqstore.open(root) as store:
        defaults: dict[str, Any] = {"columns": PLACES, "include_pending": True}
        rows = read(store, **(defaults | options))
    return [row for row in rows if row["pending"] == "timer"]


def chained_places(root: Path) -> set[int]:
    """Return the physical offsets in all slots that are due, by following each chain."""
    wheel, log = (root / "timerwheel").read_bytes(), (root / "timerlog" / f"{0:020d}").read_bytes()
    (read_time,) = struct.unpack_from(">q", (root / "config/timercheck").read_bytes())
    places = set()
    for position in range(0, len(wheel), SLOT_BYTES):
        second, _, last = struct.unpack_from(">3q", wheel, position)
        if second * 1000 < read_time:
            continue
        while last != -1:
            _, last, _, _, _, place = struct.unpack_from(">iqiqiq", log, last)
            places.add(place)
    return places


@pytest.mark.parametrize(("name", "count"), [("live", 17), ("v55-live-lite", 12)])
def test_the_messages_of_all_slots_that_are_due_are_pending(
    golden_store: Golden, name: str, count: int
) -> None:
    root = golden_store(name)
    found = pending(root, include_system_topics=True)
    assert {row["commitLogOffset"] for row in found} == chained_places(root)
    assert len(found) == count


def test_the_wheel_tells_and_not_the_topic(copied: Golden) -> None:
    """A message whose unit is gone was cancelled by nobody, and no broker delivers it."""
    root = copied("live")
    victim = next(row for row in pending(root) if row["keys"] == "timer-9")
    path = root / "timerlog" / f"{0:020d}"
    log = bytearray(path.read_bytes())
    for position in range(0, len(log) - UNIT_BYTES + 1, UNIT_BYTES):
        if struct.unpack_from(">q", log, position + 28)[0] == victim["commitLogOffset"]:
            struct.pack_into(">q", log, position + 28, 1 << 40)
    path.write_bytes(log)
    assert "timer-9" not in {row["keys"] for row in pending(root)}
    shutil.rmtree(root / "timerlog")
    assert "timer-9" in {row["keys"] for row in pending(root)}


@dataclass
class Timers:
    """A store with timed messages, some of which were entered into the wheel."""

    precision: int = 1000
    log_file_bytes: int = 10 * UNIT_BYTES + 30
    store: build.Store = field(default_factory=build.Store)
    log: bytearray = field(default_factory=bytearray)
    slots: dict[int, list[int]] = field(default_factory=dict)  # positions of units by second
    n_entered: int = 0
    last_second: int = 0

    def add(
        self,
        key: str,
        due: int,
        *,
        slot: int | None = None,
        deletes: str | None = None,
        entered: bool = True,
    ) -> build.Placed:
        """Add a message that is due in ``due`` ms, or what cancels another one."""
        properties = {
            "UNIQ_KEY": key, "KEYS": key, "REAL_TOPIC": "T", "REAL_QID": "0",
            "TIMER_OUT_MS": str(NOW + due),
        }  # fmt: skip
        if deletes is not None:
            properties["TIMER_DEL_UNIQKEY"] = deletes
        placed = self.store.append(
            build.Record(topic=TIMER, properties=build.properties(properties))
        )
        if entered:
            magic = DEFAULT | (DELETE if deletes is not None else 0)
            magic |= ROLL if slot is not None else 0
            self.enter(placed, due if slot is None else slot, magic)
            self.n_entered += 1
        return placed

    def enter(self, placed: build.Placed, due: int, magic: int = DEFAULT) -> None:
        room = self.log_file_bytes - len(self.log) % self.log_file_bytes
        if room < UNIT_BYTES + 16:
            self.log += struct.pack(">iqI", room, 0, BLANK_MAGIC).ljust(room, b"\0")
        second = (NOW + due) // self.precision
        positions = self.slots.setdefault(second, [])
        previous = positions[-1] if positions else -1
        positions.append(len(self.log))
        self.log += struct.pack(
            ">iqiqiqiiq", UNIT_BYTES, previous, magic, NOW, due, placed.physical_offset,
            placed.size, 0, 0,
        )  # fmt: skip

    def write(self, root: Path, *, abort: bool = False, wheel: str = "timerwheel") -> Path:
        self.store.write(root, abort=abort)
        build.write_config(root, topics=["T", TIMER])
        self.write_wheel(root / wheel)
        (root / "timerlog").mkdir()
        for start in range(0, max(len(self.log), 1), self.log_file_bytes):
            data = self.log[start : start + self.log_file_bytes].ljust(self.log_file_bytes, b"\0")
            (root / "timerlog" / f"{start:020d}").write_bytes(data)
        check = struct.pack(">4q", NOW, len(self.log), self.n_entered, self.n_entered)
        (root / "config" / "timercheck").write_bytes(check)
        return root

    def write_wheel(self, path: Path) -> None:
        with path.open("wb") as file:
            file.truncate(SLOTS * SLOT_BYTES)
            for second, positions in self.slots.items():
                file.seek(second % SLOTS * SLOT_BYTES)
                slot = second, positions[0], positions[-1], len(positions), 0
                file.write(struct.pack(">3q2i", *slot))


def keys(root: Path, **options: Any) -> list[str]:
    return sorted(row["keys"] for row in pending(root, **options))


@pytest.mark.parametrize("precision", [1000, 500, 100])
def test_what_is_due_from_the_next_second_on_is_pending(tmp_path: Path, precision: int) -> None:
    timers = Timers(precision=precision)
    for number, due in enumerate((-precision, -1, 0, 1, 5000, 5000, 86_400_000)):
        timers.add(f"k{number}", due)
    timers.add("late", -5000, entered=False)
    timers.add("new", 5000, entered=False)
    timers.store.append(build.Record(topic="T", properties=build.properties({"UNIQ_KEY": "x"})))
    root = timers.write(tmp_path / "s")
    assert keys(root) == ["k2", "k3", "k4", "k5", "k6", "late", "new"]


@pytest.mark.parametrize("target", ["A", "T+A"])
def test_a_cancellation_holds_for_its_own_second_alone(tmp_path: Path, target: str) -> None:
    timers = Timers()
    timers.add("A", 5000)
    timers.add("other", 5000)
    timers.add("d1", 6000, deletes=target)
    assert keys(timers.write(tmp_path / "later")) == ["A", "other"]
    timers.add("d2", 4999, deletes=target)
    assert keys(timers.write(tmp_path / "next")) == ["A", "other"]
    timers.add("d3", 5400, deletes=target)
    assert keys(timers.write(tmp_path / "same")) == ["other"]


@pytest.mark.parametrize("entered", [True, False])
def test_messages_that_are_due_far_ahead_meet_what_cancels_them_in_the_end(
    tmp_path: Path, *, entered: bool
) -> None:
    days = 24 * 3600 * 1000
    timers = Timers()
    timers.add("A", 5 * days, slot=2 * days)
    timers.add("B", 5 * days, slot=2 * days)
    timers.add("C", 5 * days, slot=2 * days)
    timers.add("d1", 5 * days, slot=2 * days + 7000, deletes="A", entered=entered)
    timers.add("d2", 4 * days, slot=2 * days, deletes="B", entered=entered)
    assert keys(timers.write(tmp_path / "s")) == ["B", "C"]
    timers.add("d3", 2 * days, deletes="C", entered=entered)  # in the slot where C is rolled
    assert keys(timers.write(tmp_path / "t")) == ["B"]


def test_a_unit_that_no_slot_covers_is_entered_again_only_if_the_log_is_young(
    tmp_path: Path,
) -> None:
    timers = Timers()
    for number in range(35):
        timers.add(f"k{number:02d}", 1000 * (number - 2))
    for lost in (3, 25, 33, 34):
        timers.slots.pop((NOW + 1000 * (lost - 2)) // 1000)
    root = timers.write(tmp_path / "s")
    # Of four files the broker reads the last two again.
    assert keys(root) == ["k02", *(f"k{number:02d}" for number in range(4, 35))]
    with (root / "timerwheel").open("r+b") as file:  # no slot is believed in another's place
        file.write(struct.pack(">3q2i", (NOW + 1000) // 1000, 0, len(timers.log), 1, 0))
    assert keys(root)[1] == "k04"


def test_the_newest_snapshot_is_the_wheel(tmp_path: Path) -> None:
    timers = Timers()
    for number in range(35):
        timers.add(f"k{number:02d}", 5000 + 1000 * number)
    root = timers.write(tmp_path / "s", wheel="timerwheel.5000")
    timers.slots.clear()
    for name in ("timerwheel", "timerwheel.900", "timerwheel.5001.tmp", "timerwheel.x"):
        timers.write_wheel(root / name)
    assert len(keys(root)) == 35
    timers.write_wheel(root / "timerwheel.10000")
    assert len(keys(root)) < 35


def test_a_store_that_was_not_closed_may_have_delivered_more_than_its_wheel_tells(
    tmp_path: Path,
) -> None:
    timers = Timers()
    timers.add("A", 5000)
    timers.add("B", 5000)
    timers.add("C", 5000, entered=False)
    for key in "AC":
        properties = build.properties({"UNIQ_KEY": key})
        timers.store.append(build.Record(topic="T", properties=properties))
    assert keys(timers.write(tmp_path / "closed")) == ["A", "B"]
    assert keys(timers.write(tmp_path / "open", abort=True)) == ["B"]


def test_units_that_lead_to_other_records_or_to_none_are_no_messages(tmp_path: Path) -> None:
    timers = Timers()
    real = timers.add("A", 5000)
    other = timers.store.append(build.Record(topic="T", properties=build.properties({"a": "b"})))
    timers.enter(other, 5000)
    timers.enter(real, 5000)  # the same message twice
    for place in (other.physical_offset + 1, 1 << 40, -5, (1 << 63) - 1):
        timers.enter(build.Placed(real.record, place, 100), 5000)
    assert keys(timers.write(tmp_path / "s")) == ["A"]


def small(root: Path) -> Path:
    timers = Timers()
    for number in range(12):
        timers.add(f"k{number:02d}", 1000 * number - 3000)
    timers.add("d", 5000, deletes="k08")
    timers.add("new", 9000, entered=False)
    return timers.write(root)


def everything(root: Path) -> list[str]:
    """Return what is pending; damage is refused by our errors only."""
    try:
        return keys(root)
    except RmqStoreError:
        return []


@pytest.mark.parametrize("step", tiers.sampled(23, 1))
@pytest.mark.parametrize("file", ["timerlog/" + "0" * 20, "config/timercheck", "timerwheel"])
def test_every_byte_may_be_another(tmp_path: Path, file: str, step: int) -> None:
    root = small(tmp_path / "s")
    valid = keys(root)
    path = root / file
    with path.open("r+b") as opened:
        data = opened.read()
        positions = range(min(len(data), 600))
        if file == "timerwheel":
            positions = range(
                NOW // 1000 % SLOTS * SLOT_BYTES, NOW // 1000 % SLOTS * SLOT_BYTES + 96
            )
        for position in positions[::step]:
            for value in (data[position] ^ 0x80, data[position] ^ 1, 0xFF):
                opened.seek(position)
                opened.write(bytes([value]))
                opened.flush()
                assert set(everything(root)) <= {f"k{n:02d}" for n in range(12)} | {"new"}
            opened.seek(position)
            opened.write(data[position : position + 1])
            opened.flush()
    assert keys(root) == valid


@pytest.mark.parametrize("file", ["timerlog/" + "0" * 20, "config/timercheck", "timerwheel"])
def test_every_length_may_be_another(tmp_path: Path, file: str) -> None:
    root = small(tmp_path / "s")
    path = root / file
    size = path.stat().st_size
    chance = random.Random(1)
    lengths = {0, 1, 31, 32, 33, 51, 52, 53, size // 2, size - 1, size + 1, 2 * size}
    for length in [*sorted(lengths), *(chance.randrange(size) for _ in range(5))]:
        with path.open("r+b") as opened:
            opened.truncate(length)
        assert set(everything(root)) <= {f"k{n:02d}" for n in range(12)} | {"new"}


@pytest.mark.parametrize("put", PUTS)
@pytest.mark.parametrize("file", ["timerlog/" + "0" * 20, "timerlog", "timerwheel", "timerwheel.7"])
def test_a_file_may_be_anything(tmp_path: Path, file: str, put: Callable[[Path], None]) -> None:
    root = small(tmp_path / "s")
    path = root / file
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    put(path)
    with rmqstore.open(root) as store:
        assert store.view("files", columns="path,state").read_all().num_rows
    assert set(keys(root)) <= {f"k{n:02d}" for n in range(12)} | {"new"}


@pytest.mark.parametrize(("precision", "left"), [(1000, ["B", "C"]), (100, ["B", "C", "D"])])
def test_what_is_not_in_the_wheel_yet_cancels_messages_of_a_slot_as_long_as_those_of_the_wheel(
    tmp_path: Path, precision: int, left: list[str]
) -> None:
    timers = Timers(precision=precision)
    for key, due in (("A", 5000), ("B", 5000), ("C", 5000), ("D", 5400)):
        timers.add(key, due)
    for key, due in (("A", 5099), ("C", 6000), ("D", 5500)):
        timers.add(f"delete {key}", due, deletes=key, entered=False)
    assert keys(timers.write(tmp_path / "s")) == left
