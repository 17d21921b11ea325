"""Finds damage of the tables under ``config/``, and names what they say of no queue of the store.

What a broker makes of the latter was tried with RocketMQ 5.3.3: it starts, and loses no message of
the store.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress

from rmqstore.errors import Finding, NotPermittedError, RmqStoreError
from rmqstore.format.topics import is_system_topic
from rmqstore.read.store_parts import StoreParts
from rmqstore.storage.broker.broker_run import OPEN, state_of
from rmqstore.storage.broker.config_files import TOPICS, why_unknown

logger = logging.getLogger(__name__)


def table_findings(parts: StoreParts) -> Iterator[Finding]:
    """Yield the damage of tables.

    Warnings name topics that a table lacks, and groups that are ahead of queues.

    Raises:
        NotPermittedError: a table may not be read by this user.
    """
    for err, stops_broker in parts.config.damage():
        if isinstance(err.__cause__, NotPermittedError):
            raise err.__cause__
        text = "; ".join(filter(None, (err.reason, stops_broker)))
        kind = "tables" if stops_broker else ""
        yield Finding("config", f"{err.path}, {err.offset}", text, kind, bool(stops_broker))
    for warn in (_warn_of_missing_topics, _warn_of_groups_ahead):
        with suppress(RmqStoreError, OSError):  # a finding about a table or a queue says why
            warn(parts)


def _warn_of_missing_topics(parts: StoreParts) -> None:
    unknown = {*parts.store_queues.topics()} - parts.config.topic_entries().keys()
    missing = [topic for topic in sorted(unknown) if not is_system_topic(topic)]
    if missing and why_unknown(parts.paths, TOPICS) is None:
        logger.warning(
            "%s lacks topics that have queues, %d: %s. A broker keeps the queues, and its clients "
            "find them once the topic is created again",
            parts.paths.topics_json, len(missing), ", ".join(missing[:5]),
        )  # fmt: skip


def _warn_of_groups_ahead(parts: StoreParts) -> None:
    if state_of(parts.paths) == OPEN:  # its offsets are newer than the ends that were found
        return
    queues = {topic: parts.store_queues.ids(topic) for topic in parts.store_queues.known_topics()}
    ahead = []
    for group, offsets in parts.config.committed_offsets().items():
        for (topic, queue_id), committed in offsets.items():
            ids = queues.get(topic)  # none of one that was deleted
            end = parts.queue_range(topic, queue_id)[1] if queue_id in (ids or ()) else 0
            if ids is not None and committed > end:
                ahead.append(f"{group} in {topic}-{queue_id} ({committed}, the end is {end})")
    if ahead:
        logger.warning(
            "%s: offsets after the end of a queue, %d: %s. A group that has one misses what is "
            "sent to the queue before its consumers ask for messages",
            parts.paths.root, len(ahead), ", ".join(ahead[:5]),
        )  # fmt: skip
