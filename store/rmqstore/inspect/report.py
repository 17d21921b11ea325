"""The report about stores: one HTML file that needs no other file and no network.

Only queue units are read completely.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np

from rmqstore.errors import Finding, RmqStoreError, UnsupportedFeatureError, install
from rmqstore.exchange.json_rows import numbered_times
from rmqstore.format.topics import is_system_topic
from rmqstore.inspect.charts import (
    draw_groups,
    draw_rates,
    draw_skew,
    draw_topics,
    estimate_rates,
)
from rmqstore.inspect.facts import (
    FileFacts,
    GroupFacts,
    QueueFacts,
    StoreFacts,
    TopicFacts,
)
from rmqstore.inspect.remedies import CheckedStore, by_kind
from rmqstore.inspect.verify import verify
from rmqstore.progress import Progress, ignore_progress
from rmqstore.query.arrow_rows import ArrowRows
from rmqstore.query.times import in_current_zone, zone_name
from rmqstore.read.queue_ranges import describe_lmqs
from rmqstore.read.views.schema import VIEWS
from rmqstore.spans import QueueSlice
from rmqstore.storage.broker.broker_run import STATES, state_of
from rmqstore.storage.broker.config_files import OFFSETS, why_unknown
from rmqstore.storage.queue.queue import total_weight
from rmqstore.store.message_store import MessageStore

logger = logging.getLogger(__name__)

# with more messages their bytes are estimated, because counting would read each unit
_EXACT_UNITS = 20_000_000
_SIZE_SAMPLES = 16

_SHOWN_ROWS = 2000
_STEP = 1024
_UNKNOWN = "\N{EN DASH}"


def gather(
    store: MessageStore, *, with_verify: bool = True, progress: Progress = ignore_progress
) -> StoreFacts:
    """Gather the numbers of a report.

    Args:
        store: the store, opened for reading.
        with_verify: also check the store, which reads all of its log.
        progress: called with the progress of the check.
    """
    store.parts.require("a report")
    notes = store.parts.kind().lines()
    if apart := store.parts.ranges.lmq_messages_apart:
        text = f"{describe_lmqs(Counter(apart), apart)} lie in RocksDB alone"
        notes.append(f"{text}: the numbers lack them")
    queues, is_estimated = _queues(store)
    groups: list[GroupFacts] = []
    groups_unknown = why_unknown(store.paths, OFFSETS)
    if groups_unknown is None:
        try:
            groups = _groups(store, queues, notes)
        except RmqStoreError as err:
            groups_unknown = str(err)
    path = str(store.paths.storage.full_path(store.paths.root))
    facts = StoreFacts(
        path=path,
        checked=CheckedStore.of(store.paths, path) if with_verify else CheckedStore(path, path),
        broker_name=store.parts.view_broker_name,
        topics=_topics(queues),
        queues=queues,
        groups=groups,
        groups_unknown=groups_unknown,
        files=_files(store),
        rates=None,
        state=state_of(store.paths),
        log_end=store.log_end,
        after_end=store.parts.ends.after_end,
        is_estimated=is_estimated,
        lacks_rocksdb_queues=store.parts.ends.are_queues_unread,
        notes=notes,
    )
    rates = estimate_rates(store, facts)
    notes += [f"{queue.topic}-{queue.queue_id}: {queue.reason}" for queue in queues if queue.reason]
    findings: list[Finding] | None = None
    if with_verify:
        findings = []
        try:
            findings.extend(verify(store, progress))
        except (RmqStoreError, OSError) as err:
            text = f"could not be finished: {err}"
            findings.append(Finding("check", str(store.paths.root), text))
    return replace(facts, rates=rates, findings=findings)


def _queues(store: MessageStore) -> tuple[list[QueueFacts], bool]:
    """Return all queues, and whether their bytes are estimates."""
    names = [name for name in VIEWS["queues"].names if name != "bytes"]
    rows = _rows(store.view("queues", columns=names, include_system_topics=True))
    is_estimated = sum(row["messages"] or 0 for row in rows) > _EXACT_UNITS
    queues = [
        QueueFacts(
            topic=row["topic"],
            is_system=is_system_topic(row["topic"]),
            queue_id=row["queueId"],
            min_offset=row["minOffset"],
            max_offset=row["maxOffset"],
            messages=row["messages"],
            n_bytes=_n_bytes(store, row, is_estimated=is_estimated),
            first=row["firstStoreTimestamp"],
            last=row["lastStoreTimestamp"],
            reason=row["reason"],
        )
        for row in rows
    ]
    return queues, is_estimated


def _n_bytes(store: MessageStore, row: dict[str, Any], *, is_estimated: bool) -> int | None:
    """Return the bytes of the records of a queue, None if they are not known."""
    if not row["messages"]:
        return None if row["messages"] is None else 0
    queue = QueueSlice(row["topic"], row["queueId"], row["minOffset"], row["maxOffset"])
    try:
        if is_estimated:
            samples = store.parts.retry(lambda: store.parts.sampler.sample(queue, _SIZE_SAMPLES))
            sizes = [sample.mean_bytes for sample in samples]
            return int(row["messages"] * np.mean(sizes)) if sizes else None
        units = store.parts.queues.open(queue.topic, queue.queue_id)
        return total_weight(units, queue.start, queue.end)
    except (RmqStoreError, OSError) as err:
        logger.info("%s-%d: %s", queue.topic, queue.queue_id, err)
        return None


def _rows(view: ArrowRows) -> list[dict[str, Any]]:
    """Return the rows of a view, with times in ms."""
    _, batches = numbered_times(view.schema, view)
    return [row for batch in batches for row in batch.to_pylist()]


def _topics(queues: Sequence[QueueFacts]) -> list[TopicFacts]:
    """Return the topics of queues, the largest first."""
    by_topic: dict[str, list[QueueFacts]] = {}
    for queue in queues:
        by_topic.setdefault(queue.topic, []).append(queue)
    topics = []
    for topic, parts in by_topic.items():
        counts = [queue.messages or 0 for queue in parts]
        firsts = [queue.first for queue in parts if queue.first is not None]
        lasts = [queue.last for queue in parts if queue.last is not None]
        topics.append(
            TopicFacts(
                topic=topic,
                is_system=is_system_topic(topic),
                queues=len(parts),
                messages=sum(counts),
                n_bytes=sum(queue.n_bytes or 0 for queue in parts),
                first=min(firsts, default=None),
                last=max(lasts, default=None),
                skew=max(counts) * len(counts) / sum(counts) if sum(counts) else None,
            )
        )
    return sorted(topics, key=lambda topic: (-topic.n_bytes, -topic.messages, topic.topic))


def _groups(
    store: MessageStore, queues: Sequence[QueueFacts], notes: list[str]
) -> list[GroupFacts]:
    """Return the groups, those with the largest lag first, and set the lag of each queue."""
    rows = _rows(store.view("groups"))
    earlier: dict[str, dict[tuple[str, int], int]] = {}
    try:
        earlier = store.parts.config.earlier_offsets()
    except (RmqStoreError, OSError) as err:
        logger.info("%s", err)
    by_queue = {(queue.topic, queue.queue_id): queue for queue in queues}
    groups: dict[tuple[str, str], GroupFacts] = {}
    for row in rows:
        group = groups.setdefault(
            (row["consumerGroup"], row["topic"]), GroupFacts(row["consumerGroup"], row["topic"])
        )
        group.add_queue()
        if row["lag"] is None:
            continue
        # What is deleted can no longer be consumed, and being ahead makes up for nothing elsewhere.
        lag = min(max(row["lag"], 0), row["brokerOffset"] - row["minOffset"])
        if row["lag"] < 0:
            notes.append(
                f"{row['consumerGroup']}: its offset {row['consumerOffset']:,} of "
                f"{row['topic']}-{row['queueId']} is beyond the end {row['brokerOffset']:,}"
            )
        before = earlier.get(row["consumerGroup"], {}).get((row["topic"], row["queueId"]))
        consumed = None if before is None else max(row["consumerOffset"] - before, 0)
        group.add_lag(lag, row["lagMillis"], consumed)
        queue = by_queue.get((row["topic"], row["queueId"]))
        if queue is not None:
            queue.meet_lag(lag)
    return sorted(groups.values(), key=lambda group: (-(group.lag or 0), group.group, group.topic))


def _files(store: MessageStore) -> list[FileFacts]:
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for row in _rows(store.view("files", columns=["kind", "size", "allocated", "state"])):
        by_kind.setdefault(row["kind"], []).append(row)
    kinds = []
    for kind, rows in by_kind.items():
        states = Counter(row["state"] for row in rows)
        kinds.append(
            FileFacts(
                kind=kind,
                files=len(rows),
                n_bytes=sum(row["size"] for row in rows),
                allocated=sum(row["allocated"] for row in rows),
                states=dict(sorted(states.items())),
            )
        )
    return sorted(kinds, key=lambda kind: -kind.n_bytes)


def require_libraries() -> None:
    """Check that the libraries for drawing are installed, before any long work begins.

    Raises:
        UnsupportedFeatureError: a library is missing; the text says what to install.
    """
    try:
        import jinja2  # noqa: F401
    except ImportError as err:
        raise UnsupportedFeatureError(
            f"a report needs jinja2: {install('report')} ({err})"
        ) from err


def render(stores: Sequence[StoreFacts], made_at: datetime) -> str:
    """Return the page as HTML. All text from the stores is escaped.

    Raises:
        UnsupportedFeatureError: a library for drawing is missing.
    """
    require_libraries()
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("rmqstore.inspect.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(count=count, size=size, time=time, span=span)
    return environment.get_template("page.html.j2").render(
        stores=stores,
        made_at=in_current_zone(made_at),
        zone=zone_name(),
        limit=_SHOWN_ROWS,
        by_kind=by_kind,
        draw_topics=draw_topics,
        draw_groups=draw_groups,
        draw_rates=draw_rates,
        draw_skew=draw_skew,
        states=STATES,
    )


def count(number: float | None) -> str:
    """Return a number with thousands separators."""
    return _UNKNOWN if number is None else f"{number:,}"


def size(n_bytes: int | None) -> str:
    """Return a number of bytes in the largest unit that fits."""
    if n_bytes is None:
        return _UNKNOWN
    amount = float(n_bytes)
    unit = "B"
    for larger in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        if amount < _STEP:
            break
        amount /= _STEP
        unit = larger
    return f"{n_bytes:,} B" if unit == "B" else f"{amount:,.1f} {unit}"


def time(millis: int | None) -> str:
    """Return a time in ms as text, in the current time zone."""
    if millis is None:
        return _UNKNOWN
    return in_current_zone(datetime.fromtimestamp(millis / 1000, UTC)).strftime("%Y-%m-%d %H:%M:%S")


def span(millis: int | None) -> str:
    """Return a duration in ms as text, in its two largest units."""
    if millis is None:
        return _UNKNOWN
    if millis < 1000:
        return f"{millis} ms"
    left = millis // 1000
    parts = []
    for unit, seconds in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        if left >= seconds:
            parts.append(f"{left // seconds} {unit}")
            left %= seconds
    return " ".join(parts[:2])
