"""Property strings as RocketMQ reads them, record CRCs, hosts and ids: known inputs and results."""

from __future__ import annotations

import numpy as np
import pytest

import store_builder as build
from rmqstore import OptionError
from rmqstore.errors import MalformedBytesError
from rmqstore.format.columns.property_decode import parse_entries, property_map
from rmqstore.format.hashing import java_hash, tags_code
from rmqstore.format.record import check_record, decode_record, parse_message_id, recorded_crc
from rmqstore.format.text import parse_properties


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        pytest.param(b"", {}, id="none"),
        pytest.param(b"a\x01b\x02", {"a": "b"}, id="one"),
        pytest.param(b"a\x01b\x02c\x01d", {"a": "b", "c": "d"}, id="last separator missing"),
        pytest.param(b"a\x01\x02c\x01d\x02", {"c": "d"}, id="empty value is dropped"),
        pytest.param(b"\x01b\x02c\x01d\x02", {"c": "d"}, id="empty name is dropped"),
        pytest.param(b"ab\x02c\x01d\x02", {"c": "d"}, id="piece without a separator is dropped"),
        pytest.param(b"a\x01b\x02a\x01c\x02", {"a": "c"}, id="last of two wins"),
        pytest.param(b"a\x01b\x02a\x01\x02", {"a": "b"}, id="an empty one does not win"),
        pytest.param(b"a\x01b\x01c\x02", {"a": "b\x01c"}, id="value keeps further separators"),
        pytest.param(b"\x02\x02a\x01b\x02\x02", {"a": "b"}, id="empty pieces"),
        pytest.param(b"a\x01b\x00c\x02", {"a": "b\0c"}, id="NUL"),
        pytest.param(b"a\x01\xffz\x02", {"a": "�z"}, id="invalid UTF-8"),
        pytest.param(
            b"a\x01\xed\xa0\x80\x02\xed\xbf\x01\xed\x02",
            {"a": "�", "�": "�"},
            id="encoded surrogates",
        ),
        pytest.param(
            b"a\x01\xed\xa0\xbd\xed\xb8\x80\x02", {"a": "��"}, id="an encoded pair of surrogates"
        ),
        pytest.param(
            b"a\x01\xe0\x80\x80\xf0\x9f\x98\x02", {"a": "����"}, id="other malformed sequences"
        ),
        pytest.param("größe\x01消息\x02".encode(), {"größe": "消息"}, id="UTF-8"),
        pytest.param(b"\xff\x01a\x02\xfe\x01b\x02", {"�": "b"}, id="names that become one"),
    ],
)
def test_property_string_is_parsed_as_rocketmq_does(
    stored: bytes, expected: dict[str, str]
) -> None:
    assert parse_properties(stored) == expected


@pytest.mark.parametrize("n_names", [1, 40, 48, 49, 62, 63, 200])
def test_a_name_that_a_record_repeats_is_distinguished_from_any_number_of_others(
    n_names: int,
) -> None:
    """The bit sums that stand for names must not overflow, as nine times the 62nd once did."""
    stored = [b"".join(b"n%d\x01v\x02" % number for number in range(n_names))]
    stored += [
        b"".join(b"n%d\x01%d\x02" % (n_names - 1, turn) for turn in range(count))
        for count in (9, 17, 33)
    ]
    lengths = np.array([len(text) for text in stored])
    entries = parse_entries(
        np.frombuffer(b"".join(stored), np.uint8), np.cumsum(lengths) - lengths, lengths
    )
    assert [dict(row) for row in property_map(entries).to_pylist()] == [
        parse_properties(text) for text in stored
    ]
    assert [len(row) for row in property_map(entries).to_pylist()] == [n_names, 1, 1, 1]


def test_java_hash_equals_string_hash_code() -> None:
    known = {  # from a JVM
        "": 0, "a": 97, "Aa": 2112, "BB": 2112, "TagA": 2598919, "a||b": 3012833,
        "polygenelubricants": -(1 << 31), "hello": 99162322, "消息": 31 * 0x6D88 + 0x606F,
    }  # fmt: skip
    assert {text: java_hash(text) for text in known} == known
    assert java_hash("😀") == 31 * 0xD83D + 0xDE00  # by UTF-16 units
    assert (tags_code(None), tags_code(""), tags_code("BB")) == (0, 0, 2112)


def test_record_crc_is_read_with_its_digits_backwards() -> None:
    # golden/README.md, fact 3
    assert recorded_crc(b"a\x01b\x02__CRC32#\x010825539031\x02") == 1309355280
    assert recorded_crc(b"a\x01b\x02") is None
    assert recorded_crc(b"") is None
    assert recorded_crc(b"__CRC32#\x010825539031") is None
    assert recorded_crc(b"__CRC32#\x01082553903x\x02") == -1


@pytest.mark.parametrize("properties", [b"", b"a\x01b", b"a\x01b\x02"])
def test_record_crc_guards_topic_and_properties(properties: bytes) -> None:
    record = build.Record(topic="Topic", properties=properties, prop_crc=True)
    packed = build.pack(record, 0)
    check_record(packed, 0, 0)
    damaged = packed.replace(b"Topic", b"Toqic")
    with pytest.raises(MalformedBytesError, match="CRC of the record"):
        check_record(damaged, 0, 0)
    check_record(damaged, 0, 0, check_crc=False)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"magic": 0xDAA320A8}, "magic"),
        ({"body_crc": 7}, "CRC of the body"),
        ({"physical_offset": 91}, "physical offset"),
        ({"total_size": 92}, "total size"),
        ({"store_timestamp": 1 << 60}, "store_timestamp"),
    ],
)
def test_check_refuses_a_record_and_says_what_is_wrong(change: dict[str, int], reason: str) -> None:
    buf = bytes(10) + build.pack(build.replace(build.Record(), **change), 90) + bytes(20)
    with pytest.raises(MalformedBytesError, match=reason) as caught:
        check_record(buf, 10, 90)
    assert caught.value.position == 10


def test_hosts_and_ids_are_spelled_as_java_does() -> None:
    record = build.Record(born_host=build.HOST_V6, store_host=(b"\xff\x00\x00\x01", 65535))
    message = decode_record(build.pack(record, 0x1234), 0)
    assert message.bornHost == "[2001:db8:0:0:0:0:0:20]:63789"
    assert message.storeHost == "255.0.0.1:65535"
    assert message.offsetMsgId == message.msgId == "FF000001" + "0000FFFF" + "0000000000001234"


@pytest.mark.parametrize(
    "text",
    [
        "", "7F", "x" * 32, "7F00000100002A9F000000000000067", "7F 00000100002A9F00000000000677",
        "é" * 32,
    ],
)  # fmt: skip
def test_message_id_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="message id"):
        parse_message_id(text)
