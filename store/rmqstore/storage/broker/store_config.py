"""The settings of a broker that say something about its store, under their own keys.

An existing store has its own sizes of files.

A broker is started with a properties file, ``mqbroker -c broker.conf``. Settings that say nothing
about a store are passed over.

Source: MessageStoreConfig.java, BrokerConfig.java; CommitLog.java and MultiPathMappedFileQueue.java
for several folders of the log.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Final

from rmqstore.errors import OptionError, UnreadableFileError
from rmqstore.format.columns.dispatch_requests import DispatchRules, unknown_delay
from rmqstore.format.layout import DELAY_LEVELS_MS
from rmqstore.storage.files.local import LOCAL
from rmqstore.storage.files.paths import BrokerSettings
from rmqstore.storage.files.storage import Storage, path_of, read_small

ROOT_KEY: Final = "storePathRootDir"
_SPLITTER: Final = ","  # Source: MixAll.java#MULTI_PATH_SPLITTER
_KEY: Final = re.compile(r"[A-Za-z][\w.-]*", re.ASCII)

_BOOLEANS = {"true": True, "false": False}
_MAX_INT = (1 << 31) - 1
_MAX_PROPERTIES_BYTES = 1 << 20


def read_conf(conf: str | os.PathLike[str]) -> BrokerSettings:
    """Return the settings of a broker's properties file; settings that were read stay as they are.

    Raises:
        OptionError: there is no such file, or it cannot be the properties file of a broker.
    """
    if isinstance(conf, BrokerSettings):
        return conf
    file = Path(conf)
    try:
        found = read_properties(file)
    except FileNotFoundError as err:
        raise OptionError(f"`conf` {file}: there is no such file") from err
    except (UnreadableFileError, OptionError, OSError) as err:
        raise OptionError(f"`conf`: {err}") from err
    if found and not any(_KEY.fullmatch(key) and value for key, value in found.items()):
        raise OptionError(f"`conf` {file}: this is not the properties file of a broker")
    return BrokerSettings(str(file), {key: value.strip() for key, value in found.items()})


def root_of(
    path: str | os.PathLike[str] | None, conf: str | os.PathLike[str] | None
) -> str | os.PathLike[str]:
    """Return the root of a store as it is given, or as the broker's file names it.

    Raises:
        OptionError: neither names it. A broker then takes ``store`` in the home folder of the user
            who starts it, which cannot be known here.
    """
    if path is not None:
        return path
    if conf is None:
        raise OptionError("`path`: name the folder of the store, or its broker's file, `conf=`")
    settings = read_conf(conf)
    if not settings.values.get(ROOT_KEY):
        raise OptionError(
            f"`conf` {settings.file} has no {ROOT_KEY}: give the path of the store too"
        )
    return path_of(settings.values[ROOT_KEY])


def sizes_of(conf: BrokerSettings | None) -> StoreConfig:
    """Return the sizes of the broker's files; RocketMQ's defaults without settings.

    Raises:
        OptionError: a size is not an integer, or not one that a store can have.
    """
    try:
        return StoreConfig().updated({} if conf is None else conf.values)
    except OptionError as err:
        raise OptionError(f"`conf` {conf and conf.file}: {err}") from err


def named_size(conf: BrokerSettings | None, name: str) -> int | None:
    """Return a size that the broker's file names; None if it does not.

    Args:
        conf: the settings in the file; None without one.
        name: an attribute of :class:`StoreConfig`.

    Raises:
        OptionError: as :func:`sizes_of` does.
    """
    keys = {_KEYS[name], *(key for key, new in _OLD_KEYS.items() if new == name)}
    if conf is None or keys.isdisjoint(conf.values):
        return None
    size: int = getattr(sizes_of(conf), name)
    return size


def log_folders(conf: BrokerSettings, root: Path) -> tuple[Path, ...]:
    """Return the folders of the log; () if it lies in the usual folder of the root.

    Folders for reading only count where there are several, as for a broker.
    """
    text = conf.values.get("storePathCommitLog", "")
    folders = _folders(conf, root, text)
    if _SPLITTER in text:
        others = _folders(conf, root, conf.values.get("readOnlyCommitLogStorePaths", ""))
        folders = tuple(dict.fromkeys((*folders, *others)))
    return () if folders == (root / "commitlog",) else folders


def dledger_folders(conf: BrokerSettings, root: Path) -> tuple[Path, ...]:
    """Return the folders of a DLedger log that does not lie in the root; () if there is none."""
    if not _has_dledger(conf):
        return ()
    return _folders(conf, root, conf.values.get("storePathDLedgerCommitLog", ""))


def dledger_node(conf: BrokerSettings) -> str | None:
    """Return the id of the broker's node in its DLedger group, None without one."""
    return conf.values.get("dLegerSelfId") or None if _has_dledger(conf) else None


def other_folder(conf: BrokerSettings, root: Path, key: str) -> Path | None:
    """Return the folder of queues or of the index that a setting of RocketMQ 3 names.

    Later brokers pass over ``storePathConsumeQueue`` and ``storePathIndex``, so what is in the root
    goes before it.
    """
    folders = _folders(conf, root, conf.values.get(key, ""))
    return folders[0] if folders else None


def _has_dledger(conf: BrokerSettings) -> bool:
    return conf.values.get("enableDLegerCommitLog", "").lower() == "true"


def _folders(conf: BrokerSettings, root: Path, text: str) -> tuple[Path, ...]:
    """Return the folders that a setting lists.

    Those in the root of the file lie in ``root``, where the store may have been copied to.
    """
    named = [path_of(part.strip()) for part in text.split(_SPLITTER) if part.strip()]
    usual = conf.values.get(ROOT_KEY)
    if not usual:
        return tuple(named)
    return tuple(
        root / folder.relative_to(usual) if folder.is_relative_to(usual) else folder
        for folder in named
    )


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
        changes: dict[str, int | bool | tuple[int, ...]] = {}
        for key, value in given.items():
            if key not in names:
                continue
            name = names[key]
            text = str(value).strip()
            if name == "delay_levels":
                changes[name] = _parse_levels(text)
            elif isinstance(getattr(self, name), bool):
                if text.lower() not in _BOOLEANS:
                    raise OptionError(f"{_KEYS[name]} {value!r}: must be true or false")
                changes[name] = _BOOLEANS[text.lower()]
            elif not text.isascii() or not text.isdigit():
                raise OptionError(f"{_KEYS[name]} {value!r}: must be an integer")
            else:
                changes[name] = int(text)
        # Each value is of the type of its field.
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
            raise unknown_delay()


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


def format_levels(delays: Iterable[int]) -> str:
    """Return delays, ms, as a ``messageDelayLevel``; each is a number of whole seconds."""
    largest_first = sorted(_MS.items(), key=lambda unit: -unit[1])
    levels = []
    for delay in delays:
        unit, length = next((unit for unit in largest_first if delay % unit[1] == 0), ("s", 1000))
        levels.append(f"{delay // length}{unit}")
    return " ".join(levels)


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
    import javaproperties  # which imports parsers of XML and the network: 30 ms

    file = path if isinstance(path, Path) else Path(path)
    content = read_small(storage, file, _MAX_PROPERTIES_BYTES)
    try:
        properties: dict[str, str] = javaproperties.loads(content)
    except javaproperties.InvalidUEscapeError as err:
        raise OptionError(f"{path}: {err}, as in every properties file of Java") from err
    return properties
