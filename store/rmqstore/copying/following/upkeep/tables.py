"""The tables of a broker in its copy: topics, groups and offsets, as a slave keeps them.

Tables and log are not of one moment: an offset that was committed just now may lie after what was
copied so far. So a table is written when the copy has reached the end that the log had after the
table was asked for.

Source: SlaveSynchronize.java#syncAll, ConfigManager.java#persist.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from rmqstore.copying.following.remoting.broker import TABLES
from rmqstore.copying.following.remoting.frames import MAX_BODY_BYTES
from rmqstore.copying.following.remoting.held_table import HeldTable
from rmqstore.errors import UnreadableFileError
from rmqstore.storage.broker.config_files import is_table
from rmqstore.storage.files.disk import Disk
from rmqstore.storage.files.paths import StorePaths
from rmqstore.storage.files.storage import read_small

logger = logging.getLogger(__name__)

_MAX_PARSED_BYTES: Final = 1 << 20  # a parsed table may take forty times as much memory


def write_tables(disk: Disk, paths: StorePaths, tables: Mapping[str, HeldTable]) -> None:
    """Replace the tables that have changed; the one before is kept as ``.bak``."""
    for name, table in tables.items():
        assert name in TABLES, name
        content = table.content
        if not _may_be_table(content):
            logger.warning("the broker's %s is not a table, and is not taken", name)
            continue
        path = paths.config / name
        old = b""
        with suppress(FileNotFoundError, UnreadableFileError):
            old = read_small(paths.storage, path, MAX_BODY_BYTES)
        if old == content:
            continue
        disk.make_folder(paths.config)
        if old:
            disk.replace(path.with_name(f"{name}.bak"), old)
        disk.replace(path, content)


def _may_be_table(content: bytes) -> bool:
    """Tell whether bytes are a table; of a long one only both ends are looked at."""
    if len(content) > _MAX_PARSED_BYTES:
        return content.startswith(b"{") and content.rstrip().endswith(b"}")
    return bool(content.strip()) and is_table(content)
