"""The reads that ``recorder.py`` records: which stores, which options and values, which ways.

Everything follows from the tables here and from the rows beside the golden stores, nothing from
what the code under test reads. Texts are templates: ``$topic`` and the like are facts of a store.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import chain, combinations
from pathlib import Path
from string import Template
from typing import Final, NamedTuple

import goldens
from rmqstore.query.arguments import FolderArguments, ScanArguments
from rmqstore.query.options import ALL_READ_OPTIONS, OPTION_OF_ARGUMENT

Options = dict[str, str]

# Ways to read. Of streams: trigger by trigger, by another reader for the second trigger as after a
# restart, and under Trigger.AvailableNow.
BATCH, FILTERS = "batch", "filters"
STREAM, RESTART, AVAILABLE_NOW = "stream", "restart", "available-now"
SCAN, COUNT, CALL = IN_PYTHON = ("scan", "count", "call")


class Values(NamedTuple):
    """Values of an option; every store has a case with the first one."""

    good: tuple[str, ...]
    bad: tuple[str, ...] = ()  # whose errors matter


_MAYBE = ("maybe",)
_VIEWS = (
    "queues", "topics", "commitlog", "consumequeue", "index", "groups", "epochs",
    "stores", "routes", "assignments", "files", "deadLetters", "traces", "consumed", "messages",
)  # fmt: skip
_NAMED = '{"$topic":{"$queue":%s}}'

VALUES: Final[dict[str, Values]] = {
    "brokers": Values(('{"broker-x":"$store"}',), ('{"broker-x":7}', "$beside/nowhere.json")),
    "storageOptions": Values(("{}", '{"region":"eu-west-1"}'), ("no json", '{"secret":"1"}')),
    "subscribe": Values(("$topic", "$topic,$other"), ("$topic,", "Nowhere", "$prefix*")),
    "subscribePattern": Values(("$prefix.*", ".*"), ("$topic(", "Nowhere.*")),
    "assign": Values(
        ('{"$topic":[$queue]}',), ('{"$topic":[99]}', '{"$topic":1}', '{"Nowhere":[0]}')
    ),
    "includeSystemTopics": Values(("true", "false"), _MAYBE),
    "startingOffsets": Values(
        (_NAMED % "$middle", "earliest", "latest", "group:$group", _NAMED % "$beyond",
         _NAMED % "-2", _NAMED % "-1"),
        (_NAMED % "-3", "begin"),
    ),
    "endingOffsets": Values(
        (_NAMED % "$middle", "latest", "group:$group", _NAMED % "$beyond"), ("earliest", "[]")
    ),
    "startingTimestamp": Values(("$time", "$clock", "$beyond_time"), ("20231114", "one day")),
    "endingTimestamp": Values(("$late", "$clock", "ms:1"), ("2026-13-01", "1")),
    "startingOffsetsByTimestamp": Values((_NAMED % "$time", _NAMED % "$beyond_time"), ("5",)),
    "endingOffsetsByTimestamp": Values((_NAMED % "$late", _NAMED % "$early"), ("5",)),
    "startingOffsetsByTimestampStrategy": Values(("error", "latest"), ("earliest",)),
    "tags": Values(("$tag", "$tag || $tag2", "*"), ("||",)),
    "columns": Values(
        ("queueOffset,body", "kafka", "topic,queueId,queueOffset,tagsCode,offsetMsgId",
         "brokerName"),
        ("nothing", "body,body"),
    ),
    "includeHeaders": Values(("true",), _MAYBE),
    "scan": Values(("commitlog", "queue"), ("queues",)),
    "minPartitions": Values(("3", "9"), ("0",)),
    "maxRecordsPerPartition": Values(("$records", "$few_records"), ("1k",)),
    "maxBytesPerPartition": Values(("$bytes", "$few_bytes", "1g"), ("1.5m",)),
    "mode": Values(("DROPMALFORMED", "PERMISSIVE", "failfast"), ("FAILFASTER",)),
    "columnNameOfCorruptRecord": Values(("broken",), ("body", "")),
    "checkCRC": Values(("false", "true"), ("yes",)),
    "failOnDataLoss": Values(("false", "true"), ("1",)),
    "brokerName": Values(("named", '{"$store":"named"}'), ('{"x"', '{"$folder/other":"x"}')),
    "storePathCommitLog": Values(("$store/commitlog",), ("$store/nowhere",)),
    "storePathConsumeQueue": Values(("$store/consumequeue",), ("$store/nowhere",)),
    "storePathIndex": Values(("$store/index",), ("$store/nowhere",)),
    "storePathDLedgerCommitLog": Values(("$store/dledger-n0/data",), ("$store/nowhere",)),
    "dLegerSelfId": Values(("n0",), ("n9",)),
    "tiered": Values(("$store/tieredstore",), ("$store/nowhere",)),
    "conf": Values(("$beside/broker.conf",), ("$beside/nowhere.conf",)),
    "ignoreLogEnd": Values(("true", "false"), ("on",)),
    "timeZone": Values(("Asia/Shanghai", "+08:00"), ("Mars",)),
    "view": Values(_VIEWS, ("nothing",)),
    "msgKey": Values(("$key", '["$key","$key2"]', "no-such-key"), ('["$key"', "")),
    "msgId": Values(("$id", "$offset_id", '["$id","$offset_id"]'), ("[1]",)),
    "msgTags": Values(("$tag", '["$tag","$tag2"]'), ("[1]",)),
    "indexOnly": Values(("true", "false"), _MAYBE),
    "filter": Values(("TAGS = '$tag'", "TAGS IS NOT NULL"), ("queueOffset > 1", "a = ")),
    "includePending": Values(("true", "false"), _MAYBE),
    "maxOffsetsPerTrigger": Values(("$records", "1"), ("0",)),
    "minOffsetsPerTrigger": Values(("$beyond", "1"), ("x",)),
    "maxTriggerDelay": Values(("1h", "0ms"), ("soon",)),
    "maxBytesPerTrigger": Values(("$bytes", "1"), ("0m",)),
    "consumerGroup": Values(("$group", "CG_unknown")),
    "clients": Values(("c1,c2", '["c1","c2","c3"]'), ("",)),
    "strategy": Values(
        ("AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH", "MACHINE_ROOM", "MACHINE_ROOM_NEARBY"),
        ("BEST",),
    ),
    "rooms": Values(("r1",), ("",)),
}  # fmt: skip

# Arguments of scans in Python that no option stands for; all but texts are JSON.
OF_PYTHON: Final[dict[str, Values]] = {
    "where": Values(
        ("topic = '$topic' AND queueOffset >= $middle", "queueId = $queue",
         "commitLogOffset > $place", "storeTimestamp >= $time AND storeTimestamp < $late",
         "tags = '$tag' OR tags IS NULL", "keys = '$key'", "msgId IN ('$id', 'x')",
         "topic LIKE '$prefix%' AND NOT queueId IN (1, 2)", "brokerName = '$name'"),
        ("nothing = 1", "body > 1"),
    ),
    "verbatim": Values(("true",)),
    "limit": Values(("3", "100000"), ("0",)),
    "last": Values(("2", "$records"), ("0",)),
    "starting_physical_offset": Values(("$place", "0"), ("-1",)),
    "ending_physical_offset": Values(("$place",), ("-1",)),
    "progress": Values(("true",)),
}  # fmt: skip

# Options that need others to mean something. Each has cases with these and cases without.
COMPANIONS: Final[dict[str, Options]] = {
    "includeHeaders": {"columns": "kafka"},
    "startingOffsetsByTimestampStrategy": {"startingTimestamp": "$beyond_time"},
    "columnNameOfCorruptRecord": {"mode": "PERMISSIVE"},
    "timeZone": {"startingTimestamp": "$clock"},
    "indexOnly": {"msgKey": "$key"},
    "maxTriggerDelay": {"minOffsetsPerTrigger": "$beyond"},
    "consumerGroup": {"view": "consumed"},
    "clients": {"view": "assignments", "consumerGroup": "$group"},
    "strategy": {"view": "assignments", "consumerGroup": "$group", "clients": "c1,c2"},
    "rooms": {
        "view": "assignments", "consumerGroup": "$group", "clients": "c1,c2",
        "strategy": "MACHINE_ROOM",
    },
}  # fmt: skip

# Filters that Spark pushes: class, column and value.
PUSHED: Final[dict[str, tuple[str, str, str]]] = {
    "topic": ("EqualTo", "topic", "$topic"),
    "topics": ("In", "topic", '["$topic","$other"]'),
    "prefix": ("StringStartsWith", "topic", "$prefix"),
    "queue": ("EqualTo", "queueId", "$queue"),
    "from": ("GreaterThanOrEqual", "queueOffset", "$middle"),
    "until": ("LessThan", "queueOffset", "$middle"),
    "behind": ("GreaterThan", "commitLogOffset", "$place"),
    "ahead": ("LessThanOrEqual", "commitLogOffset", "$place"),
    "since": ("GreaterThanOrEqual", "storeTimestamp", "$time"),
    "before": ("LessThan", "storeTimestamp", "$late"),
    "tag": ("EqualTo", "tags", "$tag"),
    "tagged": ("IsNotNull", "tags", ""),
    "key": ("EqualTo", "keys", "$key"),
    "id": ("EqualNullSafe", "msgId", "$id"),
    "ids": ("In", "msgId", '["$id","x"]'),
    "broker": ("EqualTo", "brokerName", "$name"),
    "other broker": ("EqualTo", "brokerName", "other"),
    "body": ("StringContains", "body", "x"),
}
WITH_FILTERS: Final[tuple[Options, ...]] = (
    {"scan": "commitlog"}, {"subscribe": "$topic"}, {"minPartitions": "3"},
    {"maxBytesPerPartition": "$few_bytes"}, {"brokerName": "named"}, {"msgKey": "$key"},
    {"msgTags": "$tag"}, {"columns": "kafka"}, {"mode": "PERMISSIVE"},
    {"tags": "$tag"}, {"startingTimestamp": "$time"}, {"includePending": "true"},
    {"includeSystemTopics": "true"}, {"scan": "commitlog", "minPartitions": "3"},
)  # fmt: skip

# Calls of an opened store, other than scans: the method, and its arguments as JSON.
CALLS: Final[tuple[tuple[str, str], ...]] = (
    ("query", '{"topic":"$topic","key":"$key"}'),
    ("query", '{"topic":"$topic","key":"$id","limit":1}'),
    ("query", '{"topic":"$topic","tags":"$tag","begin":$time,"end":$late}'),
    ("query", '{"topic":"$topic","key":"$key2","scan_uncovered":true}'),
    ("query", '{"topic":"$topic"}'),
    ("query", '{"topic":"Nowhere","key":"$key"}'),
    ("topics", "{}"),
    ("queues", '{"topic":"$topic"}'),
    ("offsets_at", '{"topic":"$topic","timestamp":$time}'),
    ("offsets_at", '{"topic":"$topic","timestamp":$late,"boundary":"upper"}'),
    ("get", '{"place":$place}'),
    ("get", '{"place":"$offset_id"}'),
)

# Arguments of open, beside the folders of a store.
_OF_OPEN = {"broker_name", "tiered", "ignore_log_end", "brokers", "storage_options"}
# What only says where a store lies, or how its bytes are taken, has cases with fewer stores.
_INERT = frozenset({
    "storageOptions", "checkCRC", "timeZone", "storePathCommitLog", "storePathConsumeQueue",
    "storePathIndex", "storePathDLedgerCommitLog", "dLegerSelfId", "conf",
    "columnNameOfCorruptRecord",
})  # fmt: skip
# Options that other stores refuse, with the beginning of the names of those that take them.
_ONLY_FOR = {
    "storePathDLedgerCommitLog": "dledger", "dLegerSelfId": "dledger", "tiered": "tiered",
}  # fmt: skip
# Places that take long, or differ from another one in little more than the release that wrote them:
# about half of their cases is left out, but for each option in a batch.
_THINNED = frozenset({
    "v55-basic", "v55-edges", "v55-expired", "v55-preblank", "v55-lmq", "v55-crash2", "v55-crash4",
    "v55-tiered", "v55-tiered+local", "v55-tiered+alone", "v55-rocksdb-cq", "v55-rocksdb-lmq",
    "basic+flipped", "compacted", "crash3", "crash4", "crash5", "dledger-crash2",
    "dledger-crash2+kept", "dledger-crash3", "edges+lost-log", "folder",
})  # fmt: skip
_DIVIDING = ("minPartitions", "maxRecordsPerPartition", "maxBytesPerPartition")
_LIMITING = ("maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger")
_FROM_FIRST = {"startingOffsets": "earliest"}
# Starts of a stream; without any it starts at the end, and reads nothing.
_STARTS = ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")


class Place(NamedTuple):
    """One store or several that are read as one.

    Attributes:
        golden: the stores that are unpacked; the first one gives the facts.
        base: options of every case that does not give others, as templates.
        change: what is done to the first store, given its root.
    """

    golden: tuple[str, ...]
    base: Options
    change: Callable[[Path], object] = lambda _: None


class Case(NamedTuple):
    place: str
    way: str
    options: tuple[tuple[str, str], ...]  # and arguments of Python
    filters: tuple[str, ...] = ()  # names in ``PUSHED``
    call: int | None = None  # a position in ``CALLS``

    def key(self, facts: Mapping[str, str]) -> str:
        """Return the text by which two records know the case."""
        parts = [self.place, self.way]
        if self.call is not None:
            method, arguments = CALLS[self.call]
            parts += [method, filled(arguments, facts)]
        options = {name: filled(value, facts) for name, value in self.options}
        parts.append(json.dumps(options, ensure_ascii=False))
        parts += [f"[{' and '.join(self.filters)}]"] if self.filters else []
        return " ".join(parts)


def filled(template: str, facts: Mapping[str, str]) -> str:
    return Template(template).substitute(facts)


def is_in_share(text: str, share: int, of: int) -> bool:
    """Return whether a text belongs to a share, 1 to ``of``; this never changes."""
    return _hashed(text) % of == share - 1


def _hashed(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())


def _flip_a_body(root: Path) -> None:
    rows = [row for row in goldens.lines(root.name, "expected") if len(row["bodyBase64"]) > 8]
    offset = sorted(row["physicalOffset"] for row in rows)[len(rows) // 2]
    path = max(file for file in (root / "commitlog").iterdir() if int(file.name) <= offset)
    status = path.stat()
    with path.open("r+b") as file:
        file.seek(offset - int(path.name) + 88)  # of a record with addresses of four bytes
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def _lose_a_file_of_the_log(root: Path) -> None:
    files = sorted((root / "commitlog").iterdir())
    files[len(files) // 2].unlink()


def _lose_queues(root: Path) -> None:
    """Remove a queue, the first file of another one and the last file of a third."""
    queues = sorted(path for path in (root / "consumequeue").glob("*/*") if any(path.iterdir()))
    shutil.rmtree(queues[0])
    for queue, number in ((queues[1], 0), (queues[2], -1)):
        sorted(queue.iterdir())[number].unlink()


def _copy_beside(root: Path) -> None:
    shutil.copytree(root, root.with_name("copy"))


@cache
def places() -> dict[str, Place]:
    """Return all places by name: each golden store as it is, and others made of them."""
    names = sorted(path.name.removesuffix(".tar.xz") for path in goldens.FOLDER.glob("*.tar.xz"))
    alone = {"path": "$store"}
    found = {name: Place((name,), alone) for name in names}
    for name in goldens.IN_TIER:
        with_tier = {**alone, "tiered": "$store/tieredstore"}
        found[f"{name}+local"] = Place((name,), with_tier)
        found[f"{name}+alone"] = Place((name,), {"path": "$store/tieredstore"})
    dropping = {**alone, "mode": "DROPMALFORMED", "failOnDataLoss": "false"}
    keeping = {**alone, "mode": "PERMISSIVE"}
    return found | {
        "compacted+logs": Place(("compacted",), {"path": "$store/compaction"}),
        "basic+flipped": Place(("basic",), alone, _flip_a_body),
        "basic+flipped+dropped": Place(("basic",), dropping, _flip_a_body),
        "dledger-crash2+kept": Place(("dledger-crash2",), keeping),
        "edges+lost-log": Place(("edges",), alone, _lose_a_file_of_the_log),
        "edges+lost-log+dropped": Place(("edges",), dropping, _lose_a_file_of_the_log),
        "v49+lost-queues": Place(("v49",), alone, _lose_queues),
        "two": Place(("live", "controller"), {"paths": '["$store","$folder/controller"]'}),
        "folder": Place(("prop-crc", "ipv6", "crash"), {"path": "$folder/*"}),
        "replicas": Place(
            ("controller",), {"brokers": '{"b":["$store","$folder/copy"]}'}, _copy_beside
        ),
    }


_SIMPLE = re.compile(r"[\w.-]+")
_SYSTEM = re.compile(r"%|rmq_|RMQ_|SCHEDULE_TOPIC|TRANS_CHECK|TBW102|BenchmarkTest")
# What is known of stores beside which there are no rows.
_BY_HAND: Final[dict[str, goldens.Row]] = {
    "rdbm": {
        "topic": "Orders", "queueId": 2, "queueOffset": 2, "physicalOffset": 1190, "storeSize": 122,
        "storeTimestamp": 1795632291156, "keys": "k10", "properties": {"UNIQ_KEY": "U10"},
    },
    "compacted": {
        "topic": "Prices", "queueId": 1, "queueOffset": 183, "physicalOffset": 0, "storeSize": 116,
        "storeTimestamp": 1795683974089, "keys": "k3", "tags": "t1", "properties": {},
    },
    "empty": {
        "topic": "Absent", "queueId": 0, "queueOffset": 1, "physicalOffset": 0, "storeSize": 100,
        "storeTimestamp": 1700000000000, "properties": {},
    },
}  # fmt: skip


def facts_of(place: Place, folder: Path | str, beside: Path | str) -> dict[str, str]:
    """Return what templates of the place name.

    Args:
        place: the place.
        folder: where its stores are unpacked.
        beside: a folder beside that one.
    """
    where = {"folder": str(folder), "beside": str(beside), "store": f"{folder}/{place.golden[0]}"}
    return _facts_of_rows(place.golden[0]) | where


@cache
def _facts_of_rows(name: str) -> dict[str, str]:
    rows = [_BY_HAND[name]] if name in _BY_HAND else goldens.lines(name, "expected")
    rows = [row for row in rows if not _SYSTEM.match(row["topic"])]
    counts = Counter(row["topic"] for row in rows if _SIMPLE.fullmatch(row["topic"]))
    topic, other, *_ = [*sorted(counts, key=lambda one: (-counts[one], one)), "Absent"]
    ids = Counter(row["queueId"] for row in rows if row["topic"] == topic)
    queue_id = max(sorted(ids), key=ids.__getitem__)
    queue = [row for row in rows if (row["topic"], row["queueId"]) == (topic, queue_id)]
    middle, last = queue[len(queue) // 2], queue[-1]
    times = sorted(row["storeTimestamp"] for row in rows)
    keys = _words(row.get("keys") for row in queue)
    tags = _words(row.get("tags") for row in queue)
    clock = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=middle["storeTimestamp"] // 1000)
    n_bytes = sum(row["storeSize"] for row in rows)
    offset_id = middle.get("msgId", f"7F00000100002A9F{middle['physicalOffset']:016X}")
    facts = {
        "name": name, "topic": topic, "other": other, "prefix": topic[:3], "queue": queue_id,
        "middle": middle["queueOffset"], "beyond": last["queueOffset"] + 1000,
        "place": middle["physicalOffset"], "time": middle["storeTimestamp"],
        "early": times[len(times) // 4], "late": times[3 * len(times) // 4],
        "beyond_time": times[-1] + 86_400_000, "clock": clock.replace(tzinfo=None).isoformat(),
        "key": keys[len(keys) // 2], "key2": keys[0], "tag": tags[0], "tag2": tags[-1],
        "id": middle["properties"].get("UNIQ_KEY", offset_id), "offset_id": offset_id,
        "group": "CG_part", "records": len(rows) // 4 + 1, "few_records": len(rows) // 11 + 1,
        "bytes": n_bytes // 4 + 1, "few_bytes": n_bytes // 11 + 1,
    }  # fmt: skip
    return {fact: str(value) for fact, value in facts.items()}


def _words(texts: Iterable[str | None]) -> list[str]:
    """Return words that need no quoting, each once, in their order."""
    words = chain.from_iterable((text or "").split(" ") for text in texts)
    return list(dict.fromkeys(filter(_SIMPLE.fullmatch, words))) or ["absent"]


def require_every_option() -> None:
    """Refuse to record if an option or an argument has no values here.

    Raises:
        AssertionError: the tables lack one, or have one that is gone.
    """
    known = {option.name for option in ALL_READ_OPTIONS}
    arguments = {name for name in ScanArguments.__annotations__ if name not in OPTION_OF_ARGUMENT}
    for what, table, names in (("VALUES", VALUES, known), ("OF_PYTHON", OF_PYTHON, arguments)):
        assert table.keys() == names, f"{what} of recorder_cases.py: {sorted(table.keys() ^ names)}"


def cases_of(name: str, most_pairs: int) -> Iterator[Case]:
    """Yield the cases of a place.

    Args:
        name: of the place.
        most_pairs: of options in a batch; the other ways have a share of that.
    """
    if name in _THINNED:
        most_pairs //= 2
    for way, share in ((BATCH, 1.0), (STREAM, 0.5), (SCAN, 0.5), (COUNT, 0.2)):
        yield Case(name, way, ())
        yield from _singles(name, way)
        yield from _pairs(name, way, round(most_pairs * share))
    yield from _filtered(name, most_pairs // 4)
    limits = ({"maxOffsetsPerTrigger": "$records"}, {"maxBytesPerTrigger": "$bytes"})
    for way in (RESTART, AVAILABLE_NOW):
        limit = limits[_hashed(f"{name} {way}") % 2]
        yield Case(name, way, tuple((_FROM_FIRST | limit).items()))
    if len(places()[name].golden) == 1 and "brokers" not in places()[name].base:
        yield from (Case(name, CALL, (), call=number) for number in range(len(CALLS)))


def _values(name: str) -> Values:
    return OF_PYTHON[name] if name in OF_PYTHON else VALUES[name]


@cache
def _names(way: str) -> tuple[str, ...]:
    """Return the options that have cases in a way to read, also those that are refused there."""
    if way not in IN_PYTHON:
        return tuple(VALUES)
    taken = ScanArguments.__annotations__.keys() | FolderArguments.__annotations__.keys()
    taken |= _OF_OPEN | {"columns", "view", "consumer_group", "clients", "strategy", "rooms"}
    return (
        *(option.name for option in ALL_READ_OPTIONS if option.argument in taken),
        *(name for name in OF_PYTHON if (name, way) != ("progress", COUNT)),
    )


@cache
def _refused(way: str) -> frozenset[str]:
    if way in IN_PYTHON:
        return frozenset()
    scope = "stream" if way == STREAM else "batch"
    refused = {option.name for option in ALL_READ_OPTIONS if scope not in option.scope}
    if way == STREAM:
        ends = {"endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"}
        return frozenset(refused | ends | {"view", "includePending"})
    return frozenset(refused - {"clients", "strategy", "rooms", "consumerGroup"})


def _case(name: str, way: str, given: Options) -> Case:
    """Return a case; a stream starts at the first message unless options say otherwise."""
    if way == STREAM and not any(start in given for start in _STARTS):
        given = _FROM_FIRST | given
    return Case(name, way, tuple(given.items()))


def _singles(place: str, way: str) -> Iterator[Case]:
    """Yield cases of one option: with its first good value, and of the other values a share."""
    is_whole = place not in _THINNED or way == BATCH
    for option in _names(way):
        values, companions = _values(option), COMPANIONS.get(option, {})
        is_rare = option in _refused(way) or (option in _INERT and place not in _taking(option))
        of = 1 if is_whole and not is_rare and way != COUNT else 3
        for number, value in enumerate((*values.good, *values.bad)):
            label = f"{place} {way} {option} {number}"
            if is_in_share(label, 1, of if number == 0 else 6):
                yield _case(place, way, {option: value} | companions)
            if companions and is_in_share(label, 2, 8):
                yield _case(place, way, {option: value})


def _taking(option: str) -> list[str]:
    """Return the places whose stores take an option that others refuse."""
    return [name for name in places() if option in _ONLY_FOR and _ONLY_FOR[option] in name]


def _pairs(place: str, way: str, most: int) -> list[Case]:
    """Return cases of two options: those whose hashes are lowest.

    Options that divide a read or limit a trigger are in half of them.
    """
    dividing = {BATCH: _DIVIDING, STREAM: (*_DIVIDING, *_LIMITING)}.get(way, ("where", "last"))
    elsewhere = {option for option in _ONLY_FOR if place not in _taking(option)}
    names = [name for name in _names(way) if name not in _refused(way) | elsewhere]
    found: dict[bool, list[tuple[int, Case]]] = {True: [], False: []}
    for pair in combinations(names, 2):
        label = " ".join((place, way, *pair))
        given: Options = {}
        for option in pair:
            good = _values(option).good
            value = good[_hashed(f"{label} {option}") % len(good)]
            given = COMPANIONS.get(option, {}) | given | {option: value}
        is_divided = any(option in dividing for option in pair)
        found[is_divided].append((_hashed(label), _case(place, way, given)))
    shares = ((True, most - most // 2), (False, most // 2))
    return [case for kind, share in shares for _, case in sorted(found[kind])[:share]]


def _filtered(place: str, most: int) -> Iterator[Case]:
    """Yield cases of filters: each alone, and with other options, and of pairs a share."""

    def with_options(label: str) -> tuple[tuple[str, str], ...]:
        return tuple(WITH_FILTERS[_hashed(label) % len(WITH_FILTERS)].items())

    for one in PUSHED:
        if is_in_share(f"{place} alone {one}", 1, 2 if place in _THINNED else 1):
            yield Case(place, FILTERS, (), (one,))
        if is_in_share(f"{place} {one}", 1, 3):
            yield Case(place, FILTERS, with_options(f"{place} {one}"), (one,))
    labels = {f"{place} {' '.join(pair)}": pair for pair in combinations(PUSHED, 2)}
    for number, label in enumerate(sorted(labels, key=_hashed)[:most]):
        options = with_options(label) if number % 2 else ()
        yield Case(place, FILTERS, options, labels[label])
