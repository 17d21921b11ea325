"""Files and topics because of which a broker does not start; RocketMQ 5.3.3 was tried with each."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

import rmqstore
from goldens import Golden
from rmqstore.inspect.broker_start import misplaced_files
from rmqstore.inspect.remedies import kind_of
from rmqstore.inspect.verify import verify

SIZES = (
    "mappedFileSizeCommitLog=98304\nmappedFileSizeConsumeQueue=500\n"
    "maxHashSlotNum=200\nmaxIndexNum=800\n"
)
ZERO = "00000000000000000000"


def cut(path: str, length: int) -> Callable[[Path], None]:
    """Return a change: the last file of a folder gets another length."""
    return lambda root: os.truncate(max((root / path).iterdir()), length)


def nothing(_root: Path) -> None:
    """Leave a store as it is."""


def folder_in_index(root: Path) -> None:
    """Make a folder beside the files of the index, with a name as theirs."""
    (root / "index" / "20230101000000000").mkdir()


def empty_file(path: str, folder: str = "") -> Callable[[Path], None]:
    """Return a change: there is an empty file, and perhaps a folder."""

    def change(root: Path) -> None:
        (root / path).parent.mkdir(exist_ok=True)
        (root / path).touch()
        if folder:
            (root / folder).mkdir()

    return change


def configured(**types: str) -> Callable[[Path], None]:
    """Return a change: ``topics.json`` has these types of queues."""

    def change(root: Path) -> None:
        path = root / "config" / "topics.json"
        table = json.loads(path.read_text()) if path.exists() else {"topicConfigTable": {"X": {}}}
        for topic, kind in types.items():
            table["topicConfigTable"][topic] = {"attributes": {"queue.type": kind}}
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(table))

    return change


def kinds(root: Path, conf: str = "") -> list[str]:
    """Return the kinds of findings of a store that keep a broker from starting."""
    file = root.parent / "broker.conf"
    file.write_text(f"storePathRootDir={root}\n{conf}")
    with rmqstore.open(root, conf=file) as store:
        found = {kind_of(finding) for finding in verify(store)}
    return sorted(found & {"start", "type"})


@pytest.mark.parametrize(
    ("name", "change", "conf", "expected"),
    [
        pytest.param("live", nothing, SIZES, [], id="as it was"),
        pytest.param(
            "default-sizes", cut("commitlog", 100_000), "mappedFileSizeCommitLog=1073741824",
            ["start"], id="the only file of the log was cut",
        ),
        pytest.param(
            "live", nothing, SIZES.replace("=500", "=6000000"), ["start"], id="queues of 25 units",
        ),
        pytest.param(
            "batch-cq", cut("batchconsumequeue/BatchA/0", 700), "", ["start"],
            id="a batch queue was cut",
        ),
        pytest.param(
            "cq-ext", cut("consumequeue_ext/ExtA/0", 2000), "", ["start"],
            id="an extension was cut",
        ),
        pytest.param(
            "live", empty_file("consumequeue/LivePlain/0/zzz"), "", [],
            id="an empty file with any name at the end",
        ),
        pytest.param(
            "live", empty_file(f"commitlog/{294912:020d}"), "", [], id="an empty file at the end",
        ),
        pytest.param(
            "live", empty_file(f"commitlog/{294912:020d}", "commitlog/lost+found"), "", ["start"],
            id="an empty file before a folder",
        ),
        pytest.param(
            "batch-cq", configured(BatchA="BatchCQ", BatchB="BatchCQ"), "", [],
            id="both batch topics",
        ),
        pytest.param(
            "batch-cq", configured(BatchA="BatchCQ"), "", ["type"], id="one of two batch topics",
        ),
        pytest.param(
            "batch-cq", empty_file("config/topics.json"), "", ["type"], id="an empty table",
        ),
        pytest.param(
            "live", configured(LivePlain="BatchCQ"), "", ["type"], id="a topic of ordinary queues",
        ),
    ],
)  # fmt: skip
def test_what_keeps_a_broker_from_starting(
    copied: Golden, name: str, change: Callable[[Path], None], conf: str, expected: list[str]
) -> None:
    root = copied(name)
    change(root)
    assert kinds(root, conf) == expected


@pytest.mark.parametrize(
    ("name", "change", "text"),
    [
        pytest.param(
            "default-sizes", cut("commitlog", 100_000),
            "has 100000 bytes, and RocketMQ's default is 1073741824: a broker with another length",
            id="log",
        ),
        pytest.param(
            "batch-cq", nothing, "takes the queues of BatchA, BatchB for ordinary", id="batch",
        ),
        pytest.param(  # as 4.9.8 does
            "v49", folder_in_index, "a broker from 5.0 on does not start", id="index of 4.x",
        ),
    ],
)  # fmt: skip
def test_what_nothing_shows_is_a_warning(
    copied: Golden,
    caplog: pytest.LogCaptureFixture,
    name: str,
    change: Callable[[Path], None],
    text: str,
) -> None:
    root = copied(name)
    change(root)
    assert kinds(root) == []
    assert text in caplog.text


def test_a_rebuild_gives_files_the_lengths_that_the_broker_names(
    copied: Golden, tmp_path: Path
) -> None:
    root = copied("default-sizes")
    cut("commitlog", 100_000)(root)
    for path in (root / "consumequeue").rglob(ZERO):
        os.truncate(path, 3000)
    conf = "mappedFileSizeCommitLog=200000\nmappedFileSizeConsumeQueue=6000\n"
    assert kinds(root, conf) == ["start"]
    with rmqstore.open(root, "a", conf=tmp_path / "broker.conf") as writer:
        assert not writer.rebuild()
    assert kinds(root, conf) == []
    assert (root / "commitlog" / ZERO).stat().st_size == 200_000
    assert {path.stat().st_size for path in (root / "consumequeue").rglob(ZERO)} == {6000}


def test_a_full_file_of_the_log_is_not_padded(copied: Golden, tmp_path: Path) -> None:
    """A blank closes it, so it has the length that its broker gave it."""
    root = copied("live")
    for path in sorted((root / "commitlog").iterdir())[1:]:
        path.unlink()
    kinds(root, "mappedFileSizeCommitLog=1073741824\n")
    with rmqstore.open(root, "a", conf=tmp_path / "broker.conf", truncate=True):
        pass
    assert (root / "commitlog" / ZERO).stat().st_size == 98_304


def test_a_file_that_ends_where_its_twin_goes_on_has_other_bytes(
    copied: Golden, tmp_path: Path
) -> None:
    root, second = copied("live"), tmp_path / "log"
    second.mkdir()
    whole = (root / "commitlog" / ZERO).read_bytes()
    for data, kind in ((whole, "twin"), (whole[:50_000], "twins")):
        (second / ZERO).write_bytes(data)
        with rmqstore.open(root, commitlogs=[root / "commitlog", second]) as store:
            found = {one.kind: one.text for one in misplaced_files(store.paths)}
        assert found.keys() & {"twin", "twins"} == {kind}
    assert "other bytes from position 50000 on" in found["twins"]
