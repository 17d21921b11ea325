"""One run of the broker that has a store: since when it runs, and whether it was closed."""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

from rmqstore.errors import UnreadableFileError
from rmqstore.storage.files.paths import StorePaths

_NS_PER_MS = 1_000_000


class BrokerRun(NamedTuple):
    """A run, by the file ``lock``, which a broker writes when it starts, after its recovery.

    Source: DefaultMessageStore.java#start.
    """

    started_ns: int  # since the epoch; 0 where no lock file tells
    is_open: bool  # the store has an ``abort`` file: the broker runs, or died

    @classmethod
    def of(cls, paths: StorePaths) -> BrokerRun:
        """Return the present run of a store."""
        started = None
        with suppress(UnreadableFileError):
            started = paths.storage.status(paths.lock)
        return cls(0 if started is None else started.modified_ns, paths.has_abort)

    @property
    def started_ms(self) -> int:
        """Since when it runs, in the unit of store times."""
        return self.started_ns // _NS_PER_MS

    def may_have_recovered(self, now: BrokerRun) -> bool:
        """Tell whether a recovery may lie between this run and a later look; one that was closed well needs none."""
        return self.is_open and now.started_ns != self.started_ns
