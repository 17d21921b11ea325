"""What a broker's properties file says about where a store lies, and about its files.

A broker is started with such a file, ``mqbroker -c broker.conf``. Settings have the names and the
meaning that they have there, and settings that say nothing about a store are passed over.

Source: MessageStoreConfig.java, BrokerConfig.java; CommitLog.java and MultiPathMappedFileQueue.java
for several folders of the log.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from rmqstore.errors import Argument, OptionError, Text, UnreadableFileError, about
from rmqstore.storage.broker.store_config import StoreConfig, read_properties
from rmqstore.storage.files.paths import BrokerSettings
from rmqstore.storage.files.storage import path_of

ROOT_KEY: Final = "storePathRootDir"
_SPLITTER: Final = ","  # Source: MixAll.java#MULTI_PATH_SPLITTER
_KEY: Final = re.compile(r"[A-Za-z][\w.-]*", re.ASCII)


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
        raise OptionError(about("conf", f" {file}: there is no such file")) from err
    except (UnreadableFileError, OptionError, OSError) as err:
        raise OptionError(about("conf", f": {err}")) from err
    if found and not any(_KEY.fullmatch(key) and value for key, value in found.items()):
        raise OptionError(about("conf", f" {file}: this is not the properties file of a broker"))
    return BrokerSettings(str(file), {key: value.strip() for key, value in found.items()})


def root_of(
    path: str | os.PathLike[str] | None, conf: str | os.PathLike[str] | None
) -> str | os.PathLike[str]:
    """Return the root of a store as it is given, or as the broker's file names it.

    Raises:
        OptionError: neither names it. A broker then takes ``store`` in the home folder of the user
            who starts it, which nothing here tells.
    """
    if path is not None:
        return path
    if conf is None:
        raise OptionError(
            Text(
                Argument("path"),
                ": name the folder of the store, or its broker's file, ",
                Argument("conf", ""),
            )
        )
    settings = read_conf(conf)
    if not settings.values.get(ROOT_KEY):
        raise OptionError(
            about("conf", f" {settings.file} has no {ROOT_KEY}: give the path of the store too")
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
        raise OptionError(about("conf", f" {conf and conf.file}: {err}")) from err


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
