"""A broker's properties file in the place of the folders, sizes and names that it tells."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

import rmqstore
from goldens import Golden
from rmqstore.cli import main
from rmqstore.cli.verbs import VERBS
from rmqstore.errors import NotAStoreError, OptionError, UnsupportedFeatureError
from rmqstore.storage.broker.config_files import BrokerConfig
from rmqstore.storage.broker.folders import find_store
from rmqstore.storage.broker.identity import read_identity
from rmqstore.storage.broker.store_config import read_conf, sizes_of
from rmqstore.storage.files.paths import BrokerSettings


def conf_of(folder: Path, **settings: object) -> Path:
    file = folder / "broker.conf"
    file.write_text("".join(f"{key} = {value}\n" for key, value in settings.items()))
    return file


@pytest.fixture
def split(copied: Golden, tmp_path: Path) -> Path:
    """Return the file of a broker whose log lies outside of its root, in two folders."""
    root = copied("live")
    (tmp_path / "ssd").mkdir()
    (root / "commitlog").rename(tmp_path / "ssd" / "log")
    return conf_of(
        tmp_path,
        storePathRootDir=root,
        storePathCommitLog=f"{tmp_path / 'ssd' / 'log'},{tmp_path / 'later'}",
        brokerName="the-broker",
        brokerIP1="10.1.2.3",
        listenPort="10999",
        mappedFileSizeCommitLog=1 << 20,
    )


def test_a_store_is_opened_by_the_file_of_its_broker_alone(
    golden_store: Golden, split: Path
) -> None:
    with rmqstore.open(conf=split) as store, rmqstore.open(golden_store("live")) as whole:
        assert store.broker_name == "the-broker"
        columns = ["topic", "queueId", "queueOffset", "body"]
        assert store.scan(columns=columns).read_all() == whole.scan(columns=columns).read_all()
        assert store.paths.root == split.parent / "live"
        (row,) = store.view("stores").read_all().to_pylist()
        assert row["brokerAddr"] == "10.1.2.3:10999"


def test_without_it_the_same_folder_is_not_a_store(split: Path) -> None:
    with pytest.raises(NotAStoreError):
        rmqstore.open(split.parent / "live")


def test_what_is_given_goes_before_the_file(golden_store: Golden, tmp_path: Path) -> None:
    conf = conf_of(
        tmp_path, storePathRootDir="/nowhere", storePathCommitLog="/nowhere/else", brokerName="b"
    )
    root = golden_store("live")
    with rmqstore.open(
        root, conf=conf, commitlogs=[str(root / "commitlog")], broker_name="mine"
    ) as store:
        assert store.broker_name == "mine"
        assert store.paths.root == root
        assert store.scan(columns=["body"]).read_all().num_rows > 0


def test_folders_in_the_root_of_the_file_lie_in_the_root_that_is_given(
    copied: Golden, tmp_path: Path
) -> None:
    root = copied("live")
    (root / "commitlog").rename(root / "log")
    conf = conf_of(tmp_path, storePathRootDir="/data/store", storePathCommitLog="/data/store/log")
    assert find_store(root, conf=conf).commitlogs == (root / "log",)


def test_the_usual_folder_of_the_log_need_not_be_there_beside_a_dledger_log(
    golden_store: Golden, tmp_path: Path
) -> None:
    root = golden_store("dledger")
    conf = conf_of(
        tmp_path, storePathRootDir=root, storePathCommitLog=root / "commitlog",
        enableDLegerCommitLog="true", dLegerSelfId="n0",
    )  # fmt: skip
    assert find_store(root, conf=conf) == find_store(root)
    conf = conf_of(tmp_path, storePathRootDir=root, enableDLegerCommitLog="true", dLegerSelfId="n7")
    with pytest.raises(OptionError, match="dledger_self_id=n7"):
        find_store(root, conf=conf)
    conf = conf_of(tmp_path, storePathRootDir=root, dLegerSelfId="n7")
    assert find_store(root, conf=conf) == find_store(root), "the node counts with the log only"


def test_settings_of_rocketmq_3_count_where_the_root_has_no_such_folder(
    copied: Golden, tmp_path: Path
) -> None:
    root = copied("live")
    elsewhere = shutil.copytree(root / "consumequeue", tmp_path / "queues")
    conf = conf_of(tmp_path, storePathRootDir=root, storePathConsumeQueue=elsewhere)
    assert find_store(root, conf=conf).consumequeue == root / "consumequeue"
    shutil.rmtree(root / "consumequeue")
    assert find_store(root, conf=conf).consumequeue == elsewhere


def test_the_sizes_of_a_new_store_are_those_of_the_file(tmp_path: Path) -> None:
    conf = conf_of(
        tmp_path, storePathRootDir=tmp_path / "new", mappedFileSizeCommitLog=1 << 16,
        mappedFileSizeConsumeQueue=4000, maxHashSlotNum=100, maxIndexNum=400,
    )  # fmt: skip
    with rmqstore.create(conf=conf) as writer:
        assert writer.config == sizes_of(read_conf(conf))
        writer.append(pa.table({"topic": ["T"], "body": [b"x"]}))
    (file,) = (tmp_path / "new" / "commitlog").iterdir()
    assert file.stat().st_size == 1 << 16
    with rmqstore.open(conf=conf, mode="a") as again:
        assert again.config.mapped_file_size_consume_queue == 4000


def test_a_new_store_is_not_made_where_the_log_lies_elsewhere(tmp_path: Path) -> None:
    conf = conf_of(tmp_path, storePathRootDir=tmp_path / "new", storePathCommitLog="/ssd/log")
    with pytest.raises(UnsupportedFeatureError, match="storePathCommitLog"):
        rmqstore.create(conf=conf)
    assert not (tmp_path / "new").exists()


def test_a_cluster_is_opened_by_the_files_of_its_brokers(
    golden_store: Golden, split: Path, tmp_path: Path
) -> None:
    (tmp_path / "b").mkdir()
    other = conf_of(tmp_path / "b", storePathRootDir=golden_store("basic"), brokerName="other")
    with rmqstore.open_cluster(conf=[split, other]) as cluster:
        assert sorted(cluster.stores) == ["other", "the-broker"]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("", "has no storePathRootDir: give the path of the store too"),
        ("brokerName=b", "has no storePathRootDir"),
        ('{"storePathRootDir": "/x"}', "is not the properties file of a broker"),
        ("storePathRootDir=\\u12", "as in every properties file of Java"),
    ],
    ids=["empty", "no root", "json", "escape"],
)
def test_a_file_that_cannot_be_used_is_an_error(tmp_path: Path, content: str, text: str) -> None:
    file = tmp_path / "broker.conf"
    file.write_text(content)
    with pytest.raises(OptionError, match=text) as caught:
        rmqstore.open(conf=file)
    assert str(file) in str(caught.value)


def test_no_file_a_missing_one_and_a_folder_are_errors(tmp_path: Path) -> None:
    files = {None: "name the folder", tmp_path / "none.conf": "no such file", tmp_path: "a folder"}
    for file, said in files.items():
        with pytest.raises(OptionError, match=said):
            rmqstore.open(conf=file)


def test_a_size_that_no_store_can_have_names_the_file(golden_store: Golden, tmp_path: Path) -> None:
    conf = conf_of(tmp_path, mappedFileSizeCommitLog="1G")
    with pytest.raises(OptionError, match=r"broker.conf: mappedFileSizeCommitLog '1G'"):
        rmqstore.create(tmp_path / "new", conf=conf)
    with rmqstore.open(golden_store("live"), conf=conf) as store:  # a reader needs no sizes
        assert store.topics()


def test_settings_that_were_read_stand_for_their_file(split: Path) -> None:
    settings = pickle.loads(pickle.dumps(read_conf(split)))
    split.unlink()
    assert isinstance(settings, BrokerSettings)
    paths = find_store(split.parent / "live", conf=settings)
    assert BrokerConfig(paths).broker_name() == "the-broker"
    assert read_identity(paths, list).address == "10.1.2.3:10999"


@pytest.mark.parametrize("verb", sorted({*VERBS} - {"follow", "kafka"}))  # of brokers
def test_every_verb_takes_the_file_and_the_folders(verb: str) -> None:
    flags = {flag for option in main.verb(verb).params for flag in option.opts}
    assert {"-c", "--conf"} <= flags  # assign has -c for clients
    if verb != "doctor":
        assert {"--commitlog", "--consumequeue", "--index", "--dledger-log"} <= flags
