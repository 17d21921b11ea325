"""What can go wrong with a store: one class for each thing that a caller can act on, and findings.

Every class keeps its parameters in ``args``, so that an error raised in a Spark worker unpickles on
the driver. Where a text names an argument of this package, it is a :class:`Text`, which knows that:
it reads ``fail_on_data_loss=False`` in Python, and whoever gives the argument another name, such as
an option of a command, names it so by :meth:`RmqStoreError.named`, and in warnings by
:func:`argument_names`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple, Self


class Argument(NamedTuple):
    """An argument that a text names.

    Attributes:
        name: its name in Python.
        value: what it should be; "" where the reader has to choose that.
        is_second: whether it goes with another one before it, which says where they belong.
    """

    name: str
    value: str | bool | None = None
    is_second: bool = False

    def __str__(self) -> str:
        return self.name if self.value is None else f"{self.name}={self.value}"


class _Naming:
    """How arguments are named in texts that are formatted now, such as those of warnings."""

    name: Callable[[Argument], str] = staticmethod(str)


@contextmanager
def argument_names(name: Callable[[Argument], str]) -> Iterator[None]:
    """Give arguments other names in all warnings that are logged meanwhile, by any thread.

    Args:
        name: returns what stands for an argument.
    """
    before, _Naming.name = _Naming.name, staticmethod(name)
    try:
        yield
    finally:
        _Naming.name = staticmethod(before)


class Text(str):
    """A text in which some words are arguments.

    As a string it names them as Python does, and where it is formatted as :func:`argument_names`
    says.
    """

    __slots__ = ("parts",)
    parts: tuple[str | Argument, ...]

    def __new__(cls, *parts: str | Argument) -> Self:
        """Join parts, which may be such texts themselves."""
        plain = (part if isinstance(part, str) else str(part) for part in parts)
        text = super().__new__(cls, "".join(plain))
        flat = [part.parts if isinstance(part, Text) else (part,) for part in parts]
        text.parts = tuple(part for some in flat for part in some)
        return text

    def __reduce__(self) -> tuple[type[Text], tuple[str | Argument, ...]]:
        return Text, self.parts

    def __str__(self) -> str:
        return self.named(_Naming.name)

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)

    def named(self, name: Callable[[Argument], str]) -> str:
        """Return the text with other names of arguments.

        Args:
            name: returns what stands for an argument.
        """
        return "".join(name(part) if isinstance(part, Argument) else part for part in self.parts)


def about(argument: str, text: str) -> Text:
    """Return a text that begins with the name of an argument."""
    return Text(Argument(argument), text)


# What reads the records after the end of a log that was not closed.
READS_AFTER_END: Final = Text(
    Argument("ignore_log_end", value=True),
    " with ",
    Argument("mode", "DROPMALFORMED", is_second=True),
    " and ",
    Argument("include_system_topics", value=True, is_second=True),
    " reads them",
)


def listed(*names: str) -> Text:
    """Return the names of arguments, joined by "and"."""
    parts: list[str | Argument] = []
    for name in names:
        parts += [" and ", Argument(name)]
    return Text(*parts[1:])


class RmqStoreError(Exception):
    """Base of every error that this package raises on purpose."""

    def named(self, name: Callable[[Argument], str]) -> Self:
        """Return the same error with other names of arguments in its texts.

        Args:
            name: returns what stands for an argument.
        """
        parts = (part.named(name) if isinstance(part, Text) else part for part in self.args)
        return type(self)(*parts)


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
    """Damage at a known position.

    Fields: path (of the file), offset (``unit`` says what it counts), reason.
    """

    unit = "offset"

    def __init__(self, path: str, offset: int, reason: str) -> None:
        super().__init__(path, offset, reason)
        self.path, self.offset, self.reason = path, offset, reason

    def __str__(self) -> str:
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

    def __str__(self) -> str:
        return str(
            Text(
                f"{self.path}: RocksDB cannot read the database ({self.reason}); "
                "the log does not need it: use ",
                Argument("scan", "commitlog"),
            )
        )


class CorruptConfigError(_DamageAtError):
    """A file under ``config/`` cannot be parsed. Fields: path, offset (character), reason."""

    unit = "character"


class UnreadableFileError(StoreFormatError):
    """A path of the store is something else than the file or folder that belongs there.

    Fields: path, found, wanted.
    """

    def __init__(self, path: str, found: str, wanted: str) -> None:
        super().__init__(path, found, wanted)
        self.path, self.found, self.wanted = path, found, wanted

    def __str__(self) -> str:
        return f"{self.path} is {self.found}; {self.wanted} is expected"


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

    def __str__(self) -> str:
        return f"{self.path} was deleted while it was read (retention); open the store again"


class FileReplacedError(FileDeletedError):
    """A file of a remote storage got another content while it was read. Field: path."""

    def __str__(self) -> str:
        return f"{self.path} was replaced while it was read; open the store again"


class RemoteReadError(RmqStoreError):
    """A remote storage did not give what was asked of it.

    Fields: what (the file, and the range of its bytes), reason, attempts.
    """

    def __init__(self, what: str, reason: str, attempts: int) -> None:
        super().__init__(what, reason, attempts)
        self.what, self.reason, self.attempts = what, reason, attempts

    def __str__(self) -> str:
        times = "" if self.attempts == 1 else f" after {self.attempts} attempts"
        return f"{self.what} cannot be read{times}: {self.reason}"


class IllegalMessageError(RmqStoreError, ValueError):
    """A message cannot be stored, because RocketMQ would refuse it.

    The text names the row and the reason.
    """


class IllegalRowError(IllegalMessageError):
    """The same of a row whose number is known. Fields: row (counted from 1), reason.

    Whoever knows the file that the row is from names it with its line instead.
    """

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(row, reason)
        self.row, self.reason = row, reason

    def __str__(self) -> str:
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

    def __str__(self) -> str:
        return f"{self.address}: {self.reason}"


class BrokerRefusedError(RmqStoreError):
    """A broker refused a request. Fields: address, code (of the answer), reason."""

    def __init__(self, address: str, code: int, reason: str) -> None:
        super().__init__(address, code, reason)
        self.address, self.code, self.reason = address, code, reason

    def __str__(self) -> str:
        return f"{self.address} refused a request (code {self.code}): {self.reason}"


class Finding(NamedTuple):
    """One disagreement within a store, which a check lists instead of raising an error."""

    part: str  # log, end, queue, index or config
    place: str
    text: str
