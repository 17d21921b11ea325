"""Views ``epochs`` and ``commits``: who wrote which part of the log.

View ``epochs`` has the masters of a broker in controller mode. Two replicas of a broker can be
compared by it: they agree up to the end of the last epoch that both have with the same start.

View ``commits`` has jobs, micro-batches and other writers of ours, as far back as the history goes.
Records may be gone since: retention deletes them, and a truncation cuts them off, which column
``isCut`` shows.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from rmqstore.errors import CorruptConfigError
from rmqstore.read.store_parts import StoreParts
from rmqstore.read.views.pieces import ViewLimits, ViewSlice, to_batches
from rmqstore.read.views.schema import ViewSpec
from rmqstore.storage.broker.epochs import read_epochs
from rmqstore.storage.log.writer_notes import read_commits
from rmqstore.storage.recovery.log_end import find_written_end, last_record_before, written_end


def plan_epochs(source: StoreParts, _spec: ViewSpec, _limits: ViewLimits) -> list[ViewSlice]:
    """Return all epochs in one piece."""
    return [ViewSlice(log_end=source.ends.log_end)]


def read_epoch_rows(
    source: StoreParts, spec: ViewSpec, _piece: ViewSlice
) -> Iterator[pa.RecordBatch]:
    """Yield a row for each epoch, rising, or one that says why the epochs cannot be read."""
    try:
        epochs = read_epochs(source.paths)
    except CorruptConfigError as err:
        yield from to_batches(spec, source, iter([{"reason": str(err)}]))
        return
    if not epochs:
        return
    end = source.ends.of_records()
    log_end = find_written_end(source.log) if end is None else end
    ends = [*(epoch.start_offset for epoch in epochs[1:]), log_end]
    rows: list[dict[str, object]] = []
    for epoch, end_offset in zip(epochs, ends, strict=True):
        row: dict[str, object] = {
            "epoch": epoch.number,
            "startOffset": epoch.start_offset,
            "endOffset": max(end_offset, epoch.start_offset),
            "reason": None,
        }
        rows.append(row)
    yield from to_batches(spec, source, iter(rows))


def plan_commits(_source: StoreParts, _spec: ViewSpec, _limits: ViewLimits) -> list[ViewSlice]:
    """Return all commits in one piece."""
    return [ViewSlice()]


def read_commit_rows(
    source: StoreParts, spec: ViewSpec, _piece: ViewSlice
) -> Iterator[pa.RecordBatch]:
    """Yield a row for each commit, in their order."""
    commits = read_commits(source.paths)
    # A commit is cut if it reaches past the end of the log, or past where a later one begins.
    are_cut: list[bool] = []
    next_start: int | None = None
    for commit in reversed(commits):
        if commit.start is None or commit.end is None:
            are_cut.append(False)
        elif next_start is None:  # no later one is whole
            is_cut = not _reaches(source, commit.end)
            are_cut.append(is_cut)
            next_start = None if is_cut else commit.start
        else:
            are_cut.append(commit.end > next_start)
            next_start = min(next_start, commit.start)
    rows: list[dict[str, object]] = []
    for commit, is_cut in zip(commits, reversed(are_cut), strict=True):
        row: dict[str, object] = {
            "commit": commit.number,
            "timestamp": commit.time,
            "messages": commit.n_records,
            "startOffset": commit.start,
            "endOffset": commit.end,
            "txnAppId": commit.app_id,
            "txnVersion": commit.version,
            "isCut": is_cut,
        }
        rows.append(row)
    yield from to_batches(spec, source, iter(rows))


def _reaches(source: StoreParts, physical_offset: int) -> bool:
    """Return whether the log reaches up to the end of a record."""
    end = source.ends.of_records()
    if end is not None:
        return physical_offset <= end
    if source.log.is_remote:  # looking for its end would fetch much
        return physical_offset <= source.log.max_offset
    if physical_offset <= written_end(source.log):
        return True
    return last_record_before(source.log, physical_offset) is not None  # it may end with zeros
