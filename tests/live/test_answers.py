"""Answers of both forms, and several requests on one connection."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import pytest

from fake_server import FakeServer, Reply, Request
from rmqstore import remoting
from rmqstore.errors import BrokerUnreachableError, MalformedBytesError
from rmqstore.remoting import Address, Endpoint, RemotingClient, decode_answer


class Echo(FakeServer):
    def answer(self, request: Request) -> Reply:
        return Reply(request.code % 3, request.fields, request.body, "warum — 為什麼")


@pytest.fixture
def server() -> Iterator[Echo]:
    found = Echo()
    yield found
    found.close()


def connect(server: FakeServer, timeout: float = 2) -> RemotingClient:
    return RemotingClient(Endpoint(Address.parse(server.address), timeout=timeout))


@pytest.mark.parametrize("is_binary", [False, True], ids=["json", "binary"])
def test_codes_remarks_fields_and_bodies_of_both_forms(server: Echo, *, is_binary: bool) -> None:
    server.is_binary = is_binary
    fields = {"offset": "-7", "größe": "naïve", "empty": "", "long": "x" * 70_000}
    with connect(server) as client:
        for code in (30, 31, 320):
            answer = client.request(code, fields, b"body")
            assert (answer.code, answer.body, answer.remark) == (
                code % 3, b"body", "warum — 為什麼",
            )  # fmt: skip
            assert answer.fields == fields
            assert answer.number("offset") == -7
            for name in ("empty", "long", "missing"):
                with pytest.raises(MalformedBytesError, match=f"field {name}"):
                    answer.number(name)


@pytest.mark.parametrize("seed", range(3))
def test_answers_of_any_size_come_whole_in_any_pieces(
    server: Echo, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remoting, "_BUFFER_BYTES", 256)
    dice = random.Random(seed)

    def pieces(_request: Request, frame: bytes) -> Iterator[bytes]:
        while frame:
            count = dice.choice([1, dice.randint(1, 300), 5000])
            yield frame[:count]
            frame = frame[count:]

    server.mangle = pieces
    bodies = [dice.randbytes(dice.choice([0, dice.randint(0, 400), 20_000])) for _ in range(60)]
    with connect(server) as client:
        numbers = client.send_all(11, (({}, body) for body in bodies))
        found = {}
        while len(found) < len(bodies):
            with suppress(BrokerUnreachableError):  # a frame that is late is taken later
                client.endpoint = replace(client.endpoint, timeout=dice.choice([0.0001, 2]))
                answer = client.receive_one_of(numbers)
                found[answer.opaque] = answer.body
    assert [found[number] for number in numbers] == bodies


def test_requests_that_are_sent_together_are_answered_in_any_order(server: Echo) -> None:
    server.dice, server.waits = random.Random(2), 0.01
    with connect(server) as client:
        numbers = client.send_all(11, (({"n": str(n)}, b"%d" % n) for n in range(50)))
        assert len(set(numbers)) == 50
        answers = [client.receive_one_of(numbers) for _ in range(50)]
        assert [answer.opaque for answer in answers] != numbers
        found = {answer.opaque: (answer.fields["n"], answer.body) for answer in answers}
        assert found == {number: (str(n), b"%d" % n) for n, number in enumerate(numbers)}
        client.endpoint = replace(client.endpoint, timeout=0.05)
        with pytest.raises(BrokerUnreachableError, match=server.address):
            client.receive_one_of(numbers)
        assert client.request(30).code == 0, "the connection is used on"


@pytest.mark.parametrize("is_binary", [False, True], ids=["json", "binary"])
def test_headers_of_any_bytes_are_answers_or_errors_of_one_kind(
    server: Echo, *, is_binary: bool
) -> None:
    server.is_binary = is_binary
    good = server.frame(Request(11, 5, {}, b""), Reply(0, {"a": "1", "b": "22"}, b"x", "why"))[4:]
    answer = decode_answer(good)
    assert answer is not None
    assert (answer.opaque, answer.remark, answer.fields) == (5, "why", {"a": "1", "b": "22"})
    dice = random.Random(7)
    for _ in range(3000):
        frame = bytearray(good)
        for _ in range(dice.randint(1, 4)):
            frame[dice.randrange(len(frame))] = dice.randrange(256)
        with suppress(MalformedBytesError):
            decode_answer(bytes(frame))
    (marked,) = struct.unpack_from(">i", good)
    for end in range(4, len(good) - 1):
        size = min(marked & 0xFFFFFF, end - 4)
        cut = struct.pack(">i", is_binary << 24 | size) + good[4:end]
        with pytest.raises(MalformedBytesError):
            decode_answer(cut)
