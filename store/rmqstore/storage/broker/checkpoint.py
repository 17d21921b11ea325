"""The ``checkpoint`` file: the store times up to which parts of a store are on the disk."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rmqstore.format.layout import CHECKPOINT, CHECKPOINT_FILE_BYTES
from rmqstore.storage.files.paths import StorePaths

# Source: StoreCheckpoint.java#getMinTimestamp.
_SAFETY_MS = 3000
_LATEST = (1 << 63) - 1


class Checkpoint(NamedTuple):
    """Store times in ms and physical offsets; 0 if unknown."""

    physic_msg_timestamp: int = 0
    logics_msg_timestamp: int = 0
    index_msg_timestamp: int = 0
    master_flushed_offset: int = 0
    confirm_phy_offset: int = 0
    logics_phy_offset: int = 0

    @classmethod
    def all_safe(cls) -> Checkpoint:
        """Return the checkpoint for a store that was closed properly: all of it is on disk."""
        return cls(_LATEST, _LATEST, _LATEST)

    @property
    def min_timestamp(self) -> int:
        """The store time, ms, up to which log and queues were on the disk at the checkpoint."""
        return max(0, min(self.physic_msg_timestamp, self.logics_msg_timestamp) - _SAFETY_MS)

    def recovered_from(self, start: int) -> Checkpoint:
        """Return a checkpoint with which the recovery of brokers from 5.5.0 on begins early enough.

        They begin at the newest file whose first record lies at or before the last record that is
        in all queues, and ask for times only where that is 0. With enableAcceleratedRecovery they
        read from that very record on, so it has to be one, and refuse 0 unless the times are 0 too.

        Args:
            start: physical offset of the file where the recovery has to begin at the latest.

        Source: ConsumeQueueStore.java#isMappedFileMatchedRecover, #getDispatchFromPhyOffset;
        CommitLog.java#recoverAbnormally.
        """
        if not self.logics_phy_offset:
            return self
        last = min(self.logics_phy_offset, start)
        if last:
            return self._replace(logics_phy_offset=last)
        return self._replace(physic_msg_timestamp=0, logics_msg_timestamp=0, logics_phy_offset=0)

    def stored(self) -> bytes:
        """Return the file's bytes."""
        return np.array([tuple(self)], CHECKPOINT).tobytes().ljust(CHECKPOINT_FILE_BYTES, b"\0")


def read_checkpoint(paths: StorePaths) -> Checkpoint:
    """Read the checkpoint of a store; missing bytes count as zeros, as they do for a broker.

    Raises:
        UnreadableFileError: it is not a regular file.
    """
    try:
        stored = paths.storage.read_bytes(paths.checkpoint, CHECKPOINT.itemsize)
    except FileNotFoundError:
        return Checkpoint()
    fields = np.frombuffer(stored.ljust(CHECKPOINT.itemsize, b"\0"), CHECKPOINT)[0]
    return Checkpoint(*fields.tolist())
