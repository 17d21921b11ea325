"""View ``commits``: what jobs, micro-batches and other writers of ours added to the log, and when.

It shows the newest commits that the history has. Records may be gone since: retention deletes them,
and a truncation cuts them off.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from rmqstore.read.views.schema import ViewSpec
from rmqstore.read.views.source import ViewLimits, ViewPiece, ViewSource, to_batches
from rmqstore.storage.log.commit_history import read_commits


def plan_commits(_source: ViewSource, _spec: ViewSpec, _limits: ViewLimits) -> list[ViewPiece]:
    """Return all commits in one piece."""
    return [ViewPiece()]


def read_commit_rows(
    source: ViewSource, spec: ViewSpec, _piece: ViewPiece
) -> Iterator[pa.RecordBatch]:
    """Yield a row for each commit, in their order."""
    yield from to_batches(spec, source, _rows(source))


def _rows(source: ViewSource) -> Iterator[dict[str, object]]:
    for commit in read_commits(source.paths):
        yield {
            "commit": commit.number,
            "timestamp": commit.time,
            "messages": commit.n_records,
            "startOffset": commit.start,
            "endOffset": commit.end,
            "txnAppId": commit.app_id,
            "txnVersion": commit.version,
        }
