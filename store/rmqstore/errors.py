"""Errors of stores, a class for each that a caller can act on; and findings.

Every class keeps its parameters in ``args``, so that an error raised in a Spark worker unpickles on
the driver. An argument of this package that a text names stands in backticks, with its value if it
has one: ```fail_on_data_loss=False` reads on``. Python drops the backticks. The command line and
Spark have other names for arguments, and put them in within :func:`argument_names`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, NamedTuple, Self

_TYPED_TICK: Final = "\ue060"  # stands for a backtick that marks no argument; of no script
_MARKED: Final = re.compile(r"`([a-z][A-Za-z0-9_]*)(?:=([^`]*))?`")


def marked(names: Iterable[str]) -> str:
    """Return the names of arguments, each of them marked, joined by "and"."""
    return " and ".join(f"`{name}`" for name in names)


def as_typed(text: str) -> str:
    """Return a user's input as part of an error text; its backticks mark no argument."""
    return text.replace("`", _TYPED_TICK)


def rename_arguments(text: str, render: Callable[[str, str | None], str]) -> str:
    """Return a text with other names for the arguments that it marks.

    Args:
        text: a text in which backticks mark arguments.
        render: returns what stands for an argument, given its name and its value. That is None if
            the text gives none, and "" if the reader has to choose it, as in ```tiered=```.
    """
    return _MARKED.sub(lambda found: render(found[1], found[2]), text)


def _python_names(text: str) -> str:
    return _MARKED.sub(lambda found: found[0].strip("`"), text)


_renaming: ContextVar[Callable[[str], str]] = ContextVar("_renaming", default=_python_names)


@contextmanager
def argument_names(rename: Callable[[str], str]) -> Iterator[None]:
    """Rename arguments in errors that leave the block or are shown within it.

    So do warnings that are logged within it, whose texts go through :func:`rendered`. For use as a
    context manager or decorator. Other threads keep their own names.

    Args:
        rename: returns a text with other names for the arguments that it marks.
    """
    before = _renaming.get()
    _renaming.set(rename)
    try:
        yield
    except RmqStoreError as err:
        renamed = err.renamed(rename)
        if renamed.args == err.args:
            raise
        raise renamed.with_traceback(err.__traceback__) from err.__cause__
    finally:
        _renaming.set(before)  # not by a token: a generator may end in another context


def number_of(count: int, singular: str, plural: str = "") -> str:
    """Return a count with what it counts, in the singular or plural, by default with an s."""
    return f"{count} {singular if count == 1 else plural or f'{singular}s'}"


def rendered(text: str) -> str:
    """Return a text for a log, with arguments named as :func:`argument_names` says around it."""
    return _renaming.get()(text).replace(_TYPED_TICK, "`")


def install(extra: str) -> str:
    """Return the command that installs an extra of this package."""
    return f"pip install 'pyspark-rmqstore[{extra}]'"


# What reads the records after the end of a log that was not closed.
READS_AFTER_END: Final = (
    "`ignore_log_end=True` with `mode=DROPMALFORMED` and `include_system_topics=True` reads them"
)


class RmqStoreError(Exception):
    """Base of every error that this package raises on purpose."""

    @property
    def text(self) -> str:
        """The text of the error, in which backticks mark arguments."""
        return super().__str__()

    def __str__(self) -> str:
        return rendered(self.text)

    def renamed(self, rename: Callable[[str], str]) -> Self:
        """Return the same error with other names of arguments in its texts.

        Args:
            rename: returns a text with other names for the arguments that it marks.
        """
        return type(self)(*(rename(part) if isinstance(part, str) else part for part in self.args))


class StoreFormatError(RmqStoreError):
    """Bytes on disk contradict the format."""


class MalformedBytesError(StoreFormatError):
    """Bytes of a buffer are not what the format says. Fields: position (in the buffer), reason."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(position, reason)
        self.position, self.reason = position, reason

    @property
    def text(self) -> str:
        return f"position {self.position}: {self.reason}"


class _DamageAtError(StoreFormatError):
    """Damage at a known position.

    Fields: path (of the file), offset (``unit`` says what it counts), reason.
    """

    unit = "offset"

    def __init__(self, path: str, offset: int, reason: str) -> None:
        super().__init__(path, offset, reason)
        self.path, self.offset, self.reason = path, offset, reason

    @property
    def text(self) -> str:
        return f"{self.path}, {self.unit} {self.offset}: {self.reason}"


class CorruptRecordError(_DamageAtError):
    """A CommitLog record is damaged. Fields: path, offset (physical), reason."""

    unit = "physical offset"


class CorruptQueueError(_DamageAtError):
    """A ConsumeQueue file is damaged. Fields: path, offset (byte in the file), reason."""

    unit = "byte"


class CorruptIndexError(_DamageAtError):
    """An index file is damaged. Fields: path, offset (byte in the file), reason."""

    unit = "byte"


class CorruptDatabaseError(StoreFormatError):
    """A RocksDB database cannot be opened, or a part of it cannot be read. Fields: path, reason."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    @property
    def text(self) -> str:
        return (
            f"{self.path}: RocksDB cannot read the database ({self.reason}); "
            "the log does not need it: `scan=commitlog` reads the messages there"
        )


class CorruptConfigError(_DamageAtError):
    """A file under ``config/`` cannot be parsed. Fields: path, offset (character), reason."""

    unit = "character"


class UnreadableFileError(StoreFormatError):
    """A path of the store is something else than the file or folder that belongs there.

    Fields: path, found, expected.
    """

    def __init__(self, path: str, found: str, expected: str) -> None:
        super().__init__(path, found, expected)
        self.path, self.found, self.expected = path, found, expected

    @property
    def text(self) -> str:
        return f"{self.path} is {self.found}; {self.expected} is expected"


NOT_PERMITTED: Final = "may not be read by this user"


class NotPermittedError(UnreadableFileError):
    """The operating system does not let this user read a file or a folder; it may be valid."""

    @property
    def text(self) -> str:
        return (
            f"{self.path} {NOT_PERMITTED} ({self.found}): run as a user who may read it, or permit "
            "it"
        )


class StoreStateError(RmqStoreError):
    """The state of the store as a whole does not allow the request."""


class NotAStoreError(StoreStateError):
    """The path is not a RocketMQ store."""


class OffsetOutOfRangeError(RmqStoreError):
    """Requested messages are not in the store: retention deleted them, or they never were there."""


class FileDeletedError(OffsetOutOfRangeError):
    """A file of the store was deleted after it had been listed, as retention does. Field: path."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path

    @property
    def text(self) -> str:
        return f"{self.path} was deleted while it was read (retention); open the store again"


class FileReplacedError(FileDeletedError):
    """A file of a remote storage got another content while it was read. Field: path."""

    @property
    def text(self) -> str:
        return f"{self.path} was replaced while it was read; open the store again"


class RemoteReadError(RmqStoreError):
    """A remote storage did not give what was asked of it.

    Fields: what (the file, and the range of its bytes), reason, attempts.
    """

    def __init__(self, what: str, reason: str, attempts: int) -> None:
        super().__init__(what, reason, attempts)
        self.what, self.reason, self.attempts = what, reason, attempts

    @property
    def text(self) -> str:
        times = "" if self.attempts == 1 else f" after {self.attempts} attempts"
        return f"{self.what} cannot be read{times}: {self.reason}"


class IllegalMessageError(RmqStoreError, ValueError):
    """A message cannot be stored, because RocketMQ would refuse it."""


class IllegalRowError(IllegalMessageError):
    """A row cannot be stored as a message. Fields: row (counted from 1), reason.

    Whoever knows the file that the row is from names it with its line instead.
    """

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(row, reason)
        self.row, self.reason = row, reason

    @property
    def text(self) -> str:
        return f"row {self.row}, counted from 1: {self.reason}"


class CommitError(StoreStateError):
    """The messages are durable, but their queues or index are incomplete.

    The next writer or broker that opens the store completes them.
    """


class StoreLockedError(StoreStateError):
    """Another writer holds the store: a running broker, or a writer of this package."""


class MessageNotFoundError(RmqStoreError, LookupError):
    """There is no message with the given id or at the given offset."""


class UnsupportedFeatureError(RmqStoreError):
    """The store or the request needs a feature that this version lacks.

    The text says what, why and what to do.
    """


class OptionError(RmqStoreError, ValueError):
    """An option or argument is unknown, contradictory or out of its domain. The text names it."""


class BrokerUnreachableError(RmqStoreError):
    """A broker did not answer, or what came is not an answer. Fields: address, reason.

    The same request may succeed later.
    """

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(address, reason)
        self.address, self.reason = address, reason

    @property
    def text(self) -> str:
        return f"{self.address}: {self.reason}"


class BrokerRefusedError(RmqStoreError):
    """A broker refused a request. Fields: address, code (of the answer), reason."""

    def __init__(self, address: str, code: int, reason: str) -> None:
        super().__init__(address, code, reason)
        self.address, self.code, self.reason = address, code, reason

    @property
    def text(self) -> str:
        return f"{self.address} refused a request (code {self.code}): {self.reason}"


class Finding(NamedTuple):
    """One disagreement within a store, which a check lists instead of raising an error."""

    # log, end, queue, index, config, timer, tier or check; other names for Kafka's logs
    part: str
    place: str  # a file, a position in one, or a queue such as ``Orders-0``
    text: str
    kind: str = ""  # what it means, a name in ``inspect.remedies``; "" for that of its part
    stops_broker: bool = False  # whether a broker does not start on the store because of it
    # the queue offsets of the queue that a broker which starts does not serve, and the one from
    # which on it gives offsets of the queue out again
    unserved: tuple[range, ...] = ()
    next_offset: int | None = None
