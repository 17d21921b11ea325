"""Export to Parquet and JSON Lines and back into a store, by the verbs, judged by golden stores."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow import parquet

import goldens
import rmqstore
from command_line import refusal, run, success

SIZES = (
    "mappedFileSizeCommitLog=65536\nmappedFileSizeConsumeQueue=2000\n"
    "maxHashSlotNum=100\nmaxIndexNum=400\n"
)
# What "the same message" means; properties without what the store adds.
SAME = [
    "topic", "queueId", "queueOffset", "body", "properties", "flag", "bornTimestamp", "bornHost",
    "reconsumeTimes",
]  # fmt: skip


def rows(root: Path, columns: list[str] | None = None) -> list[dict[str, Any]]:
    """Return the messages of a store, those of each queue in their order."""
    with rmqstore.open(root, broker_name="b") as store:
        found = store.scan(columns=columns or SAME, include_system_topics=True).to_arrow()
    every = [row | {"properties": dict(row.get("properties", ()))} for row in found.to_pylist()]
    return sorted(every, key=lambda row: [row.get(name) for name in ("topic", "queueId")])


def config(folder: Path, text: str = SIZES) -> Path:
    path = folder / "broker.conf"
    path.write_text(text)
    return path


@pytest.mark.parametrize("suffix", ["parquet", "jsonl.gz"])
@pytest.mark.parametrize("name", ["basic", "edges", "ipv6", "compressed"])
def test_messages_come_back_the_same(
    golden_store: goldens.Golden, tmp_path: Path, name: str, suffix: str
) -> None:
    root, target = golden_store(name), tmp_path / f"out.{suffix}"
    success("export", root, target, "--all")
    assert [path.name for path in tmp_path.iterdir()] == [target.name]
    back = tmp_path / "back"
    kept = ("--uniq-key", "keep", "--allow-system-topics")
    success("import", back, target, "-c", config(tmp_path), *kept)
    assert rows(back) == rows(root)
    assert len(rows(back)) > 10
    for row in rows(back, ["properties", "msgId"]):
        assert row["properties"].get("UNIQ_KEY") in (None, row["msgId"])


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
@pytest.mark.parametrize("name", ["basic", "edges", "compressed", "prop-crc"])
def test_a_verbatim_export_comes_back_byte_for_byte(
    golden_store: goldens.Golden, tmp_path: Path, name: str, suffix: str
) -> None:
    root, target, back = golden_store(name), tmp_path / f"out.{suffix}", tmp_path / "back"
    conf = "".join(f"{key}={value}\n" for key, value in goldens.summary(name)["conf"].items())
    success("export", root, target, "--verbatim", "--scan", "commitlog")
    success("import", back, target, "--verbatim", "-c", config(tmp_path, conf))
    wrote = {path.name: path.read_bytes() for path in (root / "commitlog").iterdir()}
    assert {path.name: path.read_bytes() for path in (back / "commitlog").iterdir()} == wrote


def test_export_takes_what_was_chosen(live: Path, tmp_path: Path) -> None:
    target = tmp_path / "some.parquet"
    chosen = ("-t", "LivePlain", "-i", 0, "-o", 10, "--columns", "queueOffset,body")
    success("export", live, target, *chosen)
    found = parquet.read_table(target)
    assert found.column_names == ["queueOffset", "body"]
    assert found.column("queueOffset").to_pylist()[:2] == [10, 11]
    assert parquet.ParquetFile(target).metadata.row_group(0).column(1).compression == "ZSTD"


def test_import_takes_rows_typed_by_hand(tmp_path: Path) -> None:
    lines = [
        {"topic": "Orders", "body": "one", "keys": "k1", "bornTimestamp": "2026-01-02T03:04:05Z"},
        {"topic": "Orders", "bodyBase64": "/wA=", "properties": {"colour": "blue"},
         "bornTimestamp": 1767323045000},
        {"topic": "Orders", "body": "three", "queueId": 2, "tags": None},
    ]  # fmt: skip
    root = tmp_path / "s"
    typed = "\n".join(map(json.dumps, lines)) + "\n\n"
    success("import", root, "-", "-c", config(tmp_path), "--queue-nums", 3, stdin=typed)
    found = rows(root, ["queueId", "body", "keys", "bornTimestamp", "properties"])
    assert {row["body"] for row in found} == {b"one", b"\xff\x00", b"three"}
    assert next(row["queueId"] for row in found if row["body"] == b"three") == 2
    assert {str(row["bornTimestamp"]) for row in found[:2]} >= {"2026-01-02 03:04:05+00:00"}
    assert any(row["properties"].get("colour") == "blue" for row in found)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "line 601 is not JSON"),
        ("[1]", "line 601 is not a JSON object"),
        ("[" * 100_000, "line 601 is not JSON"),
        ('{"topic": "T", "body": "x", "colour": "blue"}', "line 601: colour is not a column"),
        ('{"topic": "T", "body": 3}',
         "line 601: body must be text, not 3; other bytes stand in bodyBase64"),
        ('{"topic": "T", "bodyBase64": "*"}', "line 601: bodyBase64"),
        ('{"topic": "T", "body": "x", "queueId": "many"}', "queueId must be int32"),
        ('{"topic": "T", "body": "x", "queueId": 99999999999}', "queueId must be int32"),
        ('{"topic": "T", "body": "x", "bornTimestamp": "noon"}',
         "line 601: bornTimestamp: time 'noon'"),
        ('{"topic": "../T", "body": "x"}', "line 601: MESSAGE_ILLEGAL"),
        ('{"topic": "T"}', "line 601: MESSAGE_ILLEGAL: body is null"),
        ('{"topic": "T", "body": "x", "properties": {"a": "1", "b": ""}}',
         "line 601: MESSAGE_ILLEGAL: the value of property 'b' is null or empty"),
        ('{"topic": "T", "body": "x", "properties": {"a": null}}',
         "line 601: MESSAGE_ILLEGAL: the value of property 'a' is null or empty"),
        ('{"topic": "T", "body": "x", "properties": {"": "x"}}',
         "line 601: MESSAGE_ILLEGAL: a property has no name"),
        ('{"topic": "T", "body": {"a": 1}}', 'must be text, not {"a": 1}; other bytes'),
        ('{"topic": "T", "bodyBase64": 7}', "bodyBase64 must be bytes in base64, not 7"),
        ('{"topic": 7, "body": "x"}', "topic must be text, not 7"),
        ('{"topic": "T", "body": "x", "properties": {"a": 1}}', "an object whose values are text"),
        ('{"topic": "T", "body": "x", "properties": "a"}', "an object whose values are text"),
        ('{"topic": "T", "body": "x", "keysBase64": "eA=="}', "must be string, without Base64"),
        ('{"topic": "T", "body": "x", "bornTimestamp": 9e18}', "must be timestamp[us"),
        ('{"topic": "T", "body": "\\ud800"}', "body must be text"),
        ('{"topic": }', "is not JSON: Expecting value at character 11"),
        ('{"topic": "T", "body": "a", "bodyBase64": "Yg=="}', "body is b'a' by one name, b'b' by"),
        ('{"topic": "T", "body": "a", "body": "b"}', "'body' stands for both 'a' and 'b'"),
        ('{"topic": "T", "body": "x", "properties": {"a": "1", "a": "2"}}', "both '1' and '2'"),
    ],
)  # fmt: skip
def test_import_refuses_a_bad_line_and_writes_nothing(
    tmp_path: Path, line: str, reason: str
) -> None:
    root, source = tmp_path / "s", tmp_path / "in.jsonl"
    good = '{"topic": "T", "body": "x"}\n'
    source.write_text(good)
    success("import", root, source, "-c", config(tmp_path))
    source.write_text(good * 600 + line + "\n")
    said = refusal("import", root, source, "-c", config(tmp_path))
    assert f"{source}: line 601" in said
    assert reason in said
    assert "object" not in said or "object" in reason
    assert len(rows(root)) == 1


def test_an_error_names_the_row_of_its_file(tmp_path: Path) -> None:
    one, two = tmp_path / "1.parquet", tmp_path / "2.parquet"
    for path, last in ((one, b"x"), (two, b"y" * (5 << 20))):
        table = pa.table({"topic": ["T"] * 9000, "body": [b"x"] * 8999 + [last]})
        parquet.write_table(table, path, row_group_size=4000)
    said = refusal("import", tmp_path / "s", one, two)
    assert f"error: {two}: row 9000: MESSAGE_ILLEGAL: a body of 5242880 bytes" in said
    assert not (tmp_path / "s").exists()
    (tmp_path / "in").mkdir()
    for source in (one, two):
        source.rename(tmp_path / "in" / source.name)
    shown = run("import", tmp_path / "s", tmp_path / "in", "--dry-run")
    assert f"error: {tmp_path}/in/2.parquet: row 9000: MESSAGE" in shown.stderr


def test_an_error_names_the_line_of_its_file(tmp_path: Path) -> None:
    one, two = tmp_path / "1.jsonl", tmp_path / "2.jsonl"
    good, bad = '{"topic": "T", "body": "x"}\n', '{"topic": "no/topic", "body": "x"}\n'
    one.write_text(good * 600 + "\n\n" + good * 9000)
    two.write_text("\n" + good * 1100 + "\n" + bad)
    for option in ((), ("--dry-run",)):
        said = refusal("import", tmp_path / "s", one, two, *option)
        assert f"error: {two}: line 1103: MESSAGE_ILLEGAL: topic" in said
        assert not (tmp_path / "s").exists()


def test_a_refused_import_leaves_no_store(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text('{"topic": "T", "body": "x"}\n' * 20_000 + '{"topic": "T"}\n')
    for name in ("new", "there", "deep/er"):
        (tmp_path / "there").mkdir(exist_ok=True)
        assert run("import", tmp_path / name, source).exit_code == 2
        assert not (tmp_path / name).exists() or name == "there"
    assert [*(tmp_path / "there").iterdir()] == []
    (tmp_path / "there" / "notes").touch()
    assert run("import", tmp_path / "there", source).exit_code == 2
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["notes"]


def test_an_import_of_nothing_makes_no_store(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text("\n")
    said = f"{tmp_path / 's'}: there are no rows, so nothing changes\n"
    shown = run("import", tmp_path / "s", source)
    assert (shown.exit_code, shown.stderr) == (0, said)
    assert run("import", tmp_path / "s", source, "--dry-run").stdout == said
    assert not (tmp_path / "s").exists()


def test_a_dry_import_refuses_what_the_import_refuses(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text('{"topic": "T", "body": "x"}\n')
    success("import", tmp_path / "s", source)
    for option in ((), ("--dry-run",)):
        said = refusal("import", tmp_path / "s" / "commitlog", source, *option)
        assert "is a part of the store" in said


def test_import_of_a_partitioned_folder_takes_columns_from_its_paths(tmp_path: Path) -> None:
    for topic, queue_id, day in (("007", 1, 5), ("Orders", 0, 6)):
        folder = tmp_path / "in" / f"topic={topic}" / f"queueId={queue_id}" / f"day={day}"
        folder.mkdir(parents=True)
        table = pa.table({"body": ["a", "b"], "rest": [1, 2]})
        parquet.write_table(table, folder / "part-0.parquet")
        (folder / "_SUCCESS").touch()
    root = tmp_path / "s"
    assert "column rest" in refusal("import", root, tmp_path / "in", "-c", config(tmp_path))
    success(
        "import", root, tmp_path / "in", "-c", config(tmp_path), "--columns", "body,topic,queueId"
    )
    found = [(row["topic"], row["queueId"], row["body"]) for row in rows(root)]
    assert found == [("007", 1, b"a"), ("007", 1, b"b"), ("Orders", 0, b"a"), ("Orders", 0, b"b")]


def test_rows_of_one_file_keep_their_order(tmp_path: Path) -> None:
    n = 50_000
    numbers = pa.array(range(n), pa.int32())
    queue_ids = pa.array([0] * n, pa.int32())
    bodies = pc.cast(numbers, pa.string())
    table = pa.table({"topic": ["T"] * n, "queueId": queue_ids, "body": bodies})
    parquet.write_table(table, tmp_path / "in.parquet", row_group_size=7000)
    success("import", tmp_path / "s", tmp_path / "in.parquet")
    with rmqstore.open(tmp_path / "s") as store:
        found = store.scan(columns="body").read_all().column("body").to_pylist()
    assert found == [str(number).encode() for number in range(n)]


def test_what_is_not_parquet_is_named(tmp_path: Path) -> None:
    bad = tmp_path / "bad.parquet"
    bad.write_bytes(gzip.compress(b"x"))
    assert "bad.parquet cannot be read as Parquet" in refusal("import", tmp_path / "s", bad)
    for name in ("none.jsonl", "none.parquet"):
        assert "there is no such file" in refusal("import", tmp_path / "s", tmp_path / name)
    assert not (tmp_path / "s").exists()


def test_import_of_a_folder_takes_columns_that_only_some_files_have(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number, others in enumerate(({}, {"tags": ["x"]})):
        table = pa.table({"topic": ["T"], "body": [b"a"], **others})
        parquet.write_table(table, tmp_path / "in" / f"{number}.parquet")
    success("import", tmp_path / "s", tmp_path / "in")
    found = rows(tmp_path / "s", ["topic", "queueId", "tags"])
    assert [row["tags"] for row in found] == [None, "x"]


def test_import_names_bytes_that_are_not_utf8_and_parquet_that_ends_early(tmp_path: Path) -> None:
    lines = tmp_path / "rows.jsonl"
    lines.write_bytes(b'{"topic": "T", "body": "\xff"}\n')
    table = pa.table({"topic": ["T"] * 1000, "body": [b"%d" % number for number in range(1000)]})
    parquet.write_table(table, tmp_path / "rows.parquet", compression="none", use_dictionary=False)
    data = bytearray((tmp_path / "rows.parquet").read_bytes())
    data[40:2000] = bytes(1960)
    (tmp_path / "rows.parquet").write_bytes(data)
    for source in (lines, tmp_path / "rows.parquet"):
        assert str(source) in refusal("import", tmp_path / "s", source).replace("\n", "")
    assert not list((tmp_path / "s").glob("commitlog/*"))


@pytest.mark.parametrize("name", ["h.json", "h.csv", "h"])
def test_import_names_the_formats_that_it_reads(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("[]")
    said = refusal("import", tmp_path / "s", tmp_path / name)
    assert "import takes Parquet (.parquet) and JSON Lines (.jsonl, .ndjson)" in said
    assert "csv," not in said
