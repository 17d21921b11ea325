"""Read options: text in, checked values out, and refusals that name the option. No session."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from pyspark_rmqstore.options import (
    ReadOptions,
    StreamOptions,
    parse_read_options,
    parse_stream_options,
)
from pyspark_rmqstore.schema import default_schema
from pyspark_rmqstore.store_options import STORE_PATHS
from pyspark_rmqstore.triggers import TriggerLimits
from pyspark_rmqstore.write_options import parse_write_options
from rmqstore.errors import OptionError, RmqStoreError, UnsupportedFeatureError
from rmqstore.query.arguments import FolderArguments
from rmqstore.query.options import CONTRADICTIONS, LOOKUP_OPTIONS, Contradiction
from rmqstore.query.selection import EARLIEST, LATEST
from rmqstore.read.split import Limits

STORE = "/data/store"


def parse(**given: str) -> ReadOptions:
    return parse_read_options({"path": STORE, **given})


def paths(value: str) -> list[str]:
    return [ref.path for ref in parse_read_options({"path": value}).source.stores]


@pytest.fixture
def brokers(tmp_path: Path) -> Path:
    """Return a folder with the folders broker-a, broker-b, broker-c, other, and `with space`."""
    for name in ("broker-c", "other", "broker-a", "with space", "broker-b"):
        (tmp_path / name).mkdir()
    return tmp_path


def test_defaults_are_those_of_the_readme() -> None:
    options = parse()
    (store,) = options.source.stores
    assert (store.path, store.broker_name, store.ignore_log_end) == (STORE, None, False)
    assert not any(store.folders.values())
    columns, request, selection = options.columns, options.request, options.request.selection
    assert (columns.named, request.corrupt_column) == (None, "_corrupt_record")
    assert (request.tags, request.by, request.mode) == (None, "queue", "FAILFAST")
    assert (request.check_crc, request.fail_on_data_loss) == (True, True)
    assert options.limits == Limits(128 << 20, None, None)
    assert [selection.subscribe, selection.subscribe_pattern, selection.assign] == [None] * 3
    assert (selection.start.default, selection.end.default) == (EARLIEST, LATEST)
    assert (selection.include_system_topics, selection.timestamp_strategy) == (False, "latest")


def folders(read: ReadOptions) -> FolderArguments:
    return read.source.stores[0].folders


# Each documented option with a value of its own, and where that value is to arrive.
GIVEN = {
    "subscribe": ("T", lambda read: read.request.selection.subscribe == ("T",)),
    "subscribePattern": ("T.*", lambda read: read.request.selection.subscribe_pattern == "T.*"),
    "assign": ('{"T":[1]}', lambda read: read.request.selection.assign == {"T": frozenset({1})}),
    "includeSystemTopics": ("true", lambda read: read.request.selection.include_system_topics),
    "startingOffsets": (
        '{"T":{"0":5}}', lambda read: read.request.selection.start.offsets == {(None, "T", 0): 5},
    ),
    "endingOffsets": (
        '{"T":{"0":6}}', lambda read: read.request.selection.end.offsets == {(None, "T", 0): 6},
    ),
    "startingTimestamp": ("ms:7", lambda read: read.request.selection.start.timestamp == 7),
    "endingTimestamp": (
        "1970-01-01T00:00:01", lambda read: read.request.selection.end.timestamp == 1000,
    ),
    "startingOffsetsByTimestamp": (
        '{"T":{"b":{"0":"ms:8"}}}',
        lambda read: read.request.selection.start.by_timestamp == {("b", "T", 0): 8},
    ),
    "endingOffsetsByTimestamp": (
        '{"T":{"0":"ms:9"}}',
        lambda read: read.request.selection.end.by_timestamp == {(None, "T", 0): 9},
    ),
    "startingOffsetsByTimestampStrategy": (
        "ERROR", lambda read: read.request.selection.timestamp_strategy == "error",
    ),
    "tags": ("A || B", lambda read: read.request.tags == {"A", "B"}),
    "filter": ("a = 'x'", lambda read: read.request.filter is not None),
    "where": ("queueId = 0", lambda read: read.request.where is not None),
    "columns": (" body , topic", lambda read: read.columns.named == ("body", "topic")),
    "scan": ("CommitLog", lambda read: read.request.by == "commitlog"),
    "minPartitions": ("3", lambda read: read.limits.min_partitions == 3),
    "maxRecordsPerPartition": ("4", lambda read: read.limits.max_records == 4),
    "maxBytesPerPartition": ("5k", lambda read: read.limits.max_bytes == 5120),
    "mode": ("permissive", lambda read: read.request.mode == "PERMISSIVE"),
    "columnNameOfCorruptRecord": ("Broken", lambda read: read.request.corrupt_column == "Broken"),
    "checkCRC": ("False", lambda read: not read.request.check_crc),
    "failOnDataLoss": ("false", lambda read: not read.request.fail_on_data_loss),
    "storePathCommitLog": (
        "/x/a, /x/b", lambda read: folders(read)["commitlogs"] == ("/x/a", "/x/b"),
    ),
    "storePathConsumeQueue": ("/x/q", lambda read: folders(read)["consumequeue"] == "/x/q"),
    "storePathIndex": ("/x/i", lambda read: folders(read)["index"] == "/x/i"),
    "storePathDLedgerCommitLog": ("/x/d", lambda read: folders(read)["dledger_logs"] == ("/x/d",)),
    "dLegerSelfId": ("n1", lambda read: folders(read)["dledger_self_id"] == "n1"),
    "tiered": ("/x/t", lambda read: read.source.stores[0].tiered == "/x/t"),
    "ignoreLogEnd": ("true", lambda read: read.source.stores[0].ignore_log_end),
    "brokerName": ("b", lambda read: read.source.stores[0].broker_name == "b"),
}  # fmt: skip


@pytest.mark.parametrize("spell", [str, str.lower, str.upper], ids=["documented", "lower", "upper"])
@pytest.mark.parametrize("name", GIVEN)
def test_an_option_arrives_however_its_key_is_spelled(name: str, spell: type[str]) -> None:
    value, arrived = GIVEN[name]
    assert not arrived(parse())
    assert arrived(parse(**{spell(name): value}))


@pytest.mark.parametrize(
    "name", [option.name for option in LOOKUP_OPTIONS if "stream" not in option.scope]
)
def test_an_option_that_a_stream_does_not_take_is_refused_there(name: str) -> None:
    with pytest.raises(UnsupportedFeatureError, match=f"{name}: a stream follows queues"):
        parse_stream_options({"path": STORE, name: "1"})


@pytest.mark.parametrize(
    "name", ["subscribes", "offsets", "kafka.bootstrap.servers", "min-partitions", "body"]
)
def test_an_unknown_option_is_refused_with_those_known(name: str) -> None:
    with pytest.raises(OptionError, match=re.escape(repr(name))) as caught:
        parse(**{name: "1"})
    assert all(known in str(caught.value) for known in GIVEN)


@pytest.mark.parametrize(
    "name", ["path", "queryName", "checkpointLocation", "recursiveFileLookup", "PATH", "queryname"]
)
def test_keys_of_spark_are_never_unknown(name: str) -> None:
    assert parse_read_options({"path": STORE, name: STORE}).source.stores[0].path == STORE


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("scan", "queues"), ("mode", "FAILFASTER"),
        ("startingOffsetsByTimestampStrategy", "earliest"), ("checkCRC", "yes"),
        ("failOnDataLoss", "1"), ("includeSystemTopics", ""), ("ignoreLogEnd", "on"),
        ("minPartitions", "0"), ("minPartitions", "-1"), ("minPartitions", "2.0"),
        ("minPartitions", "many"), ("minPartitions", "²"), ("maxRecordsPerPartition", "0"),
        ("maxRecordsPerPartition", "1k"),
        ("startingOffsets", '{"A":{"0":1.5}}'), ("endingTimestamp", "2026-13-01"),
        ("msgKey", "[1]"),
    ],
)  # fmt: skip
def test_a_value_out_of_its_domain_is_refused_with_the_name_of_its_option(
    name: str, value: str
) -> None:
    with pytest.raises(OptionError, match=name):
        parse(**{name.lower(): value})


@pytest.mark.parametrize(
    ("value", "n_bytes"),
    [
        ("1", 1), ("65536", 65536), ("128m", 128 << 20), ("128M", 128 << 20), ("128 mb", 128 << 20),
        ("128MiB", 128 << 20), ("64k", 64 << 10), ("2g", 2 << 30), ("1t", 1 << 40), (" 10b ", 10),
    ],
)  # fmt: skip
def test_sizes_are_bytes_or_have_a_unit(value: str, n_bytes: int) -> None:
    assert parse(maxBytesPerPartition=value).limits.max_bytes == n_bytes


@pytest.mark.parametrize("value", ["", "0", "0m", "-1", "1.5m", "m", "12x", "1 2", "128mm", "1e6"])
def test_what_is_not_a_size_is_refused(value: str) -> None:
    with pytest.raises(OptionError, match="maxBytesPerPartition"):
        parse(maxBytesPerPartition=value)


@pytest.mark.parametrize(
    "given", [{"includePending": "false"}, {"includepending": "FALSE"}, {"view": "messages"}]
)
def test_asking_for_the_default_is_not_an_error(given: dict[str, str]) -> None:
    assert parse(**given) == parse()


@pytest.mark.parametrize("given", [{}, {"path": ""}, {"paths": "[]"}])
def test_a_read_without_a_path_is_refused_and_a_list_keeps_its_order(given: dict[str, str]) -> None:
    with pytest.raises(OptionError, match="path"):
        parse_read_options(given)
    options = parse_read_options({**given, "paths": json.dumps(["/data/b", "/data/a"])})
    assert [ref.path for ref in options.source.stores] == ["/data/b", "/data/a"]


@pytest.mark.parametrize("again", ["broker-a", "broker-a/", "*-a", "broker-?"])
@pytest.mark.parametrize("prefix", ["", "file:"])
def test_a_store_named_twice_is_read_once(brokers: Path, again: str, prefix: str) -> None:
    paths = [f"{brokers}/broker-a", f"{prefix}{brokers}/{again}"]
    store, *others = parse_read_options({"paths": json.dumps(paths)}).source.stores
    assert store.path == paths[0]
    assert store.path not in [other.path for other in others]


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("broker-*", ["broker-a", "broker-b", "broker-c"]),
        ("broker-[ac]", ["broker-a", "broker-c"]), ("?ther", ["other"]), ("broker-a", ["broker-a"]),
        ("with*", ["with space"]), ("not-there", ["not-there"]),
    ],
)  # fmt: skip
def test_globs_are_expanded_to_sorted_absolute_paths(
    brokers: Path, monkeypatch: pytest.MonkeyPatch, pattern: str, names: list[str]
) -> None:
    expected = [f"{brokers}/{name}" for name in names]
    assert paths(f"{brokers}/{pattern}") == expected
    monkeypatch.chdir(brokers)
    assert paths(pattern) == expected
    assert paths(f"./{pattern}") == expected
    monkeypatch.setenv("HOME", str(brokers))
    assert paths(f"~/{pattern}") == expected
    with pytest.raises(OptionError, match=re.escape(f"{brokers}/nothing-*")):
        paths(f"{brokers}/nothing-*")


@pytest.mark.parametrize(
    ("uri", "names"),
    [
        ("file:{}/broker-a", ["broker-a"]), ("file://{}/broker-a", ["broker-a"]),
        ("FILE:{}/broker-a", ["broker-a"]), ("file:{}/with%20space", ["with space"]),
        ("file:{}/broker-[ab]", ["broker-a", "broker-b"]),
        ("file:{}/broker-?", ["broker-a", "broker-b", "broker-c"]), ("file://{}/*-c", ["broker-c"]),
        ("file:{}/a#b", ["a#b"]),
    ],
)  # fmt: skip
def test_file_uris_are_local_paths(brokers: Path, uri: str, names: list[str]) -> None:
    assert paths(uri.format(brokers)) == [f"{brokers}/{name}" for name in names]


@pytest.mark.parametrize(
    ("uri", "text"),
    [
        ("file:store", "file:store.*only local files"), ("dbfs:/store", "dbfs:/.*only local files"),
        ("https://host/store", "https:"), ("dbfs://host/store", "dbfs:"), ("ftp://host/x", "ftp:"),
        ("file://data/store", "file://data/store: a file of another computer"),
    ],
)  # fmt: skip
def test_uris_that_name_no_local_path_are_refused(uri: str, text: str) -> None:
    with pytest.raises(UnsupportedFeatureError, match=text):
        paths(uri)


def test_the_address_of_a_server_is_no_path() -> None:
    with pytest.raises(OptionError, match="are read as rocketmq://ns1:9876"):
        paths("ns1:9876")


@pytest.mark.parametrize(
    ("path", "table", "names"),
    [
        pytest.param("{}/broker-*", {"{}/broker-a": "first", "{}/broker-c/": "third"},
                     ["first", None, "third"], id="path"),
        pytest.param("other", {"./other": "o"}, ["o"], id="relative path"),
        pytest.param("file:{}/other", {"file:{}/other": "o"}, ["o"], id="uri as the path is"),
    ],
)  # fmt: skip
def test_broker_names_are_given_by(
    brokers: Path, monkeypatch: pytest.MonkeyPatch, path: str, table: dict[str, str], names: object
) -> None:
    monkeypatch.chdir(brokers)
    by_path = json.dumps({key.format(brokers): name for key, name in table.items()})
    options = parse_read_options({"path": path.format(brokers), "brokerName": by_path})
    assert [ref.broker_name for ref in options.source.stores] == names


@pytest.mark.parametrize(
    ("name", "message"),
    [
        pytest.param("b", "names 3 stores", id="one name for three"),
        pytest.param('{"/elsewhere":"b"}', "/elsewhere", id="a stranger"),
        pytest.param('{"/elsewhere":', "JSON", id="no JSON"),
    ],
)
def test_broker_names_that_do_not_fit_the_stores_are_refused(
    brokers: Path, name: str, message: str
) -> None:
    with pytest.raises(OptionError, match=f"brokerName.*{message}"):
        parse_read_options({"path": f"{brokers}/broker-*", "brokerName": name})


@pytest.mark.parametrize("name", sorted(STORE_PATHS))
def test_folders_that_lie_apart_fit_one_store_only(name: str) -> None:
    with pytest.raises(OptionError, match=name):
        parse_read_options({"paths": '["/data/a","/data/b"]', name: "/x"})


@pytest.mark.parametrize(
    ("options", "named"),
    [
        pytest.param({"paths": "oops"}, "paths", id="paths that are no JSON"),
        pytest.param({"paths": "[1]"}, "paths", id="paths that are no text"),
        pytest.param({"columnNameOfCorruptRecord": "body"}, "columnNameOfCorruptRecord",
                     id="a column's own name"),
        pytest.param({"brokerName": '{"/s":null}'}, "brokerName", id="no name"),
        pytest.param({"scan": "commitlog", "startingOffsetsByTimestampStrategy": "error"},
                     "startingOffsetsByTimestampStrategy",
                     id="a strategy for queues in a scan by log"),
    ],
)  # fmt: skip
def test_a_slip_is_refused_by_the_name_of_its_option(options: dict[str, str], named: str) -> None:
    with pytest.raises(OptionError, match=named):
        parse_read_options({"path": "/s", **options})


def test_the_corrupt_column_may_be_among_the_columns() -> None:
    parsed = parse_read_options(
        {"path": "/s", "mode": "PERMISSIVE", "columns": "body,_corrupt_record,topic"}
    )
    assert default_schema(parsed.columns).fieldNames() == ["body", "_corrupt_record", "topic"]


def parse_stream(**given: str) -> StreamOptions:
    return parse_stream_options({"path": STORE, **given})


def test_a_stream_starts_at_the_latest_messages_and_takes_all_there_is() -> None:
    options = parse_stream()
    assert options.read.request.selection.start.default == LATEST
    assert options.read.request.selection.timestamp_strategy == "error"
    assert options.triggers == TriggerLimits(None, None, 900)


def test_limits_of_triggers_are_parsed() -> None:
    options = parse_stream(
        maxOffsetsPerTrigger="100", minoffsetspertrigger="10", maxBytesPerTrigger="8m",
        maxTriggerDelay="90s", startingOffsets="earliest",
    )  # fmt: skip
    assert options.triggers == TriggerLimits(100, 10, 90, 8 << 20)
    assert options.read.request.selection.start.default == EARLIEST


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("15m", 900), ("90s", 90), ("500ms", 0.5), ("250", 0.25), ("2 h", 7200), ("1d", 86400),
        ("3min", 180),
    ],
)  # fmt: skip
def test_delays_are_times_with_a_unit(value: str, seconds: float) -> None:
    assert parse_stream(maxTriggerDelay=value).triggers.max_delay_seconds == seconds


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"endingOffsets": '{"T":{"0":5}}'}, "endingOffsets"),
        ({"endingTimestamp": "0"}, "endingOffsets"),
        ({"endingOffsetsByTimestamp": '{"T":{"0":0}}'}, "endingOffsets"),
        ({"scan": "commitlog"}, "scan=commitlog"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger"),
        ({"maxTriggerDelay": "soon"}, "maxTriggerDelay"),
        ({"maxBytesPerTrigger": "-1"}, "maxBytesPerTrigger"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "minOffsetsPerTrigger"),
        ({"consumerGroup": "g"}, "for view assignments, deadLetters, consumed only"),
    ],
)  # fmt: skip
def test_what_a_stream_cannot_have_is_refused_by_name(given: dict[str, str], named: str) -> None:
    with pytest.raises(RmqStoreError, match=re.escape(named)):
        parse_stream(**given)


@pytest.mark.parametrize(
    "name", ["maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"]
)
def test_options_of_streams_are_refused_in_a_batch(name: str) -> None:
    with pytest.raises(OptionError, match=rf"{name}: for streams only"):
        parse(**{name: "9"})


def test_the_file_of_a_broker_names_the_store_on_the_driver(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("storePathRootDir=/data/a\nbrokerName=b\nmappedFileSizeCommitLog=65536\n")
    (ref,) = parse_read_options({"conf": str(conf)}).source.stores
    assert ref.path == "/data/a"
    assert ref.folders["conf"].values["brokerName"] == "b"
    (ref,) = parse_read_options({"conf": str(conf), "path": "/data/copy"}).source.stores
    assert ref.path == "/data/copy"
    with pytest.raises(OptionError, match="conf can be given for one store only"):
        parse_read_options({"conf": str(conf), "paths": '["/data/a", "/data/b"]'})
    with pytest.raises(OptionError, match="there is no such file"):
        parse_read_options({"conf": str(tmp_path / "none")})
    write = parse_write_options({"conf": str(conf), "mappedFileSizeConsumeQueue": "4000"})
    assert write.path == "/data/a"
    sizes = write.config
    assert (sizes.mapped_file_size_commit_log, sizes.mapped_file_size_consume_queue) == (
        65536,
        4000,
    )


def test_the_time_zone_is_that_of_times_which_name_none() -> None:
    given = {"path": "/s", "startingTimestamp": "2025-11-21T08:00:00"}
    in_utc = parse_read_options(given)
    in_shanghai = parse_read_options({**given, "timezone": "Asia/Shanghai"})
    assert in_utc.request.selection.start.timestamp is not None
    assert (
        in_shanghai.request.selection.start.timestamp
        == in_utc.request.selection.start.timestamp - 8 * 3_600_000
    )
    with pytest.raises(OptionError, match="timeZone 'Mars'"):
        parse_read_options({**given, "timeZone": "Mars"})


def test_a_column_for_damaged_records_may_not_have_the_name_of_one_of_pending_messages() -> None:
    assert parse(columnNameOfCorruptRecord="pending").request.corrupt_column == "pending"
    with pytest.raises(OptionError, match="columnNameOfCorruptRecord 'pending'"):
        parse(columnNameOfCorruptRecord="pending", includePending="true")


def test_an_empty_host_is_not_taken_for_the_default() -> None:
    assert parse_write_options({"path": STORE}).spec.store_host == "127.0.0.1:10911"
    assert parse_write_options({"path": STORE, "storeHost": ""}).spec.store_host == ""


_TEXTS = {
    "msgKey": "k", "msgId": "7F000001", "msgTags": "t", "indexOnly": "true",
    "includeHeaders": "true", "maxRecordsPerPartition": "5",
}  # fmt: skip


@pytest.mark.parametrize(
    "rule", CONTRADICTIONS, ids=lambda rule: "+".join((*sorted(rule.options), *sorted(rule.scope)))
)
def test_options_that_do_not_go_together_are_refused(rule: Contradiction) -> None:
    options = {"path": "/tmp"}
    options |= {name: _TEXTS.get(name, str(value)) for name, value in rule.options.items()}
    parse = parse_read_options if "batch" in rule.scope else parse_stream_options
    with pytest.raises(rule.error, match=re.escape(rule.text)):
        parse(options)
    for name, value in rule.unless.items():
        parse({**options, name: _TEXTS.get(name, str(value))})
