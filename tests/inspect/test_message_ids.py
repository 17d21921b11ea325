"""Messages by every id that rows of messages show."""

from __future__ import annotations

from pathlib import Path

import pytest

import goldens
import rmqstore
import store_builder as build
from goldens import Golden
from rmqstore.inspect.trace import find_messages
from tiers import split

IDS = ("msgId", "offsetMsgId", "commitLogOffset")
OTHERS = [name for name in goldens.EVERY if name not in ("live", "lmq", "batch-cq", "crash")]


@pytest.mark.parametrize(
    "name", split(["live", "lmq", "batch-cq", "crash", "dledger", "controller", *OTHERS], 6)
)
def test_every_id_that_is_shown_finds_its_message(golden_store: Golden, name: str) -> None:
    with rmqstore.open(golden_store(name)) as store:
        columns = (*IDS, "topic", "queueOffset")
        rows = store.scan(include_system_topics=True, columns=columns).read_all().to_pylist()
        rows = rows[:: max(1, len(rows) // 15)]
        for kind in IDS:
            # Look-ups know the keys of records, not those of messages that share one.
            if (name, kind) == ("batch-cq", "msgId"):
                continue
            found = find_messages(store, [str(row[kind]) for row in rows])
            assert not found.missing
            places = {(row[kind], row["commitLogOffset"]) for row in found.rows}
            assert places >= {(row[kind], row["commitLogOffset"]) for row in rows}


def test_ids_of_all_kinds_go_together_in_their_order(live: Path) -> None:
    with rmqstore.open(live) as store:
        scan = store.scan(subscribe="LivePlain", columns=",".join(IDS), limit=4)
        one, two, three, four = scan.read_all().to_pylist()
        ids = [
            two["msgId"], "no such id", str(one["commitLogOffset"]), "1",
            four["offsetMsgId"].lower(), "99999999", three["msgId"],
        ]  # fmt: skip
        found = find_messages(store, ids)
        order = [row["msgId"] for row in (two, one, four, three)]
        assert [row["msgId"] for row in found.rows] == order
        assert list(found.missing) == ["1", "99999999", "no such id"]
        assert "no message begins at" in found.missing["1"]
        assert "the log ends at 232925: nothing is stored" in found.missing["99999999"]
        elsewhere = find_messages(store, [two["msgId"]], {"subscribe": ["LiveTx"]})
        assert (elsewhere.rows, [*elsewhere.missing]) == ([], [two["msgId"]])


def test_the_host_in_an_id_may_be_that_of_another_broker(live: Path) -> None:
    with rmqstore.open(live) as store:
        row = store.scan(subscribe="LivePlain", limit=1).read_all().to_pylist()[0]
        other = f"0A0000FF00002A9F{row['commitLogOffset']:016X}"
        (found,) = find_messages(store, [other]).rows
        assert found["msgId"] == row["msgId"]


def test_a_unique_key_that_looks_like_an_id_of_another_record(tmp_path: Path) -> None:
    stored = build.Store()
    key = f"0A0000FF00002A9F{0:016X}"  # an offset message id of the first record, by its form
    stored.append(build.Record(body=b"first"))
    stored.append(build.Record(body=b"second", properties=f"UNIQ_KEY\x01{key}\x02".encode()))
    with rmqstore.open(stored.write(tmp_path / "s")) as store:
        assert [row["body"] for row in find_messages(store, [key]).rows] == [b"second"]


def test_damage_elsewhere_does_not_hide_a_message(golden_store: Golden) -> None:
    with rmqstore.open(golden_store("dledger-crash2")) as store:
        columns = ("msgId", "commitLogOffset")
        rows = store.scan(columns=columns, mode="DROPMALFORMED").read_all().to_pylist()
        for row in rows[:: len(rows) // 10]:
            for name in (row["msgId"], str(row["commitLogOffset"])):
                found = [one["commitLogOffset"] for one in find_messages(store, [name]).rows]
                assert row["commitLogOffset"] in found
