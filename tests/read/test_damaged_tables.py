"""A damaged table under ``config/`` without a valid backup stops only what depends on it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import goldens
import rmqstore
from goldens import Golden
from rmqstore.inspect.trace import trace
from rmqstore.inspect.verify import verify

TABLES = (
    "topics", "consumerOffset", "delayOffset", "subscriptionGroup", "consumerFilter",
    "consumerOrderInfo",
)  # fmt: skip


@pytest.fixture
def root(copied: Golden) -> Path:
    """Return a store all of whose tables, and their backups, a power cut has left full of zeros."""
    root = copied("live")
    for name in TABLES:
        for file in (root / "config").glob(f"{name}.json*"):
            file.write_bytes(bytes(file.stat().st_size))
    return root


def test_messages_are_read_and_looked_up_with_one_warning(
    root: Path, golden_store: Golden, caplog: pytest.LogCaptureFixture
) -> None:
    names = ["topic", "queueId", "queueOffset", "body"]
    with rmqstore.open(golden_store("live")) as valid:
        expected = valid.scan(columns=names).read_all()
        keys = valid.scan(columns=["keys"], subscribe="LivePlain").read_all()["keys"].drop_null()
    with rmqstore.open(root) as store:
        assert store.scan(columns=names).read_all() == expected
        assert store.query("LivePlain", keys[0].as_py()).messages
        queues = store.view("queues", columns=["topic", "messages"]).read_all()
    assert queues.num_rows
    assert [text.partition(";")[2] for text in caplog.messages] == [
        " the only topics known are those that have queues"
    ]


@pytest.mark.parametrize("view", ["groups", "consumed"])
def test_what_depends_on_offsets_names_the_table(root: Path, view: str) -> None:
    with (
        rmqstore.open(root) as store,
        pytest.raises(rmqstore.CorruptConfigError, match=r"consumerOffset\.json"),
    ):
        store.view(view, subscribe="LivePlain").read_all()


def test_views_of_topics_say_what_is_not_known(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with rmqstore.open(root) as store:
        rows = store.view("topics").read_all().to_pylist()
        (route,) = store.view("routes").read_all().to_pylist()
    assert {row["perm"] for row in rows} == {None}
    assert all("not JSON" in row["reason"] for row in rows)
    counts = goldens.summary("live")["counts"]["perTopic"]
    messages = {row["topic"]: row["messages"] for row in rows}
    assert messages["LiveTx"] == counts["LiveTx"]
    assert "topics.json" in caplog.text
    assert "topics.json" in route["reason"]
    table = {"topicConfigTable": {"LivePlain": {"perm": "all"}}}
    (root / "config" / "topics.json").write_text(json.dumps(table))
    with rmqstore.open(root) as store:
        (row,) = store.view("topics", subscribe="LivePlain").read_all().to_pylist()
    assert row["reason"] == "its entry in config/topics.json: 'all' is not an integer of 32 bits"


def test_verify_has_a_finding_for_each_table(root: Path) -> None:
    with rmqstore.open(root) as store:
        found = [Path(one.place.partition(",")[0]).stem for one in verify(store)]
    assert sorted(found) == sorted(TABLES)


@pytest.mark.parametrize("state", ["missing", "empty"])
def test_what_a_table_without_content_would_say_is_not_known(
    root: Path, caplog: pytest.LogCaptureFixture, state: str
) -> None:
    for path in (root / "config").glob("*.json*"):
        path.unlink()
        if state == "empty":  # as after a power cut
            path.touch()
    unknown = f"consumerOffset.json is {state}: what consumer groups have committed is not known"
    with rmqstore.open(root) as store:
        assert store.view("groups").read_all().num_rows == 0
        assert unknown in caplog.text
        caplog.clear()
        for group in (None, "CG_retry"):
            for row in store.view("consumed", consumer_group=group).read_all().to_pylist():
                assert (row["consumerGroup"], row["isPassed"]) == (None, None)
                assert row["reason"].endswith(unknown)
        assert unknown in caplog.text
        caplog.clear()
        (row,) = trace(store, "496").to_pylist()
        assert (row["consumerGroup"], row["state"]) == (None, None)
        assert unknown in caplog.text
        assert store.view("routes").read_all().num_rows == 0
        assert f"topics.json is {state}: which topics the broker registers" in caplog.text
        with pytest.raises(rmqstore.OptionError, match=f"consumerOffset.json is {state}"):
            store.scan(starting_offsets="group:CG_part").read_all()
        with pytest.raises(rmqstore.OptionError, match=f"consumerOffset.json is {state}"):
            store.view("consumed", consumer_group="CG_part").read_all()
        for row in store.view("topics").read_all().to_pylist():
            assert row["perm"] is None
            assert row["reason"] == "config/topics.json has no entry for it"


def test_a_broken_identity_is_said(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    (root / "brokerIdentity").write_bytes(bytes(30))
    with rmqstore.open(root) as store:
        store.view("stores").read_all()
    assert "brokerIdentity: not the form cluster#broker#id" in caplog.text
