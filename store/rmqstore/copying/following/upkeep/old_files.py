"""Decides which files of a copy's log are deleted: what a retention says, and streams allow."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from rmqstore.copying.following.upkeep.checkpoints import NeededByStreams
from rmqstore.copying.following.upkeep.retention import Retention, new_begin
from rmqstore.errors import RmqStoreError
from rmqstore.storage.broker.config_files import BrokerConfig
from rmqstore.storage.files.paths import StorePaths
from rmqstore.storage.log.commitlog import CommitLog


class OldFiles:
    """The oldest files of a log, which a retention does not keep and no stream needs.

    Args:
        retention: what stays.
        checkpoints: of streaming queries in Spark; what they have not read stays too.
    """

    def __init__(self, retention: Retention, checkpoints: Sequence[Path]) -> None:
        self._retention, self._needed = retention, NeededByStreams(checkpoints)

    def new_begin(
        self, paths: StorePaths, log: CommitLog, broker: str, built: int, source_begin: int | None
    ) -> int | None:
        """Return where the log begins once they are deleted, None if there are none.

        Args:
            paths: the copy.
            log: its log.
            broker: the name of the broker.
            built: physical offset up to which queues and index are built.
            source_begin: where the broker's log begins, None if that is not known.
        """
        retention = self._retention
        if retention.is_forever:
            return None
        log.refresh()
        begin = new_begin(log, retention, limit=built, source_begin=source_begin)
        if begin is None:
            return None
        names = {broker}
        with suppress(RmqStoreError):
            names.add(BrokerConfig(paths).broker_name())  # as readers of the copy call it
        limit = self._needed.limit(paths, names, built, log.segments[0].end)
        return new_begin(log, retention, limit=limit, source_begin=source_begin)
