"""The command line: what goes to stdout, and how a command ends."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import goldens
from command_line import refusal, rows, run, success
from goldens import Golden


def test_a_store_may_be_named_by_a_file_uri(live: Path) -> None:
    assert run("stat", f"FILE://{live}").stdout == run("stat", live).stdout
    assert "a file of another computer cannot be read" in refusal("stat", f"file://elsewhere{live}")


def test_stat_shows_a_table_without_system_topics(live: Path) -> None:
    shown = success("stat", live)
    assert "LivePlain" in shown.stdout
    assert "%RETRY%" not in shown.stdout
    assert "%RETRY%CG_retry" in run("stat", live, "--all").stdout


def test_stat_of_very_many_queues_is_plain_text(
    live: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    framed = run("stat", live).stdout.splitlines()
    monkeypatch.setattr("rmqstore.cli.output._FRAMED_ROWS", 1)
    plain = run("stat", live).stdout.splitlines()
    cells = [re.sub("[│┃]", "", line).split() for line in framed if line[0] in "│┃"]
    assert [line.split() for line in plain[:-1]] == cells
    assert plain[-1] == framed[-1] == "CommitLog, queues in files, RocketMQ 5.0 or later"


def test_a_store_with_rocksdb_queues_is_verified_without_them_if_it_must(
    golden_store: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    root = golden_store("rocksdb-cq")
    checked = success("verify", root)
    assert "queues in RocksDB were not compared" in checked.stderr
    assert "RocksDB" in run("stat", root).stdout
    assert len(rows("dump", root, "--scan", "commitlog")) == len(goldens.records("rocksdb-cq"))


def test_verbs_read_the_dledger_log_of_one_node_of_several(
    golden_store: Golden, tmp_path: Path
) -> None:
    root = Path(shutil.copytree(golden_store("dledger-mixed"), tmp_path / "s"))
    shutil.copytree(root / "dledger-n0", root / "dledger-n1")
    record = goldens.records("dledger-mixed")[-1]
    for verb in (
        ["stat", root], ["verify", root], ["dump", root, "-n", 1],
        ["get", root, record["physicalOffset"]], ["query", root, "-k", record["uniqKey"]],
    ):  # fmt: skip
        assert "n0 in " in refusal(*verb)
        assert run(*verb, "--dledger-self-id", "n1").exit_code == 0, verb
    assert "quorum" in refusal("rebuild", root, "--dledger-self-id", "n1")


def test_verbs_read_tiered_storage_by_queue(golden_store: Golden, tmp_path: Path) -> None:
    root = golden_store("tiered")
    tier = root / "tieredstore"
    queues = goldens.summary("tiered")["queues"]
    for arguments, end, kind in (
        ([tier], "maxOffset", "tiered storage in "),
        ([root, "--tiered", tier], "localMaxOffset", "CommitLog, continued from tiered storage"),
    ):
        expected = [queue[end] - queue["minOffset"] for queue in queues]
        assert [row["messages"] for row in rows("stat", *arguments)] == expected
        shown = run("stat", *arguments).stdout.splitlines()[-1]
        assert shown.startswith(kind)
        assert str(tier) in shown
        dumped = rows("dump", *arguments, "-t", "TierA", "-i", 1, "--columns", "queueOffset")
        assert len(dumped) == expected[1]
        success("export", *arguments, tmp_path / f"{end}.parquet")
        found = rows("query", *arguments, "--tags", "TagA", "-n", 5)
        times = sorted(row["storeTimestamp"] for row in rows("dump", *arguments, "--tags", "TagA"))
        assert [row["storeTimestamp"] for row in found] == times[-5:]
        success("verify", *arguments)
        for verb, *words in (["report", "-o", tmp_path / "report.html"], ["get", 0]):
            said = refusal(verb, *arguments, *words)
            assert "not supported with tiered storage" in said
    assert "--tiered: rebuild is for the local store" in refusal("rebuild", root, "--tiered", tier)
    assert "not read: messages in tiered storage" in run("stat", root).stdout
    success("verify", root)


def test_stat_lists_the_epochs_of_a_broker_in_controller_mode(golden_store: Golden) -> None:
    shown = run("stat", golden_store("controller"))
    assert "epoch 1: physical offsets 0 to 41,308" in shown.stdout.splitlines()
    assert "epoch 5: physical offsets 85,369 to " in shown.stdout
    assert all("topic" in row for row in rows("stat", golden_store("controller")))


def test_query_says_which_messages_no_index_knows(golden_store: Golden) -> None:
    root = golden_store("batch-cq")
    asked = run("query", root, "-t", "BatchA", "-k", "ik26")
    assert "nothing found" in asked.stderr
    assert "BatchA: messages that share a record are in no index" in asked.stderr
    found = run("dump", root, "-t", "BatchA", "--where", "keys = 'ik26'", "--columns", "keys")
    assert found.stdout.splitlines()[0] == '{"keys":"ik26"}'
    assert "msgId = 'ID'" in run("query", root, "-m", "none").stderr
    assert "share a record" not in run("query", root, "-t", "Plain", "-k", "none").stderr


def test_a_cluster_is_named_by_a_file_by_uris_and_with_replicas(live: Path, tmp_path: Path) -> None:
    master = shutil.copytree(live, tmp_path / "master")
    (master / "broker.conf").write_text("brokerName=b\nbrokerId=0\nbrokerIP1=10.0.0.1")
    slave = shutil.copytree(master, tmp_path / "slave")
    (slave / "broker.conf").write_text("brokerName=b\nbrokerId=1\nbrokerIP1=10.0.0.2")
    members = ["-g", "CG_part", "-c", "c1", "--json"]
    one = success("assign", master, *members)
    assert run("assign", slave, f"file://{master}", *members).stdout == one.stdout
    brokers = tmp_path / "brokers.toml"
    brokers.write_text(f'other = ["{slave}", "{master}"]')
    named = run("assign", "--brokers", brokers, *members)
    assert named.stdout == one.stdout.replace('"brokerName":"b"', '"brokerName":"other"')
    for wrong in ((), (master, "--brokers", brokers)):
        assert "or by --brokers" in refusal("assign", *wrong, *members)
    refused = run("assign", master, slave, "--dledger-self-id", "n0", *members)
    assert "for one store only" in refused.stderr

    (row,) = rows("routes", slave, master, "-t", "LivePlain")
    assert row["brokerAddrs"] == {"0": "10.0.0.1:10911", "1": "10.0.0.2:10911"}
    table = run("routes", master, "--all").stdout
    assert "LivePlain" in table
    assert "SCHEDULE_TOPIC_XXXX" in table


def test_copy_says_what_it_copied_and_left_out(golden_store: Golden, tmp_path: Path) -> None:
    shown = success(
        "copy", golden_store("basic"), tmp_path / "copy", "-t", "Topic-With_Under-score"
    )
    assert "left out: the queues of" in shown.stderr
    assert "files, " in shown.stderr
    assert "0 findings" in shown.stderr
    assert "exists already" in refusal("copy", golden_store("basic"), tmp_path / "copy")


def test_good_records_after_damage_are_exported_before_they_are_cut(
    copied: Golden, tmp_path: Path
) -> None:
    root = copied("crash2")
    refused = run("rebuild", root)
    assert refused.exit_code == 1
    assert "export --ignore-log-end --mode DROPMALFORMED" in refused.stderr
    way = ("--mode", "DROPMALFORMED", "--scan", "commitlog")
    kept = len(rows("dump", root, *way))
    assert len(rows("dump", root, *way, "--ignore-log-end")) > kept
    saved = tmp_path / "saved.jsonl"
    success("export", root, saved, *way, "--ignore-log-end")
    assert len(saved.read_text(encoding="utf-8").splitlines()) > kept
    success("rebuild", root, "--truncate")


@pytest.mark.parametrize("verb", ["stat", "topics", "brokers"])
def test_verbs_that_show_views_import_no_pandas(golden_store: Golden, verb: str) -> None:
    code = (
        "import sys\n"
        "from rmqstore.cli import main\n"
        "main(sys.argv[1:], standalone_mode=False)\n"
        "assert 'pandas' not in sys.modules\n"
    )
    command = [sys.executable, "-c", code, verb, str(golden_store("basic")), "--json"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def test_a_check_of_nothing_is_no_all_clear(golden_store: Golden) -> None:
    said = refusal("verify", golden_store("empty"))
    assert "nothing was checked; the log holds no record" in said
