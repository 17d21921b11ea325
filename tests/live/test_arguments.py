"""Addresses, options and arguments that cannot be served are refused by name, before any wait."""

from __future__ import annotations

import random
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import rmqstore
from command_line import refusal
from live.fake_cluster import FakeCluster, fill, one_queue
from rmqstore.cli import main
from rmqstore.errors import OptionError, UnsupportedFeatureError
from rmqstore.live.live_cluster import LiveCluster
from rmqstore.live.location import LiveLocation
from rmqstore.live.opening import open_live
from rmqstore.remoting import Address, Credentials
from store_builder import Store


@pytest.fixture(scope="module")
def fake() -> Iterator[FakeCluster]:
    store = fill(Store(), {("Orders", 0): 3, ("Orders", 1): 3, ("Users", 0): 1}, random.Random(1))
    with FakeCluster({"a": store}) as cluster:
        yield cluster


@pytest.fixture
def cluster(fake: FakeCluster) -> Iterator[LiveCluster]:
    with fake.open() as found:
        yield found


@pytest.mark.parametrize(
    ("uri", "found"),
    [
        ("rocketmq://a", "a:9876"), ("rocketmq://a:1", "a:1"), ("ROCKETMQ://a;b:1/", "a:9876;b:1"),
        ("rocketmq://[::1];[2001:db8::1]:7", "[::1]:9876;[2001:db8::1]:7"),
        ("rocketmq://10.0.0.1:9876; 10.0.0.2:9876", "10.0.0.1:9876;10.0.0.2:9876"),
    ],
)  # fmt: skip
def test_addresses_of_name_servers(uri: str, found: str) -> None:
    location = LiveLocation.parse(uri)
    assert str(location) == f"rocketmq://{found}"
    assert LiveLocation.parse(str(location)) == location
    assert all(isinstance(each, Address) for each in location.name_servers)


@pytest.mark.parametrize(
    "uri",
    [
        "rocketmq://", "rocketmq:///", "rocketmq:a", "rocketmq://a:0", "rocketmq://a:65536",
        "rocketmq://a:b", "rocketmq://a;;b", "rocketmq://a/Orders", "rocketmq://::1",
        "rocketmq://:9876", "rocketmq://[::1",
    ],
)  # fmt: skip
def test_addresses_that_are_none(uri: str) -> None:
    with pytest.raises(OptionError):
        rmqstore.open(uri)
    assert "HOST" in refusal("dump", uri)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"acess_key": "x"}, "unknown acess_key; .*access_key"),
        ({"region": "x"}, "unknown region"), ({"access_key": "x"}, "access_key needs secret_key"),
        ({"secret_key": "x"}, "need access_key"), ({"security_token": "x"}, "need access_key"),
        ({"timeout": "0"}, "timeout 0"), ({"timeout": "soon"}, "timeout"),
        ({"timeout": "inf"}, "timeout"), ({"timeout": "nan"}, "timeout"),
        ({"tls": "perhaps"}, "tls"), ({"tls_ca": "/x"}, "tls_ca needs tls=true"),
        ({"tls": "true", "tls_key": "/x"}, "tls_key needs tls_cert"),
        ({"tls": "true", "tls_any_certificate": "true", "tls_ca": "/x"}, "one of the two"),
        ({"tls": "true", "tls_ca": "/does/not/exist"}, "cannot be used"),
        ({"address_map": "172.17.0.2:10911"}, "address_map.*pairs such as"),
        ({"address_map": "172.17.0.2=localhost:10911"}, "address_map.*pairs such as"),
        ({"address_map": "a:1=b:1,a:1=c:1"}, "address_map.*stands for both"),
    ],
    ids=str,
)  # fmt: skip
def test_storage_options_that_are_refused(
    options: dict[str, str], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ROCKETMQ_SECRET_KEY", raising=False)
    with pytest.raises(OptionError, match=text) as caught:
        open_live("rocketmq://a", storage_options=options)
    assert "storage_options" in str(caught.value)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, (ssl.CERT_REQUIRED, True)),
        ({"tls_any_host": "true"}, (ssl.CERT_REQUIRED, False)),
        ({"tls_any_certificate": "true"}, (ssl.CERT_NONE, False)),
    ],
)
def test_certificates_are_checked_unless_that_is_refused(
    options: dict[str, str], expected: tuple[ssl.VerifyMode, bool]
) -> None:
    location = LiveLocation.parse("rocketmq://a", {"tls": "true", **options})
    context = location.endpoint(location.name_servers[0]).tls
    assert context is not None
    assert (context.verify_mode, context.check_hostname) == expected


def test_secrets_are_used_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCKETMQ_SECRET_KEY", "hidden")
    for options in ({}, {"secret_key": "given-hidden"}):
        location = LiveLocation.parse("rocketmq://a", {"access_key": "user", **options})
        found = location.endpoint(location.name_servers[0]).credentials
        assert found == Credentials("user", options.get("secret_key", "hidden"))
        assert "hidden" not in f"{location} {location!r} {open_live('rocketmq://a')!r} {found}"


def test_requests_to_all_servers_are_signed(fake: FakeCluster) -> None:
    options = {"access_key": "user", "secret_key": "s", "security_token": "t", "timeout": 2}
    before = [len(server.requests) for server in fake.servers]
    with open_live(fake.uri, storage_options=options) as cluster:
        assert cluster.count(subscribe="Users") == 1
    for server, known in zip(fake.servers, before, strict=True):
        asked = server.requests[known:]
        assert asked
        for request in asked:
            given = dict(request.fields)
            signature = given.pop("Signature")
            unsigned = {n: v for n, v in given.items() if n not in ("AccessKey", "SecurityToken")}
            signed = Credentials("user", "s", "t").signed(unsigned, request.body)
            assert signed["Signature"] == signature


ARGUMENTS: list[tuple[dict[str, Any], str]] = [
    ({"scan": "commitlog"}, "scan"), ({"msg_key": "k"}, "msg_key"),
    ({"msg_id": "0" * 32}, "msg_id"), ({"msg_tags": "A"}, "msg_tags"),
    ({"index_only": True}, "index_only"), ({"include_pending": True}, "include_pending"),
    ({"starting_physical_offset": 0}, "starting_physical_offset"),
    ({"ending_physical_offset": 10, "scan": "commitlog"}, "scan, ending_physical_offset"),
    ({"columns": "tagsCode"}, "column tagsCode"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "text"), ARGUMENTS, ids=str)
def test_arguments_that_only_files_can_answer(
    cluster: LiveCluster, given: dict[str, Any], text: str
) -> None:
    with pytest.raises(UnsupportedFeatureError) as caught:
        cluster.scan(**given)
    assert set(text.split(", ")) == set(str(caught.value).partition(":")[0].split(", "))
    assert "rmqstore follow" in str(caught.value)


def test_unknown_arguments_topics_and_queues_are_named_with_the_nearest(
    cluster: LiveCluster,
) -> None:
    with pytest.raises(OptionError, match=r"unknown argument subscrib.*subscribe"):
        cluster.scan(subscrib="Orders")
    with pytest.raises(OptionError, match=r"no topic Order in rocketmq://.*Orders"):
        cluster.count(subscribe="Order")
    with pytest.raises(OptionError, match=r"Orders has no queue \[5\].*\[0, 1\]"):
        cluster.count(assign={"Orders": [5]})
    with pytest.raises(OptionError, match="no topic Userz"):
        cluster.queue_ranges("Userz")


def test_topics_of_kinds_that_cannot_be_read_are_refused(fake: FakeCluster) -> None:
    with fake.open() as cluster:
        with pytest.raises(UnsupportedFeatureError, match="%LMQ%x is a light message queue"):
            cluster.count(subscribe="%LMQ%x")
        fake.brokers["a"].attributes = {"Users": {"cleanup.policy": "COMPACTION"}}
        with pytest.raises(UnsupportedFeatureError, match=r"Users is compacted.*fail_on_data_loss"):
            cluster.count(subscribe="Users,Orders")
        assert cluster.count(subscribe="Users", fail_on_data_loss=False) == 1
        fake.brokers["a"].attributes = {}
        fake.names.of_routes = {"topicQueueMappingByBroker": {"a": {"totalQueues": 3}}}
        with pytest.raises(UnsupportedFeatureError, match="Users is a static topic"):
            cluster.count(subscribe="Users")
        with fake.writer() as writer, pytest.raises(UnsupportedFeatureError, match="static topic"):
            writer.queues_of(["Users"])
        fake.names.of_routes = {}


def test_topics_that_may_not_be_read_are_left_out() -> None:
    with FakeCluster({"a": one_queue(3), "b": one_queue(4)}) as other, other.open() as cluster:
        other.names.topics["T"]["a"] = (1, 1, 2)
        assert cluster.count() == 4


def test_arguments_of_files_are_refused_for_running_brokers(fake: FakeCluster) -> None:
    for given in ({"broker_name": "b"}, {"ignore_log_end": True}, {"conf": "broker.conf"}):
        with pytest.raises(OptionError, match=next(iter(given))):
            rmqstore.open(fake.uri, **given)


def test_the_verbs_of_messages_read_running_brokers(fake: FakeCluster, tmp_path: Path) -> None:
    def run(*words: str, exit_code: int = 0) -> str:
        done = CliRunner().invoke(main, [*words])
        assert done.exit_code == exit_code, done.output
        return done.output

    shown = run("dump", fake.uri, "-t", "Orders", "--columns", "topic,queueOffset")
    assert shown.count('"topic":"Orders"') == 6
    assert "Orders" in run("dump", fake.uri, "-t", "Order", exit_code=2)
    run("export", fake.uri, str(tmp_path / "all.parquet"))
    assert pq.read_table(tmp_path / "all.parquet").num_rows == 7
    assert "rocketmq" in run("describe", fake.uri, exit_code=2)
