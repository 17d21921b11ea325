"""The sizes of a store's files, under the keys of the broker's configuration.

An existing store has its own sizes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

import javaproperties

from rmqstore.errors import OptionError
from rmqstore.format.columns.dispatch_requests import DispatchRules, unknown_delay
from rmqstore.format.layout import DELAY_LEVELS_MS
from rmqstore.storage.files.local import LOCAL
from rmqstore.storage.files.storage import Storage, read_small

_BOOLEANS = {"true": True, "false": False}
_MAX_INT = (1 << 31) - 1
_MAX_PROPERTIES_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """File sizes, with RocketMQ's defaults.

    A broker that opens the store must be configured with the same sizes.

    Source: MessageStoreConfig.java.
    """

    mapped_file_size_commit_log: int = 1 << 30
    mapped_file_size_consume_queue: int = 300_000 * 20
    mapper_file_size_batch_consume_queue: int = 300_000 * 46
    max_hash_slot_num: int = 5_000_000
    max_index_num: int = 20_000_000
    message_index_enable: bool = True
    max_message_size: int = 4 << 20
    index_tags: bool = False  # no setting: brokers from 5.4 on add tags to the index
    # the delay of each level in ms, level 1 first; None for a store whose levels are not known
    delay_levels: tuple[int, ...] | None = DELAY_LEVELS_MS

    def __post_init__(self) -> None:
        """Refuse sizes that no store can have."""
        for field in fields(self):
            value = getattr(self, field.name)
            if type(value) is int and not 1 <= value <= _MAX_INT:
                raise OptionError(
                    f"{_KEYS[field.name]} {value}: must be an integer from 1 to {_MAX_INT}"
                )
        if self.mapped_file_size_consume_queue % 20:
            # Whole units. Source: MessageStoreConfig.java#getMappedFileSizeConsumeQueue.
            units = -(-self.mapped_file_size_consume_queue // 20)
            object.__setattr__(self, "mapped_file_size_consume_queue", units * 20)
        if self.mapper_file_size_batch_consume_queue % 46:
            raise OptionError(
                f"mapperFileSizeBatchConsumeQueue {self.mapper_file_size_batch_consume_queue}: "
                "must be a multiple of 46, the bytes of a unit"
            )

    def updated(self, given: Mapping[str, str]) -> StoreConfig:
        """Return a copy with some values replaced.

        Args:
            given: values as text, by the broker's keys; unknown keys are skipped.

        Raises:
            OptionError: a value is not an integer, or not a boolean.
        """
        names = {key: name for name, key in _KEYS.items()} | _OLD_KEYS
        changes = {
            names[key]: self._parse(names[key], value)
            for key, value in given.items()
            if key in names
        }
        # _parse returns the type of each field.
        return replace(self, **changes)  # type: ignore[arg-type]

    @property
    def rules(self) -> DispatchRules:
        """What these settings say about units and keys."""
        return DispatchRules(self.index_tags, self.delay_levels)

    @property
    def n_delay_levels(self) -> int:
        """The number of levels; a message of a higher level gets the highest of them."""
        return len(DELAY_LEVELS_MS if self.delay_levels is None else self.delay_levels)

    def require_delay_levels(self) -> None:
        """Raise StoreStateError if units of delayed messages cannot be built."""
        if self.delay_levels is None:
            raise unknown_delay("the units of delayed messages need")

    def _parse(self, name: str, value: str) -> int | bool | tuple[int, ...]:
        text = str(value).strip()
        if name == "delay_levels":
            return _parse_levels(text)
        if isinstance(getattr(self, name), bool):
            if text.lower() not in _BOOLEANS:
                raise OptionError(f"{_KEYS[name]} {value!r}: must be true or false")
            return _BOOLEANS[text.lower()]
        if not text.isascii() or not text.isdigit():
            raise OptionError(f"{_KEYS[name]} {value!r}: must be an integer")
        return int(text)


_KEYS = {
    "mapped_file_size_commit_log": "mappedFileSizeCommitLog",
    "mapped_file_size_consume_queue": "mappedFileSizeConsumeQueue",
    # RocketMQ's own spelling
    "mapper_file_size_batch_consume_queue": "mapperFileSizeBatchConsumeQueue",
    "max_hash_slot_num": "maxHashSlotNum",
    "max_index_num": "maxIndexNum",
    "message_index_enable": "messageIndexEnable",
    "max_message_size": "maxMessageSize",
    "delay_levels": "messageDelayLevel",
}
# as releases before 4.5 spell them
_OLD_KEYS = {
    "mapedFileSizeCommitLog": "mapped_file_size_commit_log",
    "mapedFileSizeConsumeQueue": "mapped_file_size_consume_queue",
}
_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_LONGEST_DELAY = 1 << 53  # ms


def _parse_levels(text: str) -> tuple[int, ...]:
    """Return the delays of a table of levels, ms, as in ``1s 5s 10s``.

    Raises:
        OptionError: it is none.

    Source: ScheduleMessageService.java#parseDelayLevel.
    """
    levels = []
    for level in text.split(" "):
        number, unit = level[:-1], level[-1:]
        is_number = number.isascii() and number.isdigit()
        if unit not in _MS or not is_number or int(number[:18]) * _MS[unit] >= _LONGEST_DELAY:
            raise OptionError(
                f"messageDelayLevel {text!r}: must be numbers with s, m, h or d, as in '1s 5s 10s'"
            )
        levels.append(int(number[:18]) * _MS[unit])
    return tuple(levels)


def spell_levels(delays: Iterable[int]) -> str:
    """Return delays, ms, as a ``messageDelayLevel``; each is a number of whole seconds."""
    largest_first = sorted(_MS.items(), key=lambda one: -one[1])
    spelled = []
    for delay in delays:
        unit, length = next((one for one in largest_first if delay % one[1] == 0), ("s", 1000))
        spelled.append(f"{delay // length}{unit}")
    return " ".join(spelled)


def read_properties(path: str | os.PathLike[str], storage: Storage = LOCAL) -> dict[str, str]:
    r"""Read a broker's ``.properties`` file as Java does.

    ``key=value``, ``key: value`` and ``key value`` are one; ``#`` and ``!`` begin comments, a
    backslash at the end continues a line, and ``\uXXXX`` stands for a character. The bytes are
    ISO-8859-1.

    Args:
        path: the file.
        storage: what it is read from, if not the local disk.

    Raises:
        FileNotFoundError: there is no such file.
        OptionError: an escape is incomplete.
        UnreadableFileError: it is not a regular file, or it is too long.
    """
    file = path if isinstance(path, Path) else Path(path)
    content = read_small(storage, file, _MAX_PROPERTIES_BYTES)
    try:
        properties: dict[str, str] = javaproperties.loads(content)
    except javaproperties.InvalidUEscapeError as err:
        raise OptionError(f"{path}: {err}, as in every properties file of Java") from err
    return properties
