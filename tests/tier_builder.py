"""Makes tiered storage out of a store's queues, as a broker would have uploaded them."""

from __future__ import annotations

import hashlib
import shutil
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

import rmqstore
from rmqstore.storage.broker.store_config import StoreConfig

CLUSTER, BROKER = "DefaultCluster", "oracle"
_PHYSICAL_OFFSET = 28  # where a record holds it

Key = tuple[str, int]
KEYS: list[Key] = [("A", 0), ("A", 1), ("B", 0)]
SIZES = StoreConfig().updated(
    {"mappedFileSizeCommitLog": 4096, "maxHashSlotNum": 50, "maxIndexNum": 200}
)


def name_of(offset: int) -> str:
    return f"{_hash(str(offset))}{offset:020d}"


def _hash(name: str) -> str:
    return hashlib.md5(name.encode(), usedforsecurity=False).hexdigest()[:8]


@dataclass
class Stored:
    """One message: its record as some log holds it, and its tags code."""

    queue_offset: int
    record: bytes
    tags_code: int


def stored_messages(root: Path, keys: Iterable[Key] = ()) -> dict[Key, list[Stored]]:
    with rmqstore.open(root) as store:
        parts = store.parts
        every = [(topic, number) for topic in store.topics() for number in store.queue_ids(topic)]
        found: dict[Key, list[Stored]] = {}
        for key in keys or every:
            messages = found[key] = []
            start, end = store.queue_range(*key)
            for queue_offset in range(start, end):
                place, size, code = parts.queues.open(*key).unit(queue_offset)
                record = parts.log.read(*parts.log.locate(place), size).tobytes()
                messages.append(Stored(queue_offset, record, code))
        return found


def write_tier(
    folder: Path,
    queues: Mapping[Key, Sequence[Stored]],
    *,
    log_file: int = 4096,
    units_per_file: int = 20,
    log_start: int = 0,
) -> Path:
    """Write tiered storage below a folder; return the folder of the broker.

    Args:
        folder: what would be ``tieredStoreFilePath``.
        queues: the messages by queue; queue offsets follow one another.
        log_file: bytes after which a file of the log ends.
        units_per_file: units after which a file of a queue ends.
        log_start: the offset at which the log of each queue begins.
    """
    broker = folder / f"{_hash(CLUSTER)}_{CLUSTER}" / BROKER
    for (topic, queue_id), messages in queues.items():
        queue = broker / topic / str(queue_id)
        log: dict[int, bytearray] = {}
        units: dict[int, bytearray] = {}
        offset = log_start
        for number, message in enumerate(messages):
            if not log or len(log[max(log)]) + len(message.record) > log_file:
                log[offset] = bytearray()
            record = bytearray(message.record)
            struct.pack_into(">q", record, _PHYSICAL_OFFSET, offset)
            log[max(log)] += record
            if number % units_per_file == 0:
                units[message.queue_offset * 20] = bytearray()
            units[max(units)] += struct.pack(">qiq", offset, len(record), message.tags_code)
            offset += len(record)
        for kind, files in (("COMMIT_LOG", log), ("CONSUME_QUEUE", units)):
            (queue / kind).mkdir(parents=True)
            for start, content in files.items():
                (queue / kind / name_of(start)).write_bytes(content)
    return broker


def files_of(queue: Path, kind: str) -> list[Path]:
    return sorted((queue / kind).iterdir(), key=lambda file: file.name[-20:])


class TieringBroker:
    """A store whose messages move to tiered storage, as those of a broker do.

    Attributes:
        sent: the bodies of all messages, by queue.
    """

    def __init__(self, folder: Path) -> None:
        self.root, self.tier = folder / "store", folder / "tier"
        rmqstore.create(self.root, config=SIZES).close()
        self.sent: dict[Key, list[bytes]] = {key: [] for key in KEYS}
        self._uploaded: dict[Key, list[Stored]] = {}

    def put(self, key: Key, count: int) -> None:
        bodies = [
            b"%s-%d %d" % (key[0].encode(), key[1], len(self.sent[key]) + n) for n in range(count)
        ]
        topic, queue_id = key
        with rmqstore.open(self.root, "a", config=SIZES) as writer:
            writer.append(
                pa.RecordBatch.from_pydict(
                    {
                        "topic": [topic] * count,
                        "queueId": pa.array([queue_id] * count, pa.int32()),
                        "body": [body.ljust(200) for body in bodies],
                    }
                )
            )
        self.sent[key] += bodies

    def upload(self, key: Key, count: int | None = None) -> None:
        uploaded = self._uploaded.setdefault(key, [])
        end = uploaded[-1].queue_offset + 1 if uploaded else 0
        here = stored_messages(self.root, [key])[key]
        uploaded += [message for message in here if message.queue_offset >= end][:count]
        shutil.rmtree(self.tier, ignore_errors=True)
        write_tier(self.tier, {key: stored for key, stored in self._uploaded.items() if stored})

    def expire(self) -> None:
        """Delete all files of the log but the last one; everything in them was uploaded."""
        for key in KEYS:
            if self.sent[key]:
                self.upload(key)
        for file in sorted((self.root / "commitlog").iterdir())[:-1]:
            file.unlink()

    def numbered(self) -> dict[Key, list[tuple[int, str]]]:
        return {
            key: [(number, body.decode().ljust(200)) for number, body in enumerate(bodies)]
            for key, bodies in self.sent.items()
            if bodies
        }
