"""Stores that are read through ``pyarrow.fs``: the answers are those of a local disk."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs
import pytest

import goldens
import rmqstore
import tiers
from goldens import Golden
from remote_reads import ASKED, Ask, answer
from rmqstore.errors import OptionError

NAMES = tuple(
    dict.fromkeys(
        (
            *goldens.EVERY, *goldens.NEWEST, *goldens.NEWEST_CRASHED, *goldens.OF_GROUPS,
            *goldens.OF_GROUPS_CRASHED, *goldens.TORN,
        )
    )
)  # fmt: skip


@pytest.mark.parametrize(("name", "ask"), tiers.spread(7, NAMES, ASKED))
def test_a_file_system_of_pyarrow_gives_what_the_disk_gives(
    golden_store: Golden, name: str, ask: Ask
) -> None:
    root = golden_store(name)
    expected = answer(lambda: rmqstore.open(root), ask, root)
    filesystem = pafs.LocalFileSystem()
    found = answer(lambda: rmqstore.open(str(root), filesystem=filesystem), ask, f"local:/{root}")
    assert found == expected


def test_queues_that_are_filled_alike_are_planned_by_few_requests(tmp_path: Path) -> None:
    """Files have their usual lengths, so most of their bytes are zeros."""
    n_rows, n_queues = 16_000, 8
    with rmqstore.create(tmp_path / "s") as writer:
        writer.append(
            pa.record_batch(
                {
                    "topic": ["T"] * n_rows,
                    "queueId": pa.array([row % n_queues for row in range(n_rows)], pa.int32()),
                    "body": [b"x" * 300] * n_rows,
                }
            )
        )
    filesystem = pafs.LocalFileSystem()
    with rmqstore.open(str(tmp_path / "s"), filesystem=filesystem) as store:
        parts = store.parts
        spans = [parts.queue_range("T", number) for number in range(n_queues)]
        assert sum(end - start for start, end in spans) == n_rows
        assert len(parts.sampler.log_headers()) < 64
        counts = parts.paths.storage.counts
        assert counts.gets < 60
        assert counts.bytes < 8 << 20
        assert counts.listings < 20


@pytest.mark.parametrize(
    ("uri", "options", "text"),
    [
        ("s3://KEY:SECRET@bucket/x", {}, "credentials do not belong in a URI"),
        ("s3://bucket/x", {"connect_timeout": "abc"}, "must be a number of seconds"),
        ("hdfs://host:abc/x", {}, "the port must be a number"),
    ],
)
def test_what_is_wrong_with_a_uri_is_named_without_secrets(
    uri: str, options: dict[str, object], text: str
) -> None:
    with pytest.raises(OptionError, match=text) as refused:
        rmqstore.open(uri, storage_options=options)
    assert "SECRET" not in str(refused.value)
