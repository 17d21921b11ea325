"""Stores that are read through ``pyarrow.fs``: the answers are those of a local disk."""

from __future__ import annotations

import pyarrow.fs as pafs
import pytest

import goldens
import rmqstore
import tiers
from goldens import Golden
from remote_reads import ASKED, Ask, answer

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
