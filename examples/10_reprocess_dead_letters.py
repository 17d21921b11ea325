"""Send the dead letters of a consumer group again: into another store, under their old topics.

Usage: python examples/10_reprocess_dead_letters.py STORE TARGET GROUP

Run it as often as you like: each dead letter is written once. A broker may have STORE open, but not
TARGET; start a broker on TARGET afterwards, or merge it with `rmqstore export` and `import`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa

import rmqstore

# What the broker and its clients noted on the way into the dead letter queue. A message that is
# sent again begins anew, so it must not have these.
NOTES = {
    "RETRY_TOPIC", "ORIGIN_MESSAGE_ID", "DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID", "REAL_TOPIC",
    "REAL_QID", "DELAY", "RECONSUME_TIME", "MAX_RECONSUME_TIMES", "CONSUME_START_TIME",
    "1ST_POP_TIME", "POP_CK", "WAIT",
}  # fmt: skip


def main(path: str, target: str, group: str) -> None:
    topic = f"%DLQ%{group}"
    is_new = not Path(target).exists()
    with (
        rmqstore.open(path) as store,
        rmqstore.create(target) if is_new else rmqstore.open(target, mode="a") as writer,
    ):
        queues = store.queues(topic)
        if not queues:
            raise SystemExit(f"{path} has no dead letters of {group}")
        (queue,) = queues  # a broker has one queue of dead letters for a group
        # The queue offset that is reached is the version of the write. The target keeps it in the
        # same commit as the messages, so neither a crash nor a second run writes one twice.
        application = f"dead-letters-{store.broker_name}-{group}"
        start = max(writer.done_version(application) or 0, queue.min_offset)
        if start >= queue.max_offset:
            print(f"nothing new: all {start} dead letters of {group} are in {target}")
            return
        bounds = {
            "assign": {topic: [queue.queue_id]},
            "starting_offsets": {topic: {queue.queue_id: start}},
            "ending_offsets": {topic: {queue.queue_id: queue.max_offset}},
        }
        messages = store.scan(**bounds).read_all()
        origins = store.view("deadLetters", columns="queueOffset,originTopic", **bounds).read_all()
        topics = dict(zip(*(column.to_pylist() for column in origins.columns), strict=True))
        again = rows_again(messages, topics, topic)
        writer.append(again)
        writer.flush(txn=(application, queue.max_offset))
        left = len(messages) - len(again)
        print(f"{len(again)} dead letters of {group} are in {target} again, {left} have no origin")
        for row in again.group_by("topic").aggregate([([], "count_all")]).to_pylist():
            print(f"  {row['topic']}: {row['count_all']}")


def rows_again(messages: pa.Table, topics: dict[int, str | None], dead_topic: str) -> pa.Table:
    """Return the messages as their producer sent them, with their unique keys.

    Consumers that keep the keys they have seen recognise a message that they did consume.
    """
    rows = []
    for message in messages.to_pylist():
        topic = topics.get(message["queueOffset"])
        if topic is not None:
            properties = {name: value for name, value in message["properties"] if name not in NOTES}
            properties["REPROCESSED_FROM"] = f"{dead_topic}@{message['queueOffset']}"
            rows.append({
                "topic": topic,
                "body": message["body"],
                "tags": message["tags"],
                "keys": message["keys"],
                "msgId": message["msgId"],
                "properties": list(properties.items()),
                "flag": message["flag"],
                "bornTimestamp": message["bornTimestamp"],
            })  # fmt: skip
    names = ("topic", "body", "tags", "keys", "msgId", "properties", "flag", "bornTimestamp")
    return pa.Table.from_pylist(rows, schema=pa.schema([messages.field(name) for name in names]))


if __name__ == "__main__":
    if len(sys.argv) != 4:
        raise SystemExit(__doc__)
    try:
        main(*sys.argv[1:])
    except (rmqstore.RmqStoreError, OSError) as err:
        print(f"error: {err}", file=sys.stderr)
        raise SystemExit(2) from err
