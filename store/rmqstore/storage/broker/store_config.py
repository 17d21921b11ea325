"""The sizes of a store's files, under the keys of the broker's configuration.

An existing store has its own sizes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

import javaproperties

from rmqstore.errors import OptionError
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

    def __post_init__(self) -> None:
        """Refuse sizes that no store can have."""
        for field in fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, bool) and not 1 <= value <= _MAX_INT:
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
        names = {key: name for name, key in _KEYS.items()}
        changes = {
            names[key]: self._parse(names[key], value)
            for key, value in given.items()
            if key in names
        }
        # _parse returns the type of each field.
        return replace(self, **changes)  # type: ignore[arg-type]

    def _parse(self, name: str, value: str) -> int | bool:
        text = str(value).strip()
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
}


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
