"""What can go wrong with a store, one class for each thing a caller can act on; knows nothing of how it is found.

Every class keeps its parameters in ``args``, so that an error raised in a Spark worker unpickles on the driver.
"""

from __future__ import annotations


class RmqStoreError(Exception):
    """Base of every error this package raises on purpose."""


class StoreFormatError(RmqStoreError):
    """Bytes on disk contradict the format."""


class MalformedBytesError(StoreFormatError):
    """Bytes of a buffer are not what the format says. Fields: position (in the buffer), reason."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(position, reason)
        self.position, self.reason = position, reason

    def __str__(self) -> str:
        return f"position {self.position}: {self.reason}"


class _DamageAtError(StoreFormatError):
    """Damage with a place. Fields: path (of the file), reason, and the offset that the subclass names."""

    place = "offset"

    def __init__(self, path: str, offset: int, reason: str) -> None:
        super().__init__(path, offset, reason)
        self.path, self.offset, self.reason = path, offset, reason

    def __str__(self) -> str:
        return f"{self.path}, {self.place} {self.offset}: {self.reason}"


class CorruptRecordError(_DamageAtError):
    """A CommitLog record is damaged. Fields: path, offset (physical), reason."""

    place = "physical offset"


class CorruptQueueError(_DamageAtError):
    """A ConsumeQueue file is damaged. Fields: path, offset (byte in the file), reason."""

    place = "byte"


class CorruptIndexError(_DamageAtError):
    """An index file is damaged. Fields: path, offset (byte in the file), reason."""

    place = "byte"


class CorruptConfigError(_DamageAtError):
    """A file under ``config/`` cannot be parsed. Fields: path, offset (character), reason."""

    place = "character"


class UnreadableFileError(StoreFormatError):
    """A name of the store stands for something that cannot be read. Fields: path, found, wanted."""

    def __init__(self, path: str, found: str, wanted: str) -> None:
        super().__init__(path, found, wanted)
        self.path, self.found, self.wanted = path, found, wanted

    def __str__(self) -> str:
        return f"{self.path} is {self.found}; {self.wanted} is expected"


class StoreStateError(RmqStoreError):
    """The store as a whole is not in a state that allows what was asked."""


class NotAStoreError(StoreStateError):
    """The path holds no RocketMQ store."""


class OffsetOutOfRangeError(RmqStoreError):
    """Messages that were asked for are not in the store: deleted by retention, or never there."""


class FileDeletedError(OffsetOutOfRangeError):
    """A file of the store was deleted, as retention does, after it had been listed. Field: path."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path

    def __str__(self) -> str:
        return f"{self.path} was deleted while it was read (retention); open the store anew"


class IllegalMessageError(RmqStoreError, ValueError):
    """A message cannot be stored, as RocketMQ would not store it; the text names the row and the reason."""


class CommitError(StoreStateError):
    """Messages are committed, and their queues or index are not complete; the next one to open the store does that."""


class StoreLockedError(StoreStateError):
    """Another writer has the store: a running broker, or one of ours."""


class MessageNotFoundError(RmqStoreError, LookupError):
    """No message stands at the id or offset asked for."""


class UnsupportedFeatureError(RmqStoreError):
    """The store or the request needs what this version does not do; the message says what, why and the way round."""


class OptionError(RmqStoreError, ValueError):
    """An option or argument is unknown, contradictory or out of its domain; the message names it."""
