"""The note of an append of ours that is not complete yet."""

from __future__ import annotations

from pathlib import Path

import pytest

import rmqstore
from rmqstore.storage.broker.folders import find_store
from rmqstore.storage.log.writer_notes import read_intent


@pytest.mark.parametrize(
    ("text", "offset"),
    [("0", 0), ("131072", 131072), ("", None), ("-1", None), ("12x", None), ("1" * 40, None)],
)
def test_the_note_holds_where_the_append_began(
    tmp_path: Path, text: str, offset: int | None
) -> None:
    rmqstore.create(tmp_path / "s").close()
    paths = find_store(tmp_path / "s")
    assert read_intent(paths) is None
    paths.own.append_intent.parent.mkdir(parents=True, exist_ok=True)
    paths.own.append_intent.write_text(text)
    assert read_intent(paths) == offset
