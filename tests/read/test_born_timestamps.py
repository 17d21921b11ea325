"""The time when a message was born is its client's, and RocketMQ looks at it nowhere."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import rmqstore
import store_builder as build
from rmqstore.inspect.verify import verify

ODD = [1_700_000_000_000_000, 1_700_000_000_000_000_000, -(1 << 63), (1 << 63) - 1]
TIMES = [build.T0, *ODD, -1, 0]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = build.Store()
    for number, time in enumerate(TIMES):
        key = build.properties({"KEYS": f"k{number}"})
        made.append(build.Record(body=b"m%d" % number, born_timestamp=time, properties=key))
    return made.write(tmp_path / "s")


@pytest.mark.parametrize("scan", ["queue", "commitlog"])
@pytest.mark.parametrize("mode", ["FAILFAST", "PERMISSIVE", "DROPMALFORMED"])
def test_every_message_comes_and_a_time_that_does_not_fit_is_null(
    root: Path, scan: str, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    with rmqstore.open(root) as store:
        rows = store.scan(scan=scan, mode=mode).read_all().to_pylist()
    assert [row["body"] for row in rows] == [b"m%d" % number for number in range(len(TIMES))]
    born = [row["bornTimestamp"] for row in rows]
    assert [number for number, time in enumerate(born) if time is None] == [1, 2, 3, 4]
    said = [row.get("_corrupt_record") for row in rows] if mode == "PERMISSIVE" else caplog.messages
    for time in ODD[:1] if mode != "PERMISSIVE" else ODD:
        assert any(
            f"bornTimestamp: the client's time is not in the years 1 to 9999: {time} ms" in text
            for text in said
            if text
        )


def test_nothing_is_said_where_the_column_is_not_read(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    with rmqstore.open(root) as store:
        rows = store.scan(columns=["body"], mode="PERMISSIVE").read_all()
    assert rows.column("_corrupt_record").null_count == len(TIMES)
    assert not caplog.messages


def test_look_ups_and_verify_take_such_a_message_for_valid(root: Path) -> None:
    with rmqstore.open(root) as store:
        (found,) = store.query("T", "k1", scan_uncovered=True).messages
        assert (found.body, found.bornTimestamp) == (b"m1", None)
        assert list(verify(store)) == []
        valid = store.view("commitlog").read_all().column("isValid").drop_null()
    assert valid.to_pylist() == [True] * len(TIMES)
