"""The columnar encoder against records packed one by one, and against what RocketMQ wrote."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

import goldens
import rmqstore
import store_builder as build
import tiers
from goldens import Golden
from rmqstore.format.columns.decode import pack_host, pack_hosts
from rmqstore.format.columns.dispatch_requests import DispatchProperties, PlacedFields
from rmqstore.format.columns.encode import RecordColumns, TopicColumn, encode_records, stamp
from rmqstore.format.columns.property_encode import PropertyStrings
from rmqstore.format.hashing import appended_hashes, java_hash, java_hashes
from rmqstore.write.messages import UniqueKeys
from rmqstore.write.verbatim import verbatim_columns

HOSTS = [
    "10.0.0.1:1", "192.168.7.9:10911", "[2001:db8:0:0:0:0:0:20]:63789", "[0:0:0:0:0:0:0:1]:0",
    "255.255.255.255:99",
]  # fmt: skip
CRC = b"__CRC32#\x010000000000\x02"


def random_columns(rng: random.Random, n: int) -> RecordColumns:
    topics = ["T", "x" * 127, "y" * 128, "%RETRY%" + "z" * 200, "Ω"]
    bodies = [rng.randbytes(rng.choice([0, 1, 7, 200, 5000])) for _ in range(n)]
    properties = [
        b"".join(
            b"k%d\x01%s\x02" % (i, b"v" * rng.randrange(1, 30)) for i in range(rng.randrange(4))
        )
        + (CRC if rng.random() < 0.2 else b"")
        for _ in range(n)
    ]

    def numbers(kind: type, bits: int) -> np.ndarray:
        return np.array([rng.randrange(-(1 << bits), 1 << bits) for _ in range(n)], kind)

    strings = pa.array(properties, pa.binary())
    return RecordColumns(
        topics=TopicColumn.of(pa.array(rng.choices(topics, k=n), pa.string())),
        queue_ids=numbers(np.int32, 31),
        bodies=pa.array(bodies, pa.binary()),
        properties=PropertyStrings.stored(strings),
        dispatched=DispatchProperties(None, None, None, None),
        flags=numbers(np.int32, 31),
        sys_flags=numbers(np.int32, 31),
        born_timestamps=numbers(np.int64, 63),
        born_hosts=pack_hosts(pa.array(rng.choices(HOSTS, k=n), pa.string())),
        store_hosts=pack_hosts(pa.array(rng.choices(HOSTS, k=n), pa.string())),
        reconsume_times=numbers(np.int32, 31),
        prepared_transaction_offsets=numbers(np.int64, 63),
    )


@pytest.mark.parametrize("seed", tiers.seeds(30))
def test_columnar_encoder_equals_records_packed_one_by_one(seed: int) -> None:
    rng = random.Random(seed)
    columns = random_columns(rng, rng.choice([1, 2, 30, 200]))
    queue_offsets, physical_offsets, times = (
        np.array([rng.randrange(1 << 62) for _ in range(len(columns))], np.int64) for _ in range(3)
    )
    records = encode_records(columns)
    stamp(records, PlacedFields(queue_offsets, physical_offsets, times))
    for row in range(len(columns)):
        born_host, store_host = (
            build.host(hosts.packed[row, : 20 if hosts.is_v6[row] else 8].tobytes())
            for hosts in (columns.born_hosts, columns.store_hosts)
        )
        expected = build.packed_as_sent(
            columns.topics.names[columns.topics.codes[row]],
            columns.properties.joined()[row].as_py(),
            int(physical_offsets[row]),
            body=columns.bodies[row].as_py(),
            born_host=born_host,
            store_host=store_host,
            queue_id=int(columns.queue_ids[row]),
            flag=int(columns.flags[row]),
            queue_offset=int(queue_offsets[row]),
            sys_flag=int(columns.sys_flags[row]),
            born_timestamp=int(columns.born_timestamps[row]),
            store_timestamp=int(times[row]),
            reconsume_times=int(columns.reconsume_times[row]),
            prepared_transaction_offset=int(columns.prepared_transaction_offsets[row]),
        )
        assert records.data[records.starts[row] : records.starts[row + 1]].tobytes() == expected


@pytest.mark.parametrize("name", goldens.PLAIN)
def test_encoding_what_was_decoded_gives_the_stored_bytes(golden_store: Golden, name: str) -> None:
    root = golden_store(name)
    with rmqstore.open(root, broker_name="b") as store:
        for batch in store.scan(scan="commitlog", verbatim=True):
            records = encode_records(verbatim_columns(batch))
            offsets = batch["commitLogOffset"].to_numpy()
            times = batch["storeTimestamp"].view(pa.int64()).to_numpy() // 1000
            stamp(records, PlacedFields(batch["queueOffset"].to_numpy(), offsets, times))
            for row, offset in enumerate(offsets.tolist()):
                log = store.parts.log
                record = records.data[records.starts[row] : records.starts[row + 1]].tobytes()
                assert log.record(log.locate(offset)).tobytes() == record


@pytest.mark.parametrize("host", HOSTS)
def test_hosts_are_packed_as_stored(host: str) -> None:
    packed = pack_host(host)
    assert len(packed) == (20 if host.startswith("[") else 8)
    assert int.from_bytes(packed[-4:]) == int(host.rpartition(":")[2])


@pytest.mark.parametrize("seed", tiers.seeds(40))
def test_hash_codes_of_columns_equal_the_plain_ones(seed: int) -> None:
    rng = random.Random(seed)
    letters = "abc #é中😀" if seed % 3 == 0 else "abcXYZ019#"
    longest = 20_000 if seed % 10 == 0 else 40
    texts = [
        "".join(rng.choices(letters, k=rng.choice([0, 1, 2, 33, longest])))
        for _ in range(rng.randrange(40))
    ]
    stored = [text.encode() for text in texts]
    offsets = np.cumsum([0] + [len(text) for text in stored])
    found = java_hashes(np.frombuffer(b"".join(stored), np.uint8), offsets)
    assert found.tolist() == [java_hash(text) for text in texts]
    lengths = np.array([len(text.encode("utf-16-be")) // 2 for text in texts], np.int64)
    prefix = np.full(len(texts), java_hash("topic#"), np.int32)
    assert appended_hashes(prefix, found, lengths).tolist() == [
        java_hash("topic#" + text) for text in texts
    ]


def test_unique_keys_are_unique_beyond_their_counter() -> None:
    maker = UniqueKeys(lambda: 1_700_000_000_000)
    keys = [*maker.make(65_530).to_pylist(), *maker.make(70_000).to_pylist()]
    assert len(set(keys)) == len(keys)
    assert {len(key) for key in keys} == {32}
    assert keys[0][-4:] == "0000"
    assert int(keys[65_536][-12:-4], 16) == int(keys[0][-12:-4], 16) + 1
