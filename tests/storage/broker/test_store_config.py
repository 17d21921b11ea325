"""Sizes of files, by the broker's keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqstore import OptionError, StoreConfig, read_properties

PROPERTIES = Path(__file__).parents[3] / "conf" / "store.properties"


def test_the_file_in_conf_holds_the_defaults() -> None:
    given = read_properties(PROPERTIES)
    assert len(given) == 6
    assert StoreConfig().updated(given) == StoreConfig()


def test_a_brokers_file_may_say_more(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text(
        "brokerName = a\n! comment\n\nmappedFileSizeCommitLog = 65536\nmessageIndexEnable=FALSE\n"
    )
    config = StoreConfig().updated(read_properties(path))
    assert (config.mapped_file_size_commit_log, config.message_index_enable) == (65536, False)


def test_a_file_is_read_as_java_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_bytes(
        b"brokerName : a\nmaxIndexNum 7\nlistenPort\nfolders = /a,\\\n    /b\nname=\\u00e9 \xe9\n"
    )
    expected = {"brokerName": "a", "maxIndexNum": "7", "listenPort": "", "folders": "/a,/b"}
    assert read_properties(str(path)) == expected | {"name": "é é"}
    path.write_bytes(b"name=\\u00\n")
    with pytest.raises(OptionError, match=rf"^{path}: Invalid .*\\u00"):
        read_properties(path)


def test_queue_files_hold_whole_units() -> None:
    assert StoreConfig(mapped_file_size_consume_queue=601).mapped_file_size_consume_queue == 620


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("maxIndexNum", "many"), ("maxHashSlotNum", "0"), ("messageIndexEnable", "yes"),
        ("mappedFileSizeCommitLog", "-1"),
    ],
)  # fmt: skip
def test_values_are_refused_by_the_brokers_key(key: str, value: str) -> None:
    with pytest.raises(OptionError, match=key):
        StoreConfig().updated({key: value})


def test_the_keys_of_old_releases_are_known() -> None:
    given = {"mapedFileSizeCommitLog": "65536", "mapedFileSizeConsumeQueue": "400"}
    config = StoreConfig().updated(given)
    assert config.mapped_file_size_commit_log == 65536
    assert config.mapped_file_size_consume_queue == 400
