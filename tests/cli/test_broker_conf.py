"""The file of a broker on the command line, in the place of PATH."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from command_line import refusal, run, success
from goldens import Golden


@pytest.fixture
def conf(live: Path, tmp_path: Path) -> Path:
    root = shutil.copytree(live, tmp_path / "store")
    (root / "commitlog").rename(tmp_path / "log")
    file = tmp_path / "broker.conf"
    file.write_text(
        f"storePathRootDir={root}\nstorePathCommitLog={tmp_path / 'log'}\nbrokerName=mine\n"
    )
    return file


@pytest.mark.parametrize(
    "words",
    [
        ["stat"], ["dump", "-n", "1"], ["get", "496"], ["query", "-t", "LivePlain", "-k", "key-1"],
        ["view", "files"], ["topics"], ["groups"], ["brokers"], ["verify"], ["doctor"],
        ["rebuild"], ["routes"],
    ],
    ids=lambda words: words[0],
)  # fmt: skip
def test_a_verb_takes_the_file_instead_of_the_path(
    live: Path, conf: Path, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)  # as doctor wants it
    verb, *others = words
    done = success(verb, "-c", conf, *others)
    if verb in ("stat", "dump", "get", "query"):
        shown = run(verb, live, *others).stdout
        assert done.stdout.replace("mine", "broker-a") == shown


def test_arguments_after_the_path_stay_where_they_are(conf: Path, tmp_path: Path) -> None:
    success("export", "-c", conf, tmp_path / "all.parquet")
    success("copy", "--conf", conf, tmp_path / "copy")
    success("get", tmp_path / "copy", 496)


def test_ids_follow_the_path_or_the_file(live: Path, conf: Path) -> None:
    words = ["496", "7F0000010000904D00000000000001F0", "--columns", "keys", "--json"]
    shown = success("get", live, *words)
    assert run("get", "-c", conf, *words).stdout == shown.stdout
    log = conf.parent / "log"
    assert run("get", live, *words, "-c", conf, "--commitlog", log).stdout == shown.stdout
    assert "Missing argument 'ID'" in run("get", live).output
    assert "Missing argument 'PATH'" in run("get").output
    assert "Path '/nowhere' does not exist" in run("get", "/nowhere", "496").output


def test_a_path_beside_the_file_goes_first(golden_store: Golden, conf: Path) -> None:
    shown = run("brokers", golden_store("basic"), "-c", conf, "--commitlog",
                golden_store("basic") / "commitlog", "--json")  # fmt: skip
    (row,) = map(json.loads, shown.stdout.splitlines())
    assert row["brokerName"] == "mine"
    assert row["path"] == str(golden_store("basic"))


def test_files_of_several_brokers_name_their_stores(
    golden_store: Golden, conf: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other.conf"
    other.write_text(f"storePathRootDir={golden_store('basic')}\nbrokerName=other\n")
    rows = run("brokers", "-c", conf, "-c", other, "--json").stdout.splitlines()
    assert [json.loads(row)["brokerName"] for row in rows] == ["mine", "other"]
    refused = run("stat", "-c", conf, "--storage-option", "region=x")
    assert "a store on the local disk takes none" in refused.stderr
    client = ["-g", "CG_part", "-c", "c1", "-t", "LivePlain"]
    success("assign", "--conf", conf, *client)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["verify"], "Missing argument 'PATH'"),
        (["stat"], "Missing argument 'PATH'"),
        (["verify", "/", "/"], "unexpected extra argument"),
        (["stat", "-c", "/none.conf"], "-c/--conf /none.conf: there is no such file"),
        (["topics"], "Name stores by PATH..., or by --brokers, or by --conf"),
        (["topics", "/", "--brokers", '{"a": "/"}'], "name stores by PATH..., or by --brokers, or"),
        (["topics", "/", "/tmp", "--commitlog", "/"], "--commitlog: for one store only"),
    ],
    ids=str,
)
def test_what_names_no_store_is_refused(words: list[str], text: str) -> None:
    assert text in refusal(*words)


def test_import_takes_the_folders_of_the_file(conf: Path, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"topic": "New", "body": "x"}\n')
    success("import", conf.parent / "store", rows, "-c", conf)
    assert '"topic":"New"' in run("dump", "--conf", conf, "-t", "New").stdout
    assert not (conf.parent / "store" / "commitlog").exists()


def test_the_file_takes_the_place_of_the_path_of_an_import(conf: Path, tmp_path: Path) -> None:
    sources = [tmp_path / "1.jsonl", tmp_path / "2.jsonl"]
    for source in sources:
        source.write_text(f'{{"topic": "New{source.stem}", "body": "x"}}\n')
    success("import", "-c", conf, sources[0])
    success("import", "-c", conf, *sources)
    assert run("dump", "--conf", conf, "-t", "New1").stdout.count('"topic":"New1"') == 2
    other = tmp_path / "other"
    assert run("import", "-c", conf, other, sources[1]).exit_code == 2, "its log lies elsewhere"
    assert "'PATH'" in run("import").stderr
    assert "'SOURCES...'" in run("import", "-c", conf).stderr
    assert "'SOURCES...'" in run("import", tmp_path / "s").stderr
