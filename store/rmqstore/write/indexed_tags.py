"""Tells whether the index of a store holds the tags of records too.

Brokers from 5.4 on put one more item for each record with tags, ``topic#T#tags``. No file says
which release wrote it, but every such broker makes the folder ``rocksdbstore``. In a copy without
that folder the newest items of the index tell it. Brokers before 5.4 never ask for the additional
items, so a store that went back to such a broker comes to no harm by them.
"""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np

from rmqstore.errors import RmqStoreError
from rmqstore.format.columns.index_keys import key_hashes, tag_key
from rmqstore.storage.broker.store_config import StoreConfig
from rmqstore.storage.files.local import LOCAL
from rmqstore.storage.files.paths import StorePaths
from rmqstore.storage.index.index_file import IndexFile, index_files
from rmqstore.storage.index.sizes import IndexSizes, find_sizes_in_any
from rmqstore.storage.log.commitlog import CommitLog

logger = logging.getLogger(__name__)

_NEWEST_ITEMS = 64


def has_tag_items(paths: StorePaths, log: CommitLog) -> bool:
    """Tell whether tags are to be added to the index of a store, which is not changed yet.

    Args:
        paths: the files of the store.
        log: its log.
    """
    if LOCAL.exists(paths.rocksdb_store):
        return True
    files = index_files(paths.index)
    if not files:
        return False
    try:
        sizes = find_sizes_in_any(files, IndexSizes.of(StoreConfig()))
        return any(_hold_tags(path, sizes, log) for path in files[-2:])
    except RmqStoreError as err:  # a repair builds the index again
        logger.info("%s: it does not show whether tags are indexed", err)
        return False


def _hold_tags(path: Path, sizes: IndexSizes, log: CommitLog) -> bool:
    """Tell whether an item of a record's tags is among the newest items of a file."""
    items = IndexFile(path, sizes).newest_items(_NEWEST_ITEMS)
    for place in np.unique(items["physical_offset"]).tolist():
        try:
            message = log.get(place, check_crc=False)
        except (RmqStoreError, LookupError):  # a crash may leave items without a record
            continue
        if not message.tags:
            continue
        (key_hash,) = key_hashes([message.topic], [tag_key(message.tags)]).ravel()
        if ((items["physical_offset"] == place) & (items["key_hash"] == key_hash)).any():
            return True
    return False
