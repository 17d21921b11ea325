"""What rebuild and import say that they will change is what they change."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import goldens
import rmqstore
from command_line import run
from goldens import Golden
from rmqstore.errors import (
    CorruptRecordError,
    IllegalMessageError,
    StoreLockedError,
    StoreStateError,
)
from rmqstore.format.layout import QUEUE_UNIT
from rmqstore.inspect.broker_start import foresee
from rmqstore.inspect.changes import done_append, planned_append, planned_rebuild
from rmqstore.spans import QueueSlice
from rmqstore.storage.broker.folders import find_store
from rmqstore.storage.files.lock import StoreLock
from rmqstore.write.messages import WriteSpec
from rmqstore.write.repairer import plan_rebuild
from rmqstore.write.truncation import CLEARED
from written import files_of

QUEUE = ("LivePlain", 1)


@pytest.fixture
def root(copied: Golden) -> Path:
    """Return a copy of a golden store."""
    return copied("live")


@pytest.mark.parametrize("name", ["basic", "live", "empty", "batch-cq", *goldens.CRASHED])
def test_a_dry_run_says_what_the_rebuild_then_changes(
    copied: Golden, tmp_path: Path, name: str
) -> None:
    root, conf = copied(name), tmp_path / "sizes.conf"
    # two of them have no file that shows the sizes of queues and index
    conf.write_text("".join(f"{key}={value}\n" for key, value in goldens.sizes(name).items()))
    before = files_of(root)
    plan = plan_rebuild(find_store(root), truncate=True)
    words = root, "--truncate", "-c", conf
    said = run("rebuild", *words, "--dry-run")
    assert said.exit_code == 0
    with rmqstore.open(root) as store:
        n_queues = sum(len(store.queue_ids(topic)) for topic in store.topics())
    assert said.stdout.splitlines() == plan._replace(n_queues=n_queues).lines()
    assert files_of(root) == before, "a dry run changes nothing"
    log_before = {name for name in before if name.startswith("commitlog/")}
    assert run("rebuild", *words).exit_code in (0, 1)
    after = files_of(root)
    changed = {name for name in log_before if after.get(name) != before[name]}
    assert changed == {f"commitlog/{change.path.name}" for change in plan.log_changes}
    for change in plan.log_changes:
        assert change.path.exists() == (change.what == CLEARED)
    with rmqstore.open(root) as store:
        assert store.view("stores").read_all()["maxOffset"].to_pylist() == [plan.log_end]


def test_a_rebuild_from_an_empty_log_says_what_it_removes(copied: Golden) -> None:
    root = copied("basic")
    first, *others = sorted((root / "commitlog").iterdir())
    for file in others:
        file.unlink()
    first.rename(root / "aside")
    before = files_of(root)
    for again in ([], ["--dry-run"]):
        refused = run("rebuild", root, *again)
        assert refused.exit_code == 2
        assert "there is no file of the log" in refused.stderr
    assert files_of(root) == before
    first.write_bytes(bytes((root / "aside").stat().st_size))
    n_queues = len([*(root / "consumequeue").glob("*/*")])
    n_index_files = len([*(root / "index").iterdir()])
    said = run("rebuild", root, "--dry-run")
    assert (
        f"the log has no record to build from: of {n_queues} queues all units that lead to 0 or "
        f"later are removed, and {n_index_files} index files"
    ) in said.stdout
    assert "built again" not in said.stdout
    built = run("rebuild", root)
    assert built.stderr.endswith("nothing was built, as the CommitLog has no record\n")
    assert not [path for path in (root / "consumequeue").rglob("*") if path.is_file()]


def test_a_dry_run_meets_what_would_stop_the_rebuild(copied: Golden) -> None:
    root = copied("basic")
    (root / "abort").touch()
    file = min((root / "commitlog").iterdir())
    data = bytearray(file.read_bytes())
    data[200:260] = bytes(60)
    file.write_bytes(data)
    before = files_of(root)
    with pytest.raises(CorruptRecordError, match="good records follow"):
        planned_rebuild(root)
    assert run("rebuild", root, "--dry-run").exit_code == 1
    assert planned_rebuild(root, truncate=True)[0].startswith(f"{root}: the log reaches from 0 to")
    lock = StoreLock(root / "lock")
    try:
        with pytest.raises(StoreLockedError):
            planned_rebuild(root, truncate=True)
    finally:
        lock.release()
    assert {**files_of(root), "lock": ""} == {**before, "lock": ""}


def rows(*topics: str) -> list[pa.RecordBatch]:
    return [pa.RecordBatch.from_pydict({"topic": list(topics), "body": [b"x"] * len(topics)})]


def test_an_append_is_planned_by_topic(root: Path) -> None:
    before = files_of(root)
    lines = planned_append(root, rows("LivePlain", "New", "New"), WriteSpec())
    assert lines == [
        f"{root}: rows are appended after physical offset 232,925",
        "LivePlain: 1 rows in 1 queues",
        "New, a new topic: 2 rows in 2 queues",
        "3 rows of 2 topics",
    ]
    with pytest.raises(IllegalMessageError, match="row 2, counted from 1: "):
        planned_append(root, rows("LivePlain", "no/topic"), WriteSpec())
    assert files_of(root) == before


def test_a_dry_import_counts_what_the_import_appends(root: Path, tmp_path: Path) -> None:
    source = tmp_path / "rows.parquet"
    assert run("export", root, source, "-t", "LivePlain", "-t", "LiveTx").exit_code == 0
    before = files_of(root)
    said = run("import", root, source, "--dry-run")
    assert said.exit_code == 0, said.output
    assert files_of(root) == before
    lines = said.stdout.splitlines()
    counts = {line.split(":")[0]: int(line.split()[1].replace(",", "")) for line in lines[1:-1]}
    with rmqstore.open(root) as store:
        old = {topic: store.count(subscribe=topic) for topic in counts}
    assert run("import", root, source).exit_code == 0
    with rmqstore.open(root) as store:
        assert {topic: store.count(subscribe=topic) for topic in counts} == {
            topic: old[topic] + count for topic, count in counts.items()
        }
    new = run("import", tmp_path / "new", source, "--dry-run")
    assert new.stdout.startswith(f"{tmp_path / 'new'}: a new store is made\n")
    assert not (tmp_path / "new").exists()


def test_an_import_says_what_it_did(root: Path, tmp_path: Path) -> None:
    source = tmp_path / "rows.jsonl"
    source.write_text(
        '{"topic": "LivePlain", "queueId": 1, "body": "x"}\n'
        '{"topic": "New", "queueId": 0, "body": "x"}\n' * 2
    )
    with rmqstore.open(root) as store:
        end = store.view("queues").to_arrow().to_pylist()
        (last,) = [one["maxOffset"] for one in end if (one["topic"], one["queueId"]) == QUEUE]
    for times in range(2):
        done = run("import", root, source)
        assert done.exit_code == 0, done.output
        first, new = last + 2 * times, 2 * times
        assert done.stdout == ""
        assert done.stderr.splitlines() == [
            f"{root}: 4 rows were appended",
            f"LivePlain: 2 messages in 1 queue: 1 (offsets {first} to {first + 1})",
            f"New: 2 messages in 1 queue: 0 (offsets {new} to {new + 1})",
        ]


def test_an_import_into_many_queues_is_told_in_a_few_lines() -> None:
    taken = [QueueSlice(f"T{topic:02}", queue, 7, 8) for topic in range(20) for queue in range(9)]
    said = done_append("store", 1234, taken)
    assert said[0] == "store: 1,234 rows were appended"
    assert said[1].startswith("T00: 9 messages in 9 queues: 0 (offset 7), 1 (offset 7), 2 ")
    assert said[1].endswith("7 (offset 7), and 1 more queue")
    assert said[8:] == [said[1].replace("T00", "T07"), "and 12 more topics"]


@pytest.fixture
def person(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let verbs believe that a person is at the terminal."""
    for module in ("verify", "exchange"):
        monkeypatch.setattr(f"rmqstore.cli.{module}.must_ask", lambda *, yes: not yes)


@pytest.mark.usefixtures("person")
def test_a_person_is_asked_and_may_refuse(root: Path, tmp_path: Path) -> None:
    source = tmp_path / "rows.jsonl"
    source.write_text('{"topic": "New", "body": "x"}\n')
    before = files_of(root)
    for words in (["rebuild", root], ["import", root, source]):
        refused = run(*words, stdin="n\n")
        assert refused.exit_code == 4
        assert "[y/N]" in refused.stderr
        assert "nothing was changed" in refused.stderr
        assert str(root) in refused.stderr
        assert files_of(root) == before
    for words in (["rebuild", root], ["import", root, source]):
        assert run(*words, stdin="y\n").exit_code == 0
        assert "[y/N]" not in run(*words, "--yes").stderr


def test_a_dry_rebuild_warns_of_nothing_and_counts_what_the_rebuild_builds(copied: Golden) -> None:
    root = copied("crash")
    planned = run("rebuild", root, "--truncate", "--dry-run")
    assert planned.stderr == ""
    n_queues = planned.stdout.split(" files of ")[1].split()[0]
    built = run("rebuild", root, "--truncate")
    assert f"{n_queues} queues and the index were built" in built.stderr


def test_rows_are_shared_out_among_the_queues_that_a_topic_has(tmp_path: Path) -> None:
    root = tmp_path / "s"
    with rmqstore.create(root, spec=WriteSpec(default_queue_nums=8)) as writer:
        writer.append(*rows("T"))
    lines = planned_append(root, rows(*["T"] * 20, *["New"] * 20), WriteSpec())
    assert lines[1:3] == ["New, a new topic: 20 rows in 4 queues", "T: 20 rows in 8 queues"]


def test_delayed_rows_are_planned_by_the_table_of_the_broker(tmp_path: Path) -> None:
    levels = " ".join(f"{number + 1}s" for number in range(20))
    conf = tmp_path / "broker.conf"
    conf.write_text(f"storePathRootDir={tmp_path / 's'}\nmessageDelayLevel={levels}\n")
    delayed = pa.record_batch(
        {"topic": ["T"] * 3, "body": [b"x"] * 3, "delayTimeLevel": [18, 19, 20]}
    )
    for _ in range(2):  # of a store that is made, and of one that is there
        lines = planned_append(tmp_path / "s", [delayed], WriteSpec(), conf=conf)
        assert lines[1:] == [
            "SCHEDULE_TOPIC_XXXX, a new topic: 3 rows in 3 queues", "3 rows of 1 topics"
        ]  # fmt: skip
        if not (tmp_path / "s").exists():
            rmqstore.create(tmp_path / "s", conf=conf).close()


def test_a_dry_import_of_delayed_rows_is_refused_where_the_table_is_not_known(
    root: Path,
) -> None:
    """The times of the delayed messages of the store show that it is not the usual one."""
    for file in (root / "consumequeue" / "SCHEDULE_TOPIC_XXXX").glob("*/*"):
        data = np.frombuffer(file.read_bytes(), QUEUE_UNIT).copy()
        data["tags_code"][data["size"] > 0] += 7000
        file.write_bytes(data.tobytes())
    delayed = pa.record_batch({"topic": ["T"], "body": [b"x"], "delayTimeLevel": [1]})
    assert planned_append(root, rows("T"), WriteSpec())
    with pytest.raises(StoreStateError, match=r"delayed messages need.*conf"):
        planned_append(root, [delayed], WriteSpec())


@pytest.mark.parametrize(("left", "broker_end"), [(None, 196554), (0, 196554), (98304, 196608)])
def test_a_broker_that_finds_no_file_after_a_blank_ends_the_log_before_it(
    copied: Golden, left: int | None, broker_end: int
) -> None:
    root = copied("live")
    last = max((root / "commitlog").iterdir())
    last.unlink() if left is None else last.write_bytes(bytes(left))
    with rmqstore.open(root) as store:
        start = foresee(store.paths, store.parts.log, store.parts.ends)
    assert start is not None
    assert start.log_end.physical_offset == broker_end
    # a rebuild deletes the empty file
    assert plan_rebuild(find_store(root)).log_end == 196554
