"""What a writer left in a store: its rows, its files, and that log, queues and index agree."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

import rmqstore
from reading import Row
from rmqstore.format.columns.dispatch_requests import USUAL_RULES, DispatchRules
from rmqstore.inspect.verify import verify
from rmqstore.storage.files.disk import Disk
from rmqstore.write.messages import MessageMaker, WriteSpec
from rmqstore.write.staged import PartWriter, StagedTask


def rows_of(root: Path) -> list[Row]:
    """Return the messages of a store with the default columns, those of system topics too."""
    with rmqstore.open(root, broker_name="b") as store:
        return store.scan(include_system_topics=True).read_all().to_pylist()


def files_of(root: Path, *folders: str) -> dict[str, bytes]:
    """Return the files of a store, or of some of its folders, by name."""
    found = (path for folder in folders or [""] for path in sorted((root / folder).rglob("*")))
    return {str(path.relative_to(root)): path.read_bytes() for path in found if path.is_file()}


def require_valid(root: Path, where: str = "") -> None:
    """Fail if a check of a store finds anything."""
    with rmqstore.open(root) as store:
        assert list(verify(store)) == [], where


def stage(
    root: Path,
    *batches: pa.RecordBatch,
    spec: WriteSpec | None = None,
    first: int = 0,
    rules: DispatchRules = USUAL_RULES,
) -> list[StagedTask]:
    """Leave batches of rows as the tasks of a job do, each as one task, counted from ``first``."""
    folder = root / ".rmqstore" / "staging" / "job"
    folder.mkdir(parents=True, exist_ok=True)
    parts = []
    for number, batch in enumerate(batches, first):
        with PartWriter(Disk(), folder / f"part-{number}", 65536, rules) as part:
            part.write(MessageMaker(spec or WriteSpec()).make(batch))
            parts.append(part.part())
    return parts
