"""Rows in every format: the same as the core gives, to stdout and into files."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import pty
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import zstandard
from pyarrow import parquet

import rmqstore
from command_line import refusal, rows, rows_of, run, success
from goldens import Golden
from json_reference import jsonable
from rmqstore.cli.output import Output
from rmqstore.exchange.json_rows import json_rows
from rmqstore.format.schema import ALL_COLUMNS, PENDING
from rmqstore.inspect.verify import verify
from rmqstore.read.views.schema import COLUMN_TYPES, VIEWS


def known(root: Path, name: str) -> list[dict[str, Any]]:
    """Return the rows of a view as the core gives them."""
    with rmqstore.open(root) as store:
        rows = store.view(name).read_all().to_pylist()
    return [
        jsonable({key: dict(v) if key == "brokerAddrs" and v else v for key, v in row.items()})
        for row in rows
    ]


# What rows hold, by the type of the column: its extremes, and what formats write in special ways.
VALUES: dict[pa.DataType, list[Any]] = {
    pa.bool_(): [True, False],
    pa.int32(): [-(2**31), 2**31 - 1],
    pa.int64(): [-(2**63), 2**63 - 1],
    pa.string(): ["", 'a,"b"\r\n\u2028\x1b[1m "', "ü\U0001f600\0"],
    pa.binary(): [b"", b"\xff\0", b'text, "quoted"\n'],
    pa.timestamp("us", tz="UTC"): [
        datetime(1970, 1, 1, tzinfo=UTC), datetime(2026, 3, 4, 5, 6, 7, 890_000, tzinfo=UTC),
    ],
    pa.map_(pa.string(), pa.string()): [[], [("a", ""), ('"', "b\n"), ("ü", "=")]],
}  # fmt: skip
OF_VIEWS = {kind for columns in COLUMN_TYPES.values() for kind in columns.values()}


def as_text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    is_nested = isinstance(value, dict)
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False) if is_nested else str(value)


@pytest.mark.parametrize("form", ["jsonl", "json", "csv", "parquet", "pretty", "table"])
def test_a_format_gives_the_values_of_all_types(tmp_path: Path, form: str) -> None:
    known = {*ALL_COLUMNS.types, *PENDING.types, *OF_VIEWS}
    assert known == {*VALUES}, "give the new type its values"
    most = max(map(len, VALUES.values())) + 1  # each column ends with a null
    columns = {
        "body" if kind == pa.binary() else f"of type {kind}": pa.array(
            [*values, *[None] * (most - len(values))], kind
        )
        for kind, values in VALUES.items()
    }
    table = pa.table(columns)
    target = tmp_path / "rows"
    n_rows = Output(form, target).write(table.schema, table.to_batches(max_chunksize=2))
    assert n_rows == len(table)
    rows = [row for batch in table.to_batches() for row in json_rows(batch)]
    text = "" if form == "parquet" else target.read_bytes().decode()
    if form == "parquet":
        assert parquet.read_table(target).equals(table)
    elif form == "json":
        assert json.loads(text) == rows
    elif form == "jsonl":
        assert [json.loads(line) for line in text.split("\n") if line] == rows
    elif form == "pretty":
        decoder, found, at = json.JSONDecoder(), [], 0
        while at < len(text):
            row, at = decoder.raw_decode(text, at)
            found, at = [*found, row], at + 1
        assert found == rows
    elif form == "csv":
        found = [*csv.DictReader(io.StringIO(text, newline=""))]
        names = [*found[0]]
        assert {*names} == {name for row in rows for name in row}
        assert found == [{name: as_text(row.get(name)) for name in names} for row in rows]
    else:
        assert all(name in text for name in table.column_names)
        assert "\x1b" not in text


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("golden", ["live", "crash", "lmq", "batch-cq", "controller"])
def test_a_view_gives_the_rows_of_the_core(golden_store: Golden, golden: str, name: str) -> None:
    root = golden_store(golden)
    assert rows_of(run("view", name, root, "--format", "jsonl")) == known(root, name)


@pytest.mark.parametrize(
    ("verb", "view"), [("topics", "topics"), ("groups", "groups"), ("brokers", "stores")]
)
def test_verbs_for_what_is_asked_most(live: Path, verb: str, view: str) -> None:
    found = rows(verb, live)
    assert found == known(live, view)
    assert next(iter(found[0].values())) in run(verb, live).stdout


def test_nothing_is_written_among_the_files_of_a_store(
    golden_store: Golden, tmp_path: Path
) -> None:
    root = golden_store("one")
    for target in (root / "rows.csv", root / "commitlog" / "rows.csv"):
        for words in (("dump", root, "--output", target), ("export", root, target)):
            refused = run(*words)
            assert (refused.exit_code, target.exists()) == (2, False)
            assert f"lies in the store {root}: put it elsewhere" in refused.stderr
    (tmp_path / "link").symlink_to(root / "index")
    assert "lies in the store" in run("stat", root, "--output", tmp_path / "link/rows.csv").stderr


def test_an_export_whose_target_is_forgotten_takes_no_store_for_it(golden_store: Golden) -> None:
    for options in ((), ("--overwrite",)):
        said = refusal("export", golden_store("one"), golden_store("live"), *options)
        assert "is a folder; name the file after it" in said


def test_two_formats_at_once_are_refused(golden_store: Golden) -> None:
    said = refusal("stat", golden_store("one"), "--json", "--format", "csv")
    assert "--json is --format jsonl, but --format csv is given" in said
    success("stat", golden_store("one"), "--json", "--format", "jsonl")


def test_views_take_topics_columns_and_a_limit(live: Path) -> None:
    chosen = rows("topics", live, "-t", "LivePlain", "--columns", "topic,queues")
    assert chosen == [{"topic": "LivePlain", "queues": 4}]
    assert len(rows("view", "commitlog", live, "-n", "3")) == 3
    for name, *words in (("files", "-t", "T"), ("groups", "--all"), ("files", "-b", "-1h")):
        said = f"{words[0].replace('-b', '--begin')} does not go with view {name}"
        assert said in run("view", name, live, *words).stderr


TIME = "2026-11-21T02:17:10Z"


def test_views_of_messages_take_a_group_and_times(live: Path) -> None:
    arguments = ("view", "deadletters", live, "--columns", "kind")
    for option, value, n in (("-g", "CG_retry", 8), ("-b", TIME, 9), ("-e", TIME, 4)):
        assert len(rows(*arguments, option, value)) == n


def test_views_take_queues_offsets_and_conditions(live: Path) -> None:
    words = ("view", "consumequeue", live, "-t", "LivePlain", "-i", 0, "-o", 10, "-n", 5)
    units = [(row["queueId"], row["queueOffset"]) for row in rows(*words)]
    assert units == [(0, offset) for offset in range(10, 15)]
    (queue,) = rows("view", "queues", live, "-t", "LivePlain", "--where", "queueId = 2")
    assert queue["messages"] == 52
    dead = rows("view", "deadLetters", live, "-k", "retry-0")
    assert {row["keys"] for row in dead} == {"retry-0"}
    msg_id = dead[0]["msgId"]
    assert {row["msgId"] for row in rows("view", "deadLetters", live, "-m", msg_id)} == {msg_id}
    assert rows("view", "traces", live, "-m", "it's") == []
    for option in ("-i", "-o", "-m", "-k"):
        refused = run("view", "epochs", live, option, "1")
        assert f"{option} does not go with view epochs" in refused.stderr
    assert "error: --where 'x = 1'" in run("view", "files", live, "--where", "x = 1").stderr


def test_a_condition_holds_for_views_of_several_stores(golden_store: Golden) -> None:
    roots = golden_store("live"), golden_store("batch-cq")
    queues = rows("view", "queues", *roots, "--where", "messages > 50", "--columns", "topic")
    assert {*queues[0]} == {"topic"}
    assert {row["topic"] for row in queues} >= {"LivePlain"}
    routes = rows("view", "routes", *roots, "--where", "topic = 'LivePlain'")
    assert [row["topic"] for row in routes] == ["LivePlain"]


def test_groups_of_one_name(live: Path) -> None:
    every = rows("groups", live)
    of_one = [row for row in every if row["consumerGroup"] == "CG_part"]
    assert rows("groups", live, "-g", "CG_part") == of_one
    assert "-g/--group CG_pat: no store knows it" in run("groups", live, "-g", "CG_pat").stderr


def test_stat_takes_queues_and_all_verbs_columns(
    live: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    stat = ("stat", live, "-i", 1, "--columns", "topic,queueId")
    assert rows(*stat, "-t", "LivePlain") == [{"topic": "LivePlain", "queueId": 1}]
    assert {row["queueId"] for row in rows(*stat)} == {1}
    assert {*rows("routes", live, "--columns", "topic,perm")[0]} == {"topic", "perm"}
    client = ("assign", live, "-g", "CG_part", "-c", "a", "--columns", "clientId")
    assert {*rows(*client)[0]} == {"clientId"}
    assert {*rows("doctor", "--columns", "what")[0]} == {"what"}
    for verb in ("trace", "stat", "doctor"):
        refused = run(verb, live, *(["496"] if verb == "trace" else []), "--columns", "nope")
        assert "error: --columns: unknown column nope; there are" in refused.stderr


def unpacked(path: Path) -> str:
    content = path.read_bytes()
    if path.suffix == ".gz":
        content = gzip.decompress(content)
    elif path.suffix == ".zst":
        content = zstandard.ZstdDecompressor().decompressobj().decompress(content)
    return content.decode()


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("rows.jsonl", "jsonl"), ("rows.ndjson.gz", "jsonl"), ("rows.jsonl.zst", "jsonl"),
        ("rows.json", "json"), ("rows.json.gz", "json"), ("rows.csv", "csv"),
        ("rows.csv.zst", "csv"), ("rows.txt", "table"), ("rows.txt.gz", "table"),
        ("rows.txt", "pretty"), ("rows.txt.gz", "pretty"),
    ],
)  # fmt: skip
def test_a_file_holds_what_would_be_printed(
    live: Path, tmp_path: Path, name: str, form: str
) -> None:
    says_format = "txt" not in name
    verb = ("topics", live, "--output", tmp_path / name)
    assert success(*verb, *([] if says_format else ["--format", form])).stdout == ""
    assert unpacked(tmp_path / name) == run("topics", live, "--format", form).stdout
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(
    ("name", "form", "told"),
    [("q.parquet", "csv", "parquet"), ("q.json", "jsonl", "json"), ("q.csv.gz", "table", "csv")],
)
def test_a_name_that_tells_another_format_is_refused(
    live: Path, tmp_path: Path, name: str, form: str, told: str
) -> None:
    said = refusal("topics", live, "--output", tmp_path / name, "--format", form)
    assert f"the name says {told}, but --format {form} is given" in said
    success("topics", live, "--output", tmp_path / "q.txt", "--format", form)


def test_an_export_takes_the_names_that_an_output_takes(live: Path, tmp_path: Path) -> None:
    target, other = tmp_path / "y.json", tmp_path / "z.json"
    success("export", live, target, "-t", "LivePlain")
    shown = run("dump", live, "-t", "LivePlain", "--format", "json").stdout
    assert target.read_text() == shown
    success("dump", live, "-t", "LivePlain", "--output", other)
    assert other.read_text() == shown
    refused = run("export", live, tmp_path / "y.parquet", "--format", "csv")
    assert "the name says parquet" in refused.stderr


def test_tables_that_no_terminal_shows_hold_everything(live: Path) -> None:
    names = [row["consumerGroup"] for row in rows("groups", live)]
    shown = run("groups", live).stdout
    assert all(f"│ {name} " in shown for name in names)
    assert "…" not in shown


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--output", "there.jsonl"), "--overwrite replaces it"),
        (("--output", "none/new.jsonl"), "there is no folder"),
        (("--output", "new.txt"), "the name does not give the format"),
        (("--output", "new.parquet.gz"), "Parquet is compressed inside"),
    ],
    ids=str,
)
def test_output_files_that_are_refused(
    live: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    complaint: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("there.jsonl").write_text("kept")
    assert complaint in refusal("dump", live, *arguments)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["kept"]


def test_nothing_found_can_be_an_exit_code(live: Path) -> None:
    for verb in (["query", live, "-k", "none"], ["dump", live, "-b", "2100-01-01"]):
        shown = run(*verb)
        assert (shown.exit_code, shown.stdout, shown.stderr) == (0, "", "nothing found\n")
        assert run(*verb, "--fail-if-empty").exit_code == 3
    success("query", live, "-t", "LivePlain", "-k", "key-1", "--fail-if-empty")


def test_a_query_gives_the_newest_in_every_format(live: Path) -> None:
    arguments = ["query", live, "-t", "LivePlain", "--tags", "TagA"]
    every = rows(*arguments)
    assert len(every) > 3
    newest = json.loads(run(*arguments, "-n", "2", "--format", "json").stdout)
    assert newest == every[-2:]
    (few,) = rows(*arguments, "-n", "1", "--columns", "keys,queueId")
    assert [*few] == ["keys", "queueId"]


def test_findings_come_in_every_format(golden_store: Golden, tmp_path: Path) -> None:
    root = golden_store("crash")
    with rmqstore.open(root) as store:
        found = list(verify(store))
    known = [{"part": one.part, "place": one.place, "text": one.text} for one in found]
    assert known
    lines = run("verify", root)
    assert lines.exit_code == 1
    assert lines.stdout.splitlines() == ["{part} {place}: {text}".format(**one) for one in known]
    *cures, last = lines.stderr.splitlines()
    assert last == f"damage: {len(known)} findings"
    kinds = ["lost (high, 2):", "unbuilt (high, 1):", "queue (medium, 2):", "keys (low, 1):"]
    assert [line for line in cures if not line.startswith("  ")] == [*kinds, "index (low, 1):"]
    assert f"rmqstore rebuild {root}" in lines.stderr
    assert json.loads(run("verify", root, "--format", "json").stdout) == known
    table = run("verify", root, "--format", "csv").stdout
    assert list(csv.DictReader(io.StringIO(table))) == known
    target = tmp_path / "findings.parquet"
    shown = run("verify", root, "--output", target)
    assert (shown.exit_code, shown.stdout) == (1, "")
    assert parquet.read_table(target).to_pylist() == known


def test_no_finding_is_an_empty_answer_in_every_format(
    golden_store: Golden, tmp_path: Path
) -> None:
    root = golden_store("one")
    agreed = "log, queues and index agree\n"
    header = '"part","place","text"\n'
    assert (run("verify", root).exit_code, run("verify", root).stdout) == (0, "")
    for form, written in (("json", "[]\n"), ("jsonl", ""), ("csv", header)):
        shown = run("verify", root, "--format", form)
        assert (shown.exit_code, shown.stdout) == (0, written)
        assert shown.stderr == f"{root}: {agreed}"
    success("copy", root, tmp_path / "copy", "--output", tmp_path / "findings.csv")
    assert (tmp_path / "findings.csv").read_text() == header
    built = run("rebuild", tmp_path / "copy", "--format", "json")
    assert (built.exit_code, built.stdout) == (0, "[]\n")


def test_an_export_of_nothing_says_so(golden_store: Golden, tmp_path: Path) -> None:
    verb = ("export", golden_store("empty"), tmp_path / "rows.csv")
    shown = run(*verb)
    assert (shown.exit_code, shown.stderr) == (0, "nothing found\n")
    assert "--overwrite replaces it" in refusal(*verb)
    assert run(*verb, "--overwrite", "--fail-if-empty").exit_code == 3
    verb = ("export", golden_store("one"), tmp_path / "one.csv", "--fail-if-empty")
    success(*verb)


@pytest.mark.parametrize("words", [["stat"], ["dump", "--format", "table"], ["describe"]])
def test_a_table_that_nobody_reads_ends_quietly(live: Path, words: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "rmqstore", words[0], str(live), *words[1:]]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


def on_terminal(columns: int, *words: object) -> list[str]:
    """Return what a terminal of some columns shows."""
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "rmqstore", *map(str, words)]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=follower, stderr=subprocess.STDOUT,
        env={**os.environ, "COLUMNS": str(columns)},
    ) as process:  # fmt: skip
        os.close(follower)
        shown = b""
        with suppress(OSError):  # the end of a terminal
            while piece := os.read(leader, 1 << 16):
                shown += piece
        process.wait()
    os.close(leader)
    return shown.decode().splitlines()


def test_messages_take_a_line_each_on_a_terminal(live: Path) -> None:
    words = ("dump", live, "--format", "table", "-n", "3")
    cut = on_terminal(100, *words)
    assert len(cut) == 7
    assert all(len(line) <= 100 for line in cut)
    assert "\u2026" in cut[3]
    wide = on_terminal(100, *words, "--wide")
    assert "\u2026" not in "".join(wide)
    assert ".331+00:00" in wide[4]


@pytest.mark.parametrize("columns", [80, 100])
@pytest.mark.parametrize("verb", ["groups", "topics", "view queues", "view files", "routes"])
def test_a_table_shows_the_columns_that_fit(live: Path, verb: str, columns: int) -> None:
    words = (*verb.split(), live, "-n", 2)
    *table, said = on_terminal(columns, *words)
    assert len(table) == 6
    assert all(len(line) <= columns for line in table)
    names = json.loads(run(*words, "--json").stdout.splitlines()[0])
    headers = [head.strip() for head in table[1].strip("\u2503").split("\u2503")]
    assert {*headers} < {*names}
    assert said.startswith(f"{len(names) - len(headers)} of {len(names)} columns are left out (")
    assert said.endswith("; --wide shows all")
    if verb == "groups":
        assert "lag" in headers


def test_a_terminal_shows_what_it_would_obey(tmp_path: Path) -> None:
    with rmqstore.create(tmp_path / "s") as writer:
        rows = {"topic": ["T"], "body": ["\u8ba2 a\x1b[31m\u202eb".encode()]}
        writer.append(pa.RecordBatch.from_pydict(rows))
    for form in ("csv", "jsonl", "json", "table"):
        words = ("dump", tmp_path / "s", "--columns", "body", "--format", form)
        (line,) = [line for line in on_terminal(80, *words) if "31m" in line]
        assert "\u8ba2 a" in line
        assert not {"\x1b", "\u202e"} & {*line}
        assert "\\u202eb" in line
    assert "\u202e" in run("dump", tmp_path / "s", "--format", "csv").stdout


def test_times_are_numbers_where_that_is_asked_for(live: Path) -> None:
    words = ("dump", live, "-n", "1", "--columns", "storeTimestamp", "--times", "ms")
    assert run(*words).stdout == '{"storeTimestamp":1795227422269}\n'
    assert run(*words, "--format", "csv").stdout.splitlines()[1] == "1795227422269"
    assert "1795227422269" in run(*words, "--format", "table").stdout
    (topic,) = rows("topics", live, "-t", "LivePlain", "--times", "ms")
    assert isinstance(topic["lastStoreTimestamp"], int)
