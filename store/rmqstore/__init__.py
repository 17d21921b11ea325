"""Apache RocketMQ stores as Arrow batches: read from the files of a live, stopped or crashed broker, and appended."""

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
from rmqstore.opening import create
from rmqstore.opening import open_for as open  # noqa: A004 - `rmqstore.open(path)` reads as it should
from rmqstore.storage.broker.store_config import StoreConfig, read_properties
from rmqstore.store import MessageStore, QueueInfo
from rmqstore.write.messages import WriteSpec
from rmqstore.write.writer import StoreWriter

__version__ = "0.1.0"

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
    "__version__",
    "create",
    "open",
    "read_properties",
]
