"""The sizes of a store's files, under the broker's own keys. What an existing store has, its files tell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

from rmqstore.errors import OptionError
from rmqstore.storage.files.local import LOCAL
from rmqstore.storage.files.storage import read_small

_TRUE, _FALSE = ("true", "false")
_MAX_INT = (1 << 31) - 1
_MAX_PROPERTIES_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """File sizes, with RocketMQ's defaults; a broker that opens the store must be configured with the same.

    Source: MessageStoreConfig.java.
    """

    mapped_file_size_commit_log: int = 1 << 30
    mapped_file_size_consume_queue: int = 300_000 * 20
    max_hash_slot_num: int = 5_000_000
    max_index_num: int = 20_000_000
    message_index_enable: bool = True
    max_message_size: int = 4 << 20

    def __post_init__(self) -> None:
        """Refuse sizes that no store can have."""
        for field in fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, bool) and not 1 <= value <= _MAX_INT:
                raise OptionError(f"{_KEYS[field.name]} {value}: a number from 1 to {_MAX_INT}")
        if self.mapped_file_size_consume_queue % 20:
            # Source: MessageStoreConfig.java#getMappedFileSizeConsumeQueue rounds up to whole units.
            units = -(-self.mapped_file_size_consume_queue // 20)
            object.__setattr__(self, "mapped_file_size_consume_queue", units * 20)

    def updated(self, given: Mapping[str, str]) -> StoreConfig:
        """Return the same with values by the broker's keys, as text; keys of other things are stepped over.

        Raises:
            OptionError: a value is no number, or no boolean.
        """
        names = {key: name for name, key in _KEYS.items()}
        changes = {names[key]: self._parse(names[key], value) for key, value in given.items() if key in names}
        return replace(self, **changes)  # type: ignore[arg-type]  # the parser gives each its type

    def _parse(self, name: str, value: str) -> int | bool:
        text = str(value).strip()
        if isinstance(getattr(self, name), bool):
            if text.lower() not in (_TRUE, _FALSE):
                raise OptionError(f"{_KEYS[name]} {value!r}: true or false")
            return text.lower() == _TRUE
        if not text.isascii() or not text.isdigit():
            raise OptionError(f"{_KEYS[name]} {value!r}: a whole number")
        return int(text)


_KEYS = {
    "mapped_file_size_commit_log": "mappedFileSizeCommitLog",
    "mapped_file_size_consume_queue": "mappedFileSizeConsumeQueue",
    "max_hash_slot_num": "maxHashSlotNum",
    "max_index_num": "maxIndexNum",
    "message_index_enable": "messageIndexEnable",
    "max_message_size": "maxMessageSize",
}


def read_properties(path: Path) -> dict[str, str]:
    """Read a broker's ``.properties`` file: ``key=value`` lines, ``#`` begins a comment.

    Raises:
        FileNotFoundError: there is no such file.
        UnreadableFileError: it is not a regular file, or too long for one of properties.
    """
    text = read_small(LOCAL, path, _MAX_PROPERTIES_BYTES).decode(errors="replace")
    lines = (line.strip() for line in text.splitlines())
    pairs = (line.partition("=") for line in lines if line and not line.startswith(("#", "!")))
    return {key.strip(): value.strip() for key, _, value in pairs}
