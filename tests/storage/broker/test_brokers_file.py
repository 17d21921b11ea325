"""The table of brokers and their stores, as text and as a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqstore.errors import OptionError
from rmqstore.storage.broker.folders import names_by_path, read_brokers

EXPECTED = {"broker-a": ("s3://bucket/a",), "b": ("/x", "/y")}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("b.json", '{"broker-a": "s3://bucket/a", "b": ["/x", "/y"]}'),
        ("b.toml", 'broker-a = "s3://bucket/a"\nb = ["/x", "/y"]'),
        ("b.toml", '[brokers]\nbroker-a = "s3://bucket/a"\nb = ["/x", "/y"]'),
    ],
)
def test_brokers_are_read_from_text_and_files(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert read_brokers(str(tmp_path / name)) == EXPECTED
    if text.startswith("{"):
        assert read_brokers(text) == EXPECTED
    assert names_by_path(EXPECTED) == {"s3://bucket/a": "broker-a", "/x": "b", "/y": "b"}


@pytest.mark.parametrize("text", ["{", "{}", '{"a": 1}', '{"a": []}', '{"": "/x"}', '{"a": [""]}'])
def test_what_is_not_a_table_of_stores_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(OptionError, match="brokers"):
        read_brokers(text)
    (tmp_path / "b.json").write_text(text)
    with pytest.raises(OptionError, match=r"brokers .*b\.json"):
        read_brokers(str(tmp_path / "b.json"))


def test_a_missing_file_and_a_path_of_two_brokers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="nowhere"):
        read_brokers(str(tmp_path / "nowhere.toml"))
    with pytest.raises(OptionError, match="a path of b is named twice"):
        names_by_path({"a": ("/x",), "b": ("/x",)})
