"""What became of a message: all its records, and which groups have passed them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import goldens
import rmqstore
import store_builder as build
from command_line import rows_of, run
from goldens import Golden
from rmqstore.inspect.trace import COLUMNS, trace
from tiers import split

LIVE = ["live", "v55-live-lite", "v55-live-rocksdb"]


def rows(root: Path, message_id: object) -> list[dict[str, Any]]:
    with rmqstore.open(root) as store:
        found = trace(store, str(message_id))
        assert found.schema == COLUMNS
        return found.to_pylist()


@pytest.mark.parametrize("name", split([*LIVE, "basic", "controller", "dledger", "expired"], 4))
def test_all_records_of_a_message_are_found_by_any_of_their_ids(
    golden_store: Golden, name: str
) -> None:
    by_key: dict[str, set[int]] = {}
    for row in goldens.records(name):
        key = row.get("uniqKey")
        if key:
            by_key.setdefault(key, set()).add(row["physicalOffset"])
    longest = sorted(by_key, key=lambda key: -len(by_key[key]))[:6]
    root = golden_store(name)
    with rmqstore.open(root) as store:
        for key in longest:
            expected = sorted(by_key[key])
            for one in (key, str(expected[0]), str(expected[-1])):
                found = trace(store, one).column("commitLogOffset").to_pylist()
                assert sorted({*found}) == expected
                assert found == sorted(found)


def test_tiered_storage_that_is_not_read_is_mentioned(
    golden_store: Golden, caplog: pytest.LogCaptureFixture
) -> None:
    root = golden_store("tiered")
    shown = run("trace", root, "0")
    assert shown.exit_code == 2
    assert "messages in tiered storage" in caplog.text
    assert "--tiered with the broker's tieredStoreFilePath" in caplog.text
    refused = run("trace", root, "--tiered", root / "tieredstore", "0")
    assert "looking up a physical offset is not supported with tiered" in refused.stderr


@pytest.mark.parametrize("name", LIVE)
def test_groups_have_passed_what_their_offsets_say(golden_store: Golden, name: str) -> None:
    root = golden_store(name)
    with rmqstore.open(root) as store:
        committed = store.parts.config.committed_offsets()
        batches = store.scan(columns="topic,queueId,queueOffset,commitLogOffset").to_arrow()
        for message in batches.to_pylist()[::25]:
            place = message["topic"], message["queueId"]
            at = message["commitLogOffset"]
            traced = trace(store, str(at)).to_pylist()
            found = [row for row in traced if row["commitLogOffset"] == at]
            expected = {
                group: offsets.get(place)
                for group, offsets in committed.items()
                if any(topic == place[0] for topic, _ in offsets)
            }
            assert {row["consumerGroup"]: row["consumerOffset"] for row in found} == (
                expected or {None: None}
            )
            for row in found:
                if row["consumerGroup"] is None:
                    assert row["state"] is None
                elif row["consumerOffset"] is None:
                    assert row["state"] == "unknown"
                else:
                    has_passed = row["consumerOffset"] > row["queueOffset"]
                    assert row["state"] == ("consumed" if has_passed else "not consumed")


def test_a_dead_letter_leads_through_its_attempts(live: Path) -> None:
    dead = json.loads(run("dump", live, "-t", "%DLQ%CG_retry", "-n", 1).stdout)
    shown = run("trace", live, dead["offsetMsgId"] if "offsetMsgId" in dead else dead["msgId"],
                "--columns", "kind,topic,reconsumeTimes,consumerGroup,state", "--json")  # fmt: skip
    assert rows_of(shown) == [
        dict(zip(("kind", "topic", "reconsumeTimes", "consumerGroup", "state"), row, strict=True))
        for row in (
            ("message", "LiveRetry", 0, "CG_retry", "consumed"),
            ("delayed", "SCHEDULE_TOPIC_XXXX", 1, "CG_retry", "delivered"),
            ("retry", "%RETRY%CG_retry", 1, "CG_retry", "consumed"),
            ("deadLetter", "%DLQ%CG_retry", 2, "CG_retry", None),
        )
    ]
    table = run("trace", live, dead["msgId"])
    assert table.exit_code == 0
    assert "deadLetter" in table.stdout
    assert "offsetMsgId" not in table.stdout


def test_transactions_and_delays_have_their_earlier_forms(live: Path) -> None:
    kinds = {}
    for topic in ("LiveTx", "LiveDelay", "LivePop"):
        message = json.loads(run("dump", live, "-t", topic, "--last", 1, "-n", 1).stdout)
        kinds[topic] = [row["kind"] for row in rows(live, message["msgId"])]
    assert kinds["LiveTx"] == ["prepared", "message"]
    assert kinds["LiveDelay"] == ["delayed", "message"]
    assert kinds["LivePop"][0] == "message"


def test_what_waits_for_its_delay_is_not_delivered_yet(live: Path) -> None:
    with rmqstore.open(live) as store:
        delays = store.parts.config.delay_offsets()
        states = set()
        for message in store.scan(subscribe="SCHEDULE_TOPIC_XXXX").to_arrow().to_pylist():
            traced = trace(store, message["msgId"]).to_pylist()
            at = message["commitLogOffset"]
            (row,) = [row for row in traced if row["commitLogOffset"] == at]
            is_delivered = delays[message["queueId"] + 1] > message["queueOffset"]
            assert row["state"] == ("delivered" if is_delivered else "waiting")
            states.add(row["state"])
    assert "delivered" in states


def test_copies_of_a_message_without_a_unique_key_are_found_by_its_id(tmp_path: Path) -> None:
    stored = build.filled(build.Record(topic="T", body=body) for body in (b"x", b"another"))
    first = rows(stored.write(tmp_path / "first"), 0)[0]["offsetMsgId"]
    note = f"RETRY_TOPIC\x01T\x02ORIGIN_MESSAGE_ID\x01{first}\x02".encode()
    stored.append(build.Record(topic="%RETRY%g", body=b"x", properties=note, reconsume_times=1))
    stored.append(build.Record(topic="%DLQ%g", body=b"x", properties=note, reconsume_times=2))
    root = stored.write(tmp_path / "s")
    every = rows(root, 0)
    assert [row["kind"] for row in every] == ["message", "retry", "deadLetter"]
    assert [row["consumerGroup"] for row in every] == [None, "g", "g"]
    assert [row["state"] for row in every] == [None, "unknown", None]
    assert rows(root, every[2]["offsetMsgId"]) == every
