"""Stores as LazyFrames: whatever a query asks for, the rows are those that Polars would choose."""

from __future__ import annotations

import datetime as dt
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import reduce
from operator import or_

import polars as pl
import pytest

import rmqstore
from goldens import Golden
from rmqstore.errors import NotAStoreError, OptionError, UnsupportedFeatureError, install
from rmqstore.format.schema import MESSAGE
from rmqstore.polars import condition_of
from rmqstore.query.conditions import NO_PRUNING
from rmqstore.query.where import parse_where
from rmqstore.read import parts
from rmqstore.read.store_parts import StoreParts

NOON = dt.datetime(2023, 11, 14, 23, 19, 6, tzinfo=dt.UTC)
# later than any datetime of Python
LATE = pl.lit(253_402_300_800_000).cast(pl.Datetime("ms", "UTC"))
C = pl.col
PREDICATES = [  # each with what it leaves of a read, "" for all
    (C("topic") == "TopicA", "topics TopicA"),
    ((C("topic") == "TopicA") & (C("queueOffset") >= 5), "topics TopicA; queue_offsets 5.."),
    (C("topic").is_in(["TopicA", "TopicB"]), "topics TopicA, TopicB"),
    (C("queueId").is_in([1, 2]), "queue_ids 1, 2"),
    (C("storeTimestamp") >= NOON, "store_timestamps 1700003946000.."),
    (C("storeTimestamp") < LATE, ""),
    (C("storeTimestamp") < NOON, "store_timestamps ..1700003946000"),
    (C("queueOffset").is_between(3, 9, closed="left"), "queue_offsets 3..8"),
    (C("queueOffset").is_between(3, 9, closed="right"), "queue_offsets 4..9"),
    (C("queueOffset").is_between(3, 9, closed="none"), "queue_offsets 4..8"),
    (pl.lit(5) < C("queueOffset"), "queue_offsets 6.."),
    (C("commitLogOffset") < 20_000, "physical_offsets ..19999"),
    ((C("topic") == "TopicA") | (C("topic") == "TopicB"), "topics TopicA, TopicB"),
    ((C("topic") == "TopicA") | (C("body").bin.size() > 20), ""),
    ((C("topic") == "TopicA") & (C("body").bin.size() > 20), "topics TopicA"),
    (C("topic").str.starts_with("Topic"), "topic_prefixes Topic"),
    (C("topic").str.starts_with("%_\\"), "topic_prefixes %_\\"),
    (C("keys") == "it's", "keys it's"),
    (C("commitLogOffset") == 2**64 - 1, ""),
    (C("tags") == "TagA", "tags TagA"),
    (C("msgId") == "no such id", "msg_ids no such id"),
    (~(C("topic") == "TopicA"), ""),
    (~C("queueId").is_in([1, 2]), ""),
    (~((C("tags") == "TagA") & (C("queueId") == 1)), ""),
    (~(C("tags").is_in(["TagA"]) | ~(C("queueId") == 1)), "queue_ids 1"),
    (C("tags").is_null(), ""),
    (C("tags").is_not_null(), ""),
    (C("tags").is_in(["TagA", None]), ""),
    (C("tags").eq_missing("TagA"), ""),
    (C("topic").is_in([]), ""),
    (C("queueOffset") > 5.5, ""),
    (C("queueId") == 10**12, ""),
    (C("keys") == C("tags"), ""),
    (C("storeTimestamp").dt.date() == NOON.date(), ""),
    (C("body") == b"x", ""),
    (C("queueOffset") % 7 == 3, ""),
]


PREDICATES.append((pl.any_horizontal(C("queueOffset") == n for n in range(3)), ""))
PREDICATES.append((reduce(or_, [C("queueOffset") == n for n in range(99)]), "queue_offsets 0..98"))


@pytest.fixture(scope="module")
def every(golden_store: Golden) -> pl.DataFrame:
    with rmqstore.open(golden_store("basic")) as store:
        return store.scan().to_polars()


@pytest.mark.parametrize("predicate", [each for each, _ in PREDICATES], ids=str)
def test_a_filter_gives_what_polars_gives(
    golden_store: Golden, every: pl.DataFrame, predicate: pl.Expr
) -> None:
    frame = rmqstore.polars.scan(golden_store("basic"))
    assert frame.filter(predicate).collect().equals(every.filter(predicate))
    chosen = frame.filter(predicate).select("queueOffset", "topic")
    assert chosen.collect().equals(every.filter(predicate).select("queueOffset", "topic"))
    first = frame.filter(predicate).head(3).collect()
    assert first.equals(every.filter(predicate).head(3))
    after = frame.head(9).filter(predicate).collect()
    assert after.equals(every.head(9).filter(predicate))


@pytest.mark.parametrize(("predicate", "pruning"), PREDICATES, ids=lambda value: str(value)[:60])
def test_what_a_filter_leaves_of_a_read(
    monkeypatch: pytest.MonkeyPatch, golden_store: Golden, predicate: pl.Expr, pruning: str
) -> None:
    asked: list[str] = []

    def noted(given: pl.Expr, columns: object) -> object:
        where = parse_where(condition_of(given, columns), MESSAGE)
        leaves = NO_PRUNING if where is None else where.pruning
        asked.append("" if leaves == NO_PRUNING else str(leaves))
        return condition_of(given, columns)

    monkeypatch.setattr("rmqstore.polars.condition_of", noted)
    rmqstore.polars.scan(golden_store("basic")).filter(predicate).collect()
    assert asked == [pruning]


def test_sql_reaches_the_pruning(golden_store: Golden, every: pl.DataFrame) -> None:
    frame = rmqstore.polars.scan(golden_store("basic"), columns="topic,queueId,queueOffset")
    text = "SELECT queueOffset FROM self WHERE topic IN ('TopicA') AND queueOffset BETWEEN 2 AND 9"
    expected = every.filter((C("topic") == "TopicA") & C("queueOffset").is_between(2, 9))
    assert frame.sql(text).collect().equals(expected.select("queueOffset"))


def test_columns_and_the_number_of_rows_reach_the_scan(
    golden_store: Golden, every: pl.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[tuple[list[str], int]] = []
    plain = parts.read_queues

    def noted(store: StoreParts, slices: object, spec: object) -> Iterator[object]:
        for batch in plain(store, slices, spec):
            read.append((spec.schema.names, batch.num_rows))
            yield batch

    monkeypatch.setattr(parts, "read_queues", noted)
    frame = rmqstore.polars.scan(golden_store("basic"))
    assert frame.collect_schema() == every.schema
    assert frame.select("tags").head(4).collect().equals(every.select("tags").head(4))
    assert read
    assert {tuple(names) for names, _ in read} == {("tags",)}
    assert sum(n_rows for _, n_rows in read) < every.height
    assert frame.head(0).collect().equals(every.head(0))
    assert frame.select(pl.len()).collect().item() == every.height
    assert frame.select("body", "topic").collect().equals(every.select("body", "topic"))


def test_options_are_those_of_a_scan_and_of_opening(golden_store: Golden) -> None:
    root = golden_store("basic")
    frame = rmqstore.polars.scan(
        root, subscribe="TopicA", broker_name="b", columns=["brokerName", "topic"]
    )
    assert frame.unique().collect().rows() == [("b", "TopicA")]
    permissive = rmqstore.polars.scan(root, mode="PERMISSIVE").collect()
    assert permissive["_corrupt_record"].null_count() == len(permissive) > 0
    both = rmqstore.polars.scan([str(root), str(golden_store("batch-cq"))], columns="brokerName")
    with rmqstore.open([root, golden_store("batch-cq")]) as cluster:
        expected = cluster.scan(columns="brokerName").to_polars()
    assert both.collect().equals(expected)
    pending = rmqstore.polars.scan(golden_store("live"), include_pending=True)
    with rmqstore.open(golden_store("live")) as store:
        rows = store.scan(include_pending=True).to_polars()
    expected = rows.filter(C("pending").is_not_null())
    assert pending.filter(C("pending").is_not_null()).collect().equals(expected)
    assert expected.height
    for name in ("where", "limit", "verbatim"):
        with pytest.raises(OptionError, match=f"^{name}: use "):
            rmqstore.polars.scan(root, **{name: "x"})
    with pytest.raises(OptionError, match="did you mean subscribe"):
        rmqstore.polars.scan(root, subscribes="x")
    with pytest.raises(NotAStoreError):
        rmqstore.polars.scan("/nowhere")


def test_without_polars_the_error_says_what_to_install(
    golden_store: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(UnsupportedFeatureError, match=re.escape(install("polars"))):
        rmqstore.polars.scan(golden_store("one"))


def test_python_ends_in_peace_after_a_query_that_needs_few_rows(golden_store: Golden) -> None:
    """Polars reads on in a thread, which would abort the process if Python ended meanwhile."""
    script = (
        "import sys, polars as pl, rmqstore\n"
        "frame = rmqstore.polars.scan(sys.argv[1]).filter(pl.col('topic') == 'TopicA')\n"
        "print(frame.head(3).collect().height)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(golden_store("basic"))],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "3\n"), done.stderr
