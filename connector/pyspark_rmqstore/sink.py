"""Writes to a store from many tasks.

Each task stages its encoded rows in a file, and one process appends all of them. This is what
batches and micro-batches have in common.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from time import monotonic, sleep
from typing import Final
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from pyspark_rmqstore.hosts import require_folder, require_staged, this_host
from pyspark_rmqstore.option_names import option_names
from pyspark_rmqstore.staging import disk_of
from pyspark_rmqstore.write_options import WriteOptions
from rmqstore.errors import IllegalMessageError, StoreLockedError
from rmqstore.format.schema import ASSIGNED, WRITE_TYPES
from rmqstore.storage.folders.find import find_store
from rmqstore.store.opening import create, is_store, open_for
from rmqstore.write.messages import MessageMaker
from rmqstore.write.staged import PartWriter, StagedPart
from rmqstore.write.writer import StoreWriter

logger = logging.getLogger(__name__)

# Source: malloc.h of glibc.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_LARGEST_BLOCK = 32 << 20  # the most that all versions of glibc take
_KEPT_BYTES = 128 << 20


_BEGIN_SECONDS, COMMIT_SECONDS = 2, 300
_PAUSE_SECONDS = 0.05


@cache
def keep_freed_memory() -> None:
    """Let the C library keep the memory that one batch frees for the next batch.

    By default it returns large blocks to the system, and getting them again costs a page fault for
    every 4 KiB: about a fifth of the time that a task spends on its records. Other C libraries
    than glibc are left as they are.
    """
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        # Without the first setting, the second would make large blocks more expensive.
        if mallopt(_M_MMAP_THRESHOLD, _LARGEST_BLOCK):
            mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


@dataclass
class Staged(WriterCommitMessage):
    """The message of a task to the driver."""

    partition: int
    part: StagedPart
    host: str  # that the task ran on


class StoreSink:
    """Stages rows in tasks and appends them on the driver.

    It is made on the driver and pickled to tasks.
    """

    @option_names()
    def __init__(
        self, schema: StructType, options: WriteOptions, patience: float = _BEGIN_SECONDS
    ) -> None:
        _check_columns(schema, options)
        self._options = options
        self._ignored = [name for name in schema.names if name in ASSIGNED]
        queue_nums, config = options.spec.queue_nums, options.config
        if is_store(options.path, conf=options.conf):
            # A store that a broker holds is refused before any work.
            with _open(options, patience) as store:
                queue_nums, config = store.queue_nums(), store.config
        self._spec = replace(
            options.spec, queue_nums=queue_nums, n_delay_levels=config.n_delay_levels
        )
        self._file_size, self._rules = config.mapped_file_size_commit_log, config.rules

    def warn_ignored(self) -> None:
        """Log which columns of the rows are not written."""
        if self._ignored:
            logger.warning(
                "columns that the store assigns are not written: %s", ", ".join(self._ignored)
            )

    @option_names()
    def stage(self, batches: Iterator[pa.RecordBatch], folder: Path) -> Staged:
        """Encode the rows of one task into a file of its own. Runs in a task."""
        keep_freed_memory()
        require_folder(folder)
        context = TaskContext.get()
        assert context is not None, "Spark runs this in a task"
        partition, attempt = context.partitionId(), context.taskAttemptId()
        maker = MessageMaker(self._spec, turn=partition)
        # Attempts of a driver that died may still run, and have the numbers of the next driver's.
        path = folder / f"part-{partition}-{attempt}-{uuid4().hex}"
        disk = disk_of(self._options.path)
        with PartWriter(disk, path, self._file_size, self._rules) as file:
            for batch in batches:
                file.write(maker.make(batch, first_row=file.n_records + 1))
            return Staged(partition, file.part(), this_host())

    @option_names()
    def append(
        self, messages: Sequence[WriterCommitMessage | None], txn: tuple[str, int] | None
    ) -> None:
        """Append what tasks staged, unless the store has this version of the application.

        Runs on the driver.
        """
        staged = [message for message in messages if isinstance(message, Staged)]
        staged.sort(key=lambda message: message.partition)
        with _open(self._options, COMMIT_SECONDS) as store:
            if txn is not None:
                done = store.done_version(txn[0])
                if done is not None and txn[1] <= done:
                    logger.warning(
                        "%s version %d is in %s already; skipped", *txn, self._options.path
                    )
                    return
            for message in staged:
                if message.part.n_records:
                    require_staged(message.part.path, message.host)
            store.append_staged([message.part for message in staged], are_all=True)
            store.flush(txn=txn)


def _open(options: WriteOptions, patience: float) -> StoreWriter:
    """Open the store, or make it.

    If a writer of ours holds the store, this waits until that has committed, at most
    ``COMMIT_SECONDS``; for anybody else it waits ``patience`` seconds. A writer of ours that is
    closing the store shows no mark any more before it releases the lock.
    """
    started = seen_ours = monotonic()
    while True:
        try:
            if is_store(options.path, conf=options.conf):
                return open_for(
                    options.path,
                    "a",
                    config=options.config,
                    spec=options.spec,
                    broker_stopped=options.broker_stopped,
                    conf=options.conf,
                )
            return create(options.path, config=options.config, spec=options.spec, conf=options.conf)
        except StoreLockedError as err:
            now = monotonic()
            if _is_ours(options):
                seen_ours = now
            if now - started > COMMIT_SECONDS or now - seen_ours > patience:
                raise
            logger.info("%s; waiting", err)
            sleep(_PAUSE_SECONDS)


def _is_ours(options: WriteOptions) -> bool:
    """Tell whether the writer that holds a store seems to be one of ours, and not a broker."""
    path, conf = options.path, options.conf
    return is_store(path, conf=conf) and find_store(path, conf=conf).has_our_abort


def _check_columns(schema: StructType, options: WriteOptions) -> None:
    """Refuse columns of which no row could be written, before any task runs."""
    unknown = [name for name in schema.names if name not in WRITE_TYPES and name not in ASSIGNED]
    if unknown:
        raise IllegalMessageError(
            f"unknown columns {', '.join(unknown)}; a message has {', '.join(WRITE_TYPES)}: "
            "select or rename columns"
        )
    if "body" not in schema.names:
        raise IllegalMessageError(
            f"column body is missing; there are {', '.join(schema.names) or 'none'}"
        )
    if "topic" not in schema.names and options.spec.topic is None:
        raise IllegalMessageError(
            "no topic: give a column named topic, or one topic for all rows with option topic"
        )
