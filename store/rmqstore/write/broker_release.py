"""What the broker of a store can read, as far as its release is known.

A broker cuts its log at the first record that it cannot read, and everything after it is lost. So a
record that only newer brokers know is written into a store only if its broker is known to be one.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from rmqstore.errors import RmqStoreError, UnsupportedFeatureError
from rmqstore.format.layout import MAX_V1_TOPIC_BYTES, MESSAGE_MAGIC_V2, SysFlag
from rmqstore.storage.broker.broker_run import Release, earliest_release, parse_release
from rmqstore.storage.files.paths import StorePaths
from rmqstore.storage.log.commit_history import read_commits
from rmqstore.storage.log.commitlog import CommitLog
from rmqstore.storage.log.walks import walk_back

_LONG_TOPICS: Release = (5, 1)  # Source: MessageVersion.java, MESSAGE_VERSION_V2
_IPV6_HOSTS: Release = (4, 7)
_ROCKSDB_QUEUES: Release = (5, 2)
_NEW_STORE: Release = (9999, 0)


class BrokerRelease:
    """The release of the broker that will open a store, as far as it is known.

    Args:
        paths: the files of the store.
        log: its log.
        given: the release that the caller names.
    """

    def __init__(self, paths: StorePaths, log: CommitLog, given: str | None) -> None:
        self._paths, self._log = paths, log
        self._known = None if given is None else parse_release(given)
        # No broker has ever opened a store without a checkpoint and without a file of the log.
        is_new = not log.segments and not paths.storage.exists(paths.checkpoint)
        if given is None and (is_new or _is_all_ours(paths, log)):
            self._known = _NEW_STORE

    def require(self, topics: Iterable[str], sys_flags: NDArray[np.int32]) -> None:
        """Refuse records that the broker of the store may not be able to read.

        Args:
            topics: the distinct topics of the records.
            sys_flags: their sysFlag, (n,).

        Raises:
            UnsupportedFeatureError: its release is not known to be new enough.
        """
        long = next((name for name in topics if len(name.encode()) > MAX_V1_TOPIC_BYTES), None)
        if long is not None:
            what = f"a topic of more than {MAX_V1_TOPIC_BYTES} bytes ({long!r})"
            self._require(_LONG_TOPICS, what)
        if (sys_flags & np.int32(SysFlag.HOSTS_V6)).any():
            self._require(_IPV6_HOSTS, "an IPv6 host")

    def _require(self, since: Release, what: str) -> None:
        if self._known is None:
            self._known = self._seen()
        if self._known < since:
            number = f"{since[0]}.{since[1]}"
            raise UnsupportedFeatureError(
                f"{self._paths.root}: brokers before {number} cannot read a record with "
                f"{what}; they cut the log there, and lose it and all that follows. Nothing "
                "in the store shows that its broker is newer; if it is, say so with "
                f"`broker_version={number}`"
            )

    def _seen(self) -> Release:
        """Return the earliest release that can have left the files and the newest records."""
        seen = parse_release(earliest_release(self._paths))
        settings = self._paths.settings
        if settings is not None and "rocksdb" in settings.values.get("storeType", "").lower():
            seen = max(seen, _ROCKSDB_QUEUES)
        for segment in reversed(self._log.segments):
            end = segment.start + self._log.file_of(segment).written_end(segment.size)
            for window in walk_back(self._log, segment, end):
                for _, heads, whole in window.heads():
                    sound = heads.take(whole)
                    if (sound.column("magic") == MESSAGE_MAGIC_V2).any():
                        seen = max(seen, _LONG_TOPICS)
                    if (sound.column("sys_flag") & np.int32(SysFlag.HOSTS_V6)).any():
                        seen = max(seen, _IPV6_HOSTS)
                return seen
        return seen


def _is_all_ours(paths: StorePaths, log: CommitLog) -> bool:
    """Return whether writers of ours have written every record of a log."""
    end, file_bytes = 0, max((segment.size for segment in log.segments), default=0)
    try:
        commits = read_commits(paths)
    except RmqStoreError:  # then it is not known
        return False
    for commit in commits:
        if commit.start is None or commit.end is None:
            continue
        segment = log.find(commit.start)
        is_next_file = segment is not None and commit.start == segment.start
        # The rest of a file may be a blank.
        follows = commit.start == end or (is_next_file and 0 < commit.start - end < file_bytes)
        if not follows:
            return False
        end = commit.end
    last = log.segments[-1] if log.segments else None
    written = 0 if last is None else last.start + log.file_of(last).written_end(last.size)
    return end > 0 and written <= end
