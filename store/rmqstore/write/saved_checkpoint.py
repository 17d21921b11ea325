"""The checkpoint of a store that is open for writing.

Source: StoreCheckpoint.java.
"""

from __future__ import annotations

from rmqstore.storage.broker.checkpoint import Checkpoint
from rmqstore.storage.files.disk import Disk
from rmqstore.storage.files.paths import StorePaths
from rmqstore.storage.index.index_file import index_files, read_header


class SavedCheckpoint:
    """Keeps the file ``checkpoint`` such that a broker's recovery loses no unit and no key.

    Args:
        disk: performs all changes.
        paths: the files of the store.
        checkpoint: the checkpoint as the repair of the store found it.
    """

    def __init__(self, disk: Disk, paths: StorePaths, checkpoint: Checkpoint) -> None:
        self._disk, self._paths, self._checkpoint = disk, paths, checkpoint
        self._keeps_dispatched = checkpoint.logics_phy_offset > 0

    def save(self, *, built: int | None = None, index: int | None = None) -> None:
        """Write the file.

        Args:
            built: store time up to which log and queues are on disk, ms; None leaves it as it is.
            index: store time up to which index files are on disk, ms; None leaves it as it is.
        """
        if built is not None:
            self._checkpoint = self._checkpoint._replace(
                physic_msg_timestamp=built, logics_msg_timestamp=built
            )
        if index is not None:
            self._checkpoint = self._checkpoint._replace(index_msg_timestamp=index)
        self._disk.replace(self._paths.checkpoint, self._checkpoint.stored())

    @property
    def dispatched(self) -> int:
        """Physical offset of the last record that is in all queues; 0 if the store has no such."""
        return self._checkpoint.logics_phy_offset

    def set_dispatched(self, physical_offset: int) -> None:
        """Set the last record that queues hold; :meth:`save` writes it.

        It stays 0 where no broker set it, as none before 5.5.0 does.

        Args:
            physical_offset: where the record begins: a broker may read from there on. 0 if unknown.
        """
        if self._keeps_dispatched:
            self._checkpoint = self._checkpoint._replace(logics_phy_offset=physical_offset)

    def set_confirmed(self, physical_offset: int) -> None:
        """Set up to where a broker in controller mode takes the log it opens for dispatched.

        :meth:`save` writes it. Other brokers do not read it.

        Source: DefaultMessageStore.java#loadCheckPoint, #start.
        """
        self._checkpoint = self._checkpoint._replace(confirm_phy_offset=physical_offset)

    def ask_for_all(self, log_start: int, *, is_whole: bool) -> None:
        """Have a broker build all queues and the index if a rebuild of ours is interrupted.

        Its recovery then scans the whole log. Where it would cut the log at damage, it is not asked
        to.

        Args:
            log_start: physical offset where the log begins.
            is_whole: whether a recovery gets from there to the end of the log.
        """
        if is_whole:
            self._checkpoint = self._checkpoint.recovered_from(log_start)
        self.save(built=0 if is_whole else None, index=0)

    def cover_index(self) -> None:
        """Flush the newest index file, and vouch for all of them at the next :meth:`save`.

        A recovery deletes index files that are newer than the checkpoint. It builds items only for
        the records that it scans, so the keys of older records would be lost.
        """
        files = index_files(self._paths.index)
        if files:
            self._disk.flush(files[-1])
            newest = int(read_header(files[-1])["end_timestamp"])
            self._checkpoint = self._checkpoint._replace(index_msg_timestamp=newest)

    def set_back(self, store_timestamp: int) -> None:
        """Set the checkpoint back if records say that they were stored before it, as copies may.

        A recovery begins at the newest file whose first record is older than the checkpoint. If
        that were a file of this append, the recovery would take everything before it for
        dispatched and build no units for it.
        """
        if store_timestamp <= self._checkpoint.min_timestamp:
            self.save(built=store_timestamp)
