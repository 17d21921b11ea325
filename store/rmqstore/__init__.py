"""Apache RocketMQ stores as Arrow batches: reads the files of a live, stopped, copied or crashed broker."""

from rmqstore.errors import (
    CorruptConfigError,
    CorruptQueueError,
    CorruptRecordError,
    MessageNotFoundError,
    NotAStoreError,
    OffsetOutOfRangeError,
    OptionError,
    RmqStoreError,
    StoreFormatError,
    UnsupportedFeatureError,
)
from rmqstore.format.schema import Message
from rmqstore.store import MessageStore, QueueInfo
from rmqstore.store import open_store as open  # noqa: A004 - `rmqstore.open(path)` reads as it should

__all__ = [
    "CorruptConfigError",
    "CorruptQueueError",
    "CorruptRecordError",
    "Message",
    "MessageNotFoundError",
    "MessageStore",
    "NotAStoreError",
    "OffsetOutOfRangeError",
    "OptionError",
    "QueueInfo",
    "RmqStoreError",
    "StoreFormatError",
    "UnsupportedFeatureError",
    "open",
]
