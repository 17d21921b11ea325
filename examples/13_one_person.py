"""Extract the messages of one person from a store, and write a store without what they say.

Usage: python examples/13_one_person.py STORE EXTRACT TARGET KEY...

KEY is a message key, such as the number of a customer. Their messages go to the Parquet file
EXTRACT. In the new store TARGET each of them is still there with its queue offset, so that the
offsets of consumers stay valid, but its body, its keys and its own properties are gone.

A log forgets nothing in place: this program only makes a store without these messages. The
page docs/howto.md says where else they are.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import rmqstore
from rmqstore.inspect.verify import verify

# Properties by which the broker handles a message. All others are the producer's.
OF_THE_BROKER = {
    "UNIQ_KEY", "CLUSTER", "MSG_REGION", "TRACE_ON", "WAIT", "DELAY", "REAL_TOPIC", "REAL_QID",
    "RETRY_TOPIC", "ORIGIN_MESSAGE_ID", "TRAN_MSG", "PGROUP", "TIMER_OUT_MS", "TIMER_DELAY_MS",
    "TIMER_DELAY_SEC", "TIMER_DELIVER_MS", "INNER_NUM", "INNER_BASE", "1ST_POP_TIME",
}  # fmt: skip
COMPRESSED = 0x1 | 0x700  # of sysFlag: a flag, and which compression it is


def main(path: str, extract: str, target: str, *keys: str) -> None:
    with rmqstore.open(path) as store:
        found = messages_of(store, keys)
        pq.write_table(found, extract)
        print(f"{len(found)} messages, with retries and dead letters, in {extract}")
        places = {*found["commitLogOffset"].to_pylist(), *traces_of(store, keys)}
        with rmqstore.create(target) as writer:
            everything = store.scan(scan="commitlog", verbatim=True, include_system_topics=True)
            for batch in everything:
                writer.append(without_words(batch, places), verbatim=True)
        # Topics, groups and offsets belong to the store too. What the timer notes are places in the
        # old log.
        shutil.copytree(
            Path(path) / "config",
            Path(target) / "config",
            dirs_exist_ok=True,
            ignore=shutil.ignore_patterns("timer*"),
        )
    with rmqstore.open(target) as store:
        findings = [*verify(store)]
        left = len(messages_of(store, keys))
    print(f"{len(places)} records of {target} are empty now; {left} messages are found by the keys")
    raise SystemExit(1 if left or findings else 0)


def messages_of(store: rmqstore.MessageStore, keys: tuple[str, ...]) -> pa.Table:
    """Return the messages with these keys, and all copies that retries made of them."""
    every = {"include_system_topics": True}
    found = store.scan(msg_key=list(keys), **every).read_all()
    ids = pc.unique(found["msgId"]).to_pylist()
    return store.scan(msg_id=ids, **every).read_all() if ids else found


def traces_of(store: rmqstore.MessageStore, keys: tuple[str, ...]) -> list[int]:
    """Return the physical offsets of messages whose traces name these keys."""
    traces = store.view("traces", columns="commitLogOffset,keys").read_all().to_pylist()
    wanted = {*keys}
    return [row["commitLogOffset"] for row in traces if wanted & {*(row["keys"] or "").split()}]


def without_words(batch: pa.RecordBatch, places: set[int]) -> pa.RecordBatch:
    """Return records in which those at some physical offsets have no body, keys or tags."""
    is_theirs = pc.is_in(batch["commitLogOffset"], pa.array(sorted(places), pa.int64()))
    if not pc.any(is_theirs).as_py():
        return batch
    kept = [
        b"".join(
            entry + b"\x02"
            for entry in stored.split(b"\x02")
            if not hidden or entry.partition(b"\x01")[0].decode("utf-8", "replace") in OF_THE_BROKER
            if entry
        )
        for stored, hidden in zip(
            batch["properties"].to_pylist(), is_theirs.to_pylist(), strict=True
        )
    ]
    flags = pc.bit_wise_and(batch["sysFlag"], pa.scalar(~COMPRESSED, pa.int32()))
    changed = {
        "body": pc.if_else(is_theirs, pa.scalar(b""), batch["body"]),
        "properties": pa.array(kept, pa.binary()),
        "sysFlag": pc.if_else(is_theirs, flags, batch["sysFlag"]),
    }
    columns = [changed.get(name, batch[name]) for name in batch.schema.names]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


if __name__ == "__main__":
    if len(sys.argv) < 5:
        raise SystemExit(__doc__)
    try:
        main(*sys.argv[1:])
    except (rmqstore.RmqStoreError, OSError) as err:
        print(f"error: {err}", file=sys.stderr)
        raise SystemExit(2) from err
