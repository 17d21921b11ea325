"""Options that verbs with messages share: which messages, and the form of their bodies."""

from __future__ import annotations

import base64
import csv
import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

import rmqstore
from command_line import refusal, rows, run, success

BODIES = [
    b'{"a": 1.10, "b": [12345678901234567890123, "x y"]}',
    b'{\n  "two": "lines \\" here",\r\n  "n": null\n}', "\u00fcml\u00e4ut".encode("latin-1"),
    "\u4e2d\u6587".encode("gb18030"), b'{"at":\r"the end of a line"}', b"", b"\xff\x00",
]  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Path:
    rows = {"topic": ["T"] * len(BODIES), "queueId": [0] * len(BODIES), "body": BODIES}
    with rmqstore.create(tmp_path / "s") as writer:
        writer.append(pa.RecordBatch.from_pydict(rows))
    return tmp_path / "s"


def decoded(row: dict[str, Any]) -> bytes:
    """Return the body that a row without a charset shows."""
    if "bodyHex" in row:
        return bytes.fromhex(row["bodyHex"])
    if "bodyBase64" in row:
        return base64.b64decode(row["bodyBase64"])
    return row["body"].encode()  # type: ignore[no-any-return]


@pytest.mark.parametrize("form", ["text", "hex", "base64"])
@pytest.mark.parametrize("verb", ["dump", "export", "query"])
def test_no_form_loses_a_byte(store: Path, tmp_path: Path, verb: str, form: str) -> None:
    if verb == "export":
        target = tmp_path / "rows.jsonl"
        success("export", store, target, "--body", form)
        found = [json.loads(line) for line in target.read_text().splitlines()]
    elif verb == "query":
        with rmqstore.open(store) as opened:
            ids = opened.scan(columns="msgId").read_all()["msgId"].to_pylist()
        asked = [argument for one in ids for argument in ("-m", one)]
        found = rows("query", store, *asked, "--body", form)
    else:
        found = rows("dump", store, "--body", form)
    assert list(map(decoded, found)) == BODIES
    assert all(len({"body", "bodyHex", "bodyBase64"} & row.keys()) == 1 for row in found)


def test_json_bodies_become_values_and_keep_their_numbers(store: Path) -> None:
    shown = run("dump", store, "--body", "json", "--columns", "body")
    lines = shown.stdout.splitlines()
    assert lines[0] == '{"body":{"a": 1.10, "b": [12345678901234567890123, "x y"]}}'
    assert lines[1] == '{"body":{"two":"lines \\" here","n":null}}'
    assert lines[4] == '{"body":{"at":"the end of a line"}}'
    others = [json.loads(lines[number]) for number in (2, 3, 5, 6)]
    assert [decoded(row) for row in others] == [BODIES[number] for number in (2, 3, 5, 6)]
    assert all("bodyBase64" in row for row in others)
    array = json.loads(run("dump", store, "--body", "json", "--format", "json").stdout)
    assert array[1]["body"] == {"two": 'lines " here', "n": None}


@pytest.mark.parametrize(
    ("charset", "text"), [("latin-1", "\u00fcml\u00e4ut"), ("gb18030", "\u4e2d\u6587")]
)
def test_text_is_decoded_by_its_charset(store: Path, charset: str, text: str) -> None:
    found = rows("dump", store, "--charset", charset)
    assert text in [row.get("body") for row in found]
    for row, body in zip(found, BODIES, strict=True):
        if "bodyBase64" in row:
            assert base64.b64decode(row["bodyBase64"]) == body
            with pytest.raises(UnicodeDecodeError):
                body.decode(charset)
        else:
            assert row["body"] == body.decode(charset)


def test_forms_of_bodies_in_files_and_tables(store: Path, tmp_path: Path) -> None:
    target = tmp_path / "rows.parquet"
    success("export", store, target, "--body", "text", "--columns", "body")
    table = parquet.read_table(target)
    assert table.schema.names == ["body", "bodyBase64"]
    assert table["body"].to_pylist()[4:6] == [BODIES[4].decode(), ""]
    assert table["bodyBase64"].to_pylist()[4:] == [None, None, "/wA="]
    shown = run("dump", store, "--body", "hex", "--format", "csv", "--columns", "queueId,body")
    bodies = [bytes.fromhex(one["bodyHex"]) for one in csv.DictReader(io.StringIO(shown.stdout))]
    assert bodies == BODIES
    plain = run("dump", store, "--body", "text", "--format", "table", "--columns", "body").stdout
    assert "bodyBase64" not in plain
    assert "/wA=" in plain


def test_bodies_that_are_not_written_are_not_read(store: Path) -> None:
    found = rows("dump", store, "--body", "none")
    assert all("msgId" in row for row in found)
    assert not any({"body", "bodyBase64"} & row.keys() for row in found)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--charset", "klingon"), "charset 'klingon' is unknown"),
        (("--charset", "rot13"), "charset 'rot13' is unknown"),
        (("--charset", "latin-1", "--body", "hex"), "only text and JSON have one"),
    ],
)
def test_charsets_that_are_refused(store: Path, arguments: tuple[str, ...], complaint: str) -> None:
    assert complaint in refusal("dump", store, *arguments)


def test_verbatim_copies_have_bodies_as_they_are(store: Path, tmp_path: Path) -> None:
    said = refusal("export", store, tmp_path / "x.parquet", "--verbatim", "--body", "hex")
    assert "contradict" in said


def topics(*words: object) -> set[tuple[str, int]]:
    return {(row["topic"], row["queueId"]) for row in rows(*words)}


def test_topics_match_patterns_and_queues_are_chosen_by_id(live: Path) -> None:
    columns = ("--columns", "topic,queueId")
    every = topics("dump", live, *columns)
    matching = {(topic, queue) for topic, queue in every if topic.startswith("LiveT")}
    assert topics("dump", live, "-t", "LiveT*", *columns) == matching
    chosen = topics("dump", live, "-i", 0, "-i", 2, *columns)
    assert chosen == {(topic, queue) for topic, queue in every if queue in (0, 2)}
    one = topics("dump", live, "-t", "LivePlai?", "-t", "LiveTx", "-i", 1, *columns)
    assert one == {("LivePlain", 1), ("LiveTx", 1)}
    both = topics("dump", live, "-t", "LivePlain", "-t", "LiveTx", "-i", 1, "-i", 0, *columns)
    assert both == {(topic, queue) for topic in ("LivePlain", "LiveTx") for queue in (0, 1)}
    by_log = topics("dump", live, "-t", "LiveT*", "--scan", "commitlog", *columns)
    assert by_log >= matching
    assert {topic for topic, _ in by_log} == {topic for topic, _ in matching}


def test_patterns_match_system_topics_only_on_request(live: Path) -> None:
    for order in ("queue", "commitlog"):
        arguments = ("-t", "*", "--scan", order, "--columns", "topic,queueId")
        names = {topic for topic, _ in topics("dump", live, *arguments)}
        assert names
        assert not any(topic.startswith(("%", "SCHEDULE", "RMQ_SYS")) for topic in names)
        every = {topic for topic, _ in topics("dump", live, *arguments, "--all")}
        assert "%RETRY%CG_retry" in every
    assert "only system topics" in refusal("dump", live, "-t", "%RETRY*")
    assert "matches no topic" in run("dump", live, "-t", "Nope*").stderr
    named = topics("stat", live, "-t", "Live*", "-t", "%RETRY%CG_retry")
    assert {topic for topic, _ in named} >= {"%RETRY%CG_retry", "LivePlain"}


def test_queries_take_patterns_and_queues(live: Path) -> None:
    every = rows("query", live, "-t", "LivePlain", "-k", "key-1")
    assert rows("query", live, "-t", "LiveP*", "-k", "key-1") == every
    chosen = rows("query", live, "-t", "Live*", "-i", 1, "-k", "key-1")
    assert chosen == [row for row in every if row["queueId"] == 1]
    exact = rows("query", live, "-t", "LivePlain", "-i", 1, "-k", "key-1")
    assert exact == chosen
    times = rows("query", live, "-t", "LivePlai?", "--time", "2026-11-21T02:17:03")
    assert {row["topic"] for row in times} == {"LivePlain"}


def test_offsets_of_several_queues(live: Path) -> None:
    found = rows("dump", live, "-t", "LivePlain", "-i", 0, "-i", 2, "-o", 30)
    assert {(row["queueId"], row["queueOffset"] >= 30) for row in found} == {(0, True), (2, True)}


@pytest.mark.parametrize("verb", ["topics", "groups", "routes", "view queues", "assign"])
def test_views_take_patterns_too(live: Path, verb: str) -> None:
    name, *options = verb.split()
    if name == "assign":
        options = ["-g", "CG_part", "-c", "one"]
    command = [name, *options, live, "-t"]
    found = rows(*command, "LiveP*")
    assert {row["topic"] for row in found} >= {"LivePlain"}
    assert all(row["topic"].startswith("LiveP") for row in found)
    both = rows(*command, "LivePlai?", "-t", "LiveTx")
    assert {row["topic"] for row in both} <= {"LivePlain", "LiveTx"}
    if name in ("topics", "routes"):
        assert not any(row["topic"].startswith("%") for row in rows(*command, "*"))
        assert any(row["topic"].startswith("%") for row in rows(*command, "*", "--all"))
    if name == "groups":
        assert any(row["topic"].startswith("%RETRY%") for row in rows(*command, "*"))


def test_a_scan_of_the_log_reads_it_as_it_is(live: Path) -> None:
    words = ("dump", live, "--scan", "commitlog", "--columns", "topic")
    every = run(*words).stdout
    assert "RETRY" in every
    assert run(*words, "--all").stdout == every
    assert "RETRY" not in run(*words, "-t", "*").stdout
    assert run(*words, "-t", "*", "--all").stdout == every
    by_queue = run("dump", live, "--columns", "topic", "-t", "*").stdout
    assert "RETRY" not in by_queue


def test_a_time_zone_is_that_of_given_and_of_shown_times(
    live: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choice = ("dump", live, "-t", "LivePlain", "-n", 1, "--columns", "storeTimestamp")
    assert rows(*choice) == [{"storeTimestamp": "2026-11-21T02:17:02.269+00:00"}]
    begin = ("-b", "2026-11-21T10:17:02.269", "--tz", "Asia/Shanghai")
    in_shanghai = [{"storeTimestamp": "2026-11-21T10:17:02.269+08:00"}]
    assert rows(*choice, *begin) == in_shanghai
    monkeypatch.setenv("RMQSTORE_TZ", "Asia/Shanghai")
    assert rows(*choice, *begin[:2]) == in_shanghai
    assert "Asia/Shanghai" in refusal(*choice, "--tz", "Mars")
    assert rows(*choice) == in_shanghai  # the variable still stands
