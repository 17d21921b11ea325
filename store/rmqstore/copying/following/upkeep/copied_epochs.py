"""The epochs of a copy whose broker is in controller mode, in the broker's own file for them.

Source: EpochFileCache.java#appendEntry, #truncateSuffixByOffset, #truncatePrefixByOffset.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from rmqstore.errors import CorruptConfigError
from rmqstore.storage.broker.epochs import Epoch, read_epochs, stored_epochs
from rmqstore.storage.files.disk import Disk
from rmqstore.storage.files.paths import StorePaths

logger = logging.getLogger(__name__)


def epochs_within(epochs: Sequence[Epoch], begin: int, end: int) -> list[Epoch]:
    """Return the epochs that have a part between two physical offsets."""
    stops = [*(epoch.start_offset for epoch in epochs[1:]), end]
    return [
        epoch
        for epoch, stop in zip(epochs, stops, strict=False)  # without an epoch there is one stop
        if epoch.start_offset < end and stop > begin
    ]


class CopiedEpochs:
    """The epochs of a copy: those of the log of its broker, as far as the copy has come.

    Args:
        paths: the files of the copy.

    Attributes:
        confirm_offset: what the broker told last; -1 if it told nothing.
    """

    def __init__(self, paths: StorePaths) -> None:
        self._paths = paths
        self._begin = 0  # where the log of the copy begins
        self._known: list[Epoch] = []
        self._of_broker: list[Epoch] = []
        self._stored: list[Epoch] = []
        self.confirm_offset = -1

    @property
    def last(self) -> int:
        """The number of the epoch of the last record on the disk, -1 without one."""
        return self._stored[-1].number if self._stored else -1

    def read(self, disk: Disk, begin: int, end: int, confirm_offset: int) -> None:
        """Read what was noted of a log between two physical offsets."""
        self._begin, self.confirm_offset = begin, confirm_offset
        try:
            self._stored = read_epochs(self._paths)
        except CorruptConfigError as err:  # comparing the logs needs none
            logger.warning("%s; the epochs are asked for again", err)
            self._stored = []
        self._known = epochs_within(self._stored, begin, end)
        self.write(disk, end)

    def within(self, begin: int, end: int) -> list[Epoch]:
        """Return the epochs that are known between two physical offsets."""
        return epochs_within(self._known, begin, end)

    def begin_again(self, begin: int) -> None:
        """Forget all epochs: the log has no record, and begins somewhere else."""
        self._begin, self._known, self._of_broker = begin, [], []

    def retain(self, disk: Disk, begin: int, end: int) -> None:
        """Forget the epochs that end before the log of the copy begins by now."""
        self._begin = begin
        self.write(disk, end)

    def learn(self, epochs: Sequence[Epoch], confirm_offset: int) -> None:
        """Take the epochs of the broker, whose log was found to be the copy's.

        The copy may have older ones, which the broker forgets together with its files.
        """
        self.confirm_offset = confirm_offset
        if epochs == self._of_broker:
            return
        self._of_broker = list(epochs)
        first = epochs[0]
        older = [
            epoch
            for epoch in self._known
            if epoch.number < first.number and epoch.start_offset <= first.start_offset
        ]
        self._known = [*older, *epochs]

    def write(self, disk: Disk, end: int) -> None:
        """Note the epochs of what is on the disk up to a physical offset."""
        epochs = self.within(self._begin, end)
        if epochs == self._stored:
            return
        path = self._paths.epochs
        if epochs:
            disk.replace(path, stored_epochs(epochs))
        else:
            disk.delete(path)
            disk.flush_folder(path.parent)
        self._stored = epochs

    def cut(self, disk: Disk, end: int) -> None:
        """Forget the epochs that start at or after a physical offset where the log was cut."""
        self._known, self._of_broker = self.within(self._begin, end), []
        self.write(disk, end)
