"""Apache RocketMQ stores as Arrow batches: read from the files of a live, stopped or crashed broker, and appended."""

from rmqstore.config import StoreConfig, read_properties
from rmqstore.entry import create
from rmqstore.entry import open_for as open  # noqa: A004 - `rmqstore.open(path)` reads as it should
from rmqstore.errors import (
    CommitError,
    CorruptConfigError,
    CorruptIndexError,
    CorruptQueueError,
    CorruptRecordError,
    IllegalMessageError,
    MessageNotFoundError,
    NotAStoreError,
    OffsetOutOfRangeError,
    OptionError,
    RmqStoreError,
    StoreFormatError,
    StoreLockedError,
    StoreStateError,
    UnsupportedFeatureError,
)
from rmqstore.format.schema import Message
from rmqstore.messages import WriteSpec
from rmqstore.store import MessageStore, QueueInfo
from rmqstore.writer import StoreWriter

__all__ = [
    "CommitError",
    "CorruptConfigError",
    "CorruptIndexError",
    "CorruptQueueError",
    "CorruptRecordError",
    "IllegalMessageError",
    "Message",
    "MessageNotFoundError",
    "MessageStore",
    "NotAStoreError",
    "OffsetOutOfRangeError",
    "OptionError",
    "QueueInfo",
    "RmqStoreError",
    "StoreConfig",
    "StoreFormatError",
    "StoreLockedError",
    "StoreStateError",
    "StoreWriter",
    "UnsupportedFeatureError",
    "WriteSpec",
    "create",
    "open",
    "read_properties",
]
