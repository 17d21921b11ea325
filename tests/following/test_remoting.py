"""The client of the listen port: frames, signatures, and servers that answer anything."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import random
import socket
import ssl
import struct
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from fake_server import FakeServer, HangUpError, Reply, Request
from rmqstore.errors import (
    BrokerRefusedError,
    BrokerUnreachableError,
    MalformedBytesError,
    OptionError,
)
from rmqstore.remoting import (
    MAX_BODY_BYTES,
    Address,
    Credentials,
    Endpoint,
    RemotingClient,
    encode_request,
    frame_length,
)
from rmqstore.replica.broker_requests import BrokerClient, ServedSettings


def answering(*bodies: bytes, code: int = 0) -> Callable[[Request], Reply]:
    """Answer GET_BROKER_CONFIG with the first body, and all else with the last."""
    return lambda request: Reply(
        code, body=bodies[0 if request.code == 26 else -1], remark="no right"
    )


@contextmanager
def client_of(
    replace: Callable[[Request], Reply],
    mangle: Callable[[Request, bytes], bytes | Iterable[bytes]] = lambda _, frame: frame,
    of_server: ssl.SSLContext | None = None,
    **options: Any,
) -> Iterator[BrokerClient]:
    with FakeServer() as server:
        server.replace, server.mangle, server.tls = replace, mangle, of_server
        with BrokerClient(Endpoint(Address.parse(server.address), **options)) as client:
            yield client


def test_an_answer_is_taken_whatever_comes_before_it_and_however_it_is_cut() -> None:
    def mangle(request: Request, frame: bytes) -> Iterator[bytes]:
        of_another = frame.replace(b'"opaque": %d,' % request.opaque, b'"opaque": 9,')
        frames = of_another + frame.replace(b'"flag": 1', b'"flag": 0') + frame
        for start in range(0, len(frames), 777):
            yield frames[start : start + 777]

    with client_of(lambda request: Reply(body=request.body * 1000), mangle) as client:
        for body in (b"x" * 10, b"y" * 10):
            assert client.request(28, {}, body).body == body * 1000


@pytest.mark.parametrize(
    "frame",
    [
        b"", b"\0", struct.pack(">i", -1), struct.pack(">i", 3), struct.pack(">i", (1 << 31) - 1),
        struct.pack(">ii", 8, 1 << 24 | 4) + b"abcd", struct.pack(">ii", 8, 1000) + b"abcd",
        struct.pack(">ii", 8, 4) + b"abcd", struct.pack(">ii", 6, 2) + b"[]",
        struct.pack(">ii", 6, 2) + b"{}", struct.pack(">ii", 100_004, 100_000) + b"[" * 100_000,
    ],
    ids=range(11),
)  # fmt: skip
def test_bytes_that_are_not_an_answer_are_an_error(frame: bytes) -> None:
    def reply(_request: Request) -> Reply:
        raise HangUpError(frame)

    no_answer = pytest.raises(BrokerUnreachableError, match="no answer to GET_BROKER_CONFIG")
    with client_of(reply, timeout=2) as client, no_answer:
        client.request(26)


def test_a_server_that_says_nothing_or_goes_on_slowly_costs_the_time_out_only() -> None:
    def slowly(_request: Request, frame: bytes) -> Iterator[bytes]:
        for byte in frame:
            yield bytes([byte])
            time.sleep(0.05)

    for mangle in (slowly, lambda _request, _frame: b""):
        with client_of(answering(b"x" * 1000), mangle, timeout=0.3) as client:
            began = time.monotonic()
            with pytest.raises(BrokerUnreachableError):
                client.request(26)
            assert time.monotonic() - began < 2


def test_a_frame_is_as_long_as_it_may_be() -> None:
    assert frame_length(struct.pack(">i", MAX_BODY_BYTES)) == MAX_BODY_BYTES
    dice = random.Random(7)
    for _ in range(3000):
        with suppress(MalformedBytesError):
            frame_length(dice.randbytes(4))


def test_a_request_is_signed_over_the_values_of_its_fields_in_order_and_its_body() -> None:
    signed = Credentials("user", "secret", "token").signed({"b": "2", "a": "1"}, b"body")
    content = b"user" + b"token" + b"1" + b"2" + b"body"
    expected = base64.b64encode(hmac.new(b"secret", content, hashlib.sha1).digest()).decode()
    assert signed == {
        "a": "1", "b": "2", "AccessKey": "user", "SecurityToken": "token", "Signature": expected,
    }  # fmt: skip
    assert "secret" not in repr(Credentials("user", "secret", "token"))


def test_a_request_has_the_header_that_brokers_read() -> None:
    frame = encode_request(21, 5, {"x": "ä"}, b"body")
    length, size = struct.unpack_from(">ii", frame)
    assert length == len(frame) - 4
    assert size < 1 << 24
    header = json.loads(frame[8 : 8 + size])
    assert (header["code"], header["opaque"], header["flag"]) == (21, 5, 0)
    assert header["extFields"] == {"x": "ä"}
    assert frame[8 + size :] == b"body"


@pytest.mark.parametrize("credentials", [None, Credentials("user", "secret")])
@pytest.mark.parametrize("count", range(8))
def test_a_request_is_no_acknowledgement_at_a_port_for_replicas(
    count: int, credentials: Credentials | None
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = Address("127.0.0.1", listener.getsockname()[1])
        with RemotingClient(Endpoint(address, credentials, timeout=0.1)) as client:
            connection, _ = listener.accept()
            with connection:
                with pytest.raises(BrokerUnreachableError):
                    client.request(26, {"field": "x" * count})
                frame = connection.recv(4096)
    # Source: DefaultHAConnection.java#processReadEvent, which takes the last whole 8 bytes
    assert len(frame) % 8 == 0
    assert struct.unpack_from(">q", frame, len(frame) - 8) == (-1,)
    assert json.loads(frame[8 : 8 + struct.unpack_from(">i", frame, 4)[0]])["code"] == 26


def test_refusals_are_told_from_answers_that_may_pass() -> None:
    for code, error, text in (
        (16, BrokerRefusedError, "no right"),
        (2, BrokerUnreachableError, "no right"),
        (3, BrokerRefusedError, "not a broker's listen port; name servers are given with namesrv"),
    ):
        with client_of(answering(b"", code=code)) as client, pytest.raises(error, match=text):
            client.settings()


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"{}", b'{"table":[]}', b'{"table":{"commitLogMinOffset":"x"}}',
        b'{"table":{"commitLogMinOffset":"5","commitLogMaxOffset":"4"}}',
        b'{"table":{"commitLogMinOffset":"0","commitLogMaxOffset":"99999999999999999999999"}}',
        b'{"table":{"commitLogMinOffset":null,"commitLogMaxOffset":{}}}',
        b'{"table":{"commitLogMinOffset":0,"commitLogMaxOffset":1e999}}',
        b'{"table":{"commitLogMinOffset":NaN,"commitLogMaxOffset":5}}',
        b'{"table":{"commitLogMinOffset":0,"commitLogMaxOffset":"' + b"9" * 5000 + b'"}}',
        b"[" * 100_000, b"x" * (2 << 20),
    ],
    ids=range(13),
)  # fmt: skip
def test_bounds_that_cannot_be_are_an_error(body: bytes) -> None:
    with client_of(answering(body)) as client, pytest.raises(BrokerUnreachableError):
        client.bounds()


def settings_of(body: bytes, version: str = "V5_3_3") -> ServedSettings:
    table = json.dumps({"table": {"brokerVersionDesc": version}}).encode()
    with client_of(answering(body, table)) as client:
        return client.settings()


def test_settings_leave_out_what_nobody_asked_for() -> None:
    settings = settings_of(b"brokerName=b\nsecretKey=hidden\nhaListenPort=10912\n")
    assert settings.given == {"brokerName": "b", "haListenPort": "10912"}
    assert settings.version == (5, 3, 3)
    assert settings.number("haListenPort", 0) == 10912


def test_settings_are_taken_as_they_are_written_without_escapes() -> None:
    body = (
        b"storePathRootDir=C:\\users\\b\nmessageDelayLevel=1s\n#x=1\nbrokerClusterName = a:b#c \n"
        b"brokerName=b\\\nhaListenPort=10912\r\nstoreType=x=y\n"
    )
    assert settings_of(body).given == {
        "brokerClusterName": "a:b#c", "brokerName": "b\\", "haListenPort": "10912",
        "storeType": "x=y",
    }  # fmt: skip


def test_a_version_with_too_many_digits_is_an_error() -> None:
    with pytest.raises(BrokerUnreachableError, match="version"):
        settings_of(b"brokerName=b\n", f"V{'9' * 5000}_0_0")


@pytest.mark.parametrize(
    "text", ["", "host", "host:", ":1", "host:x", "host:0", "host:65536", "a:b:1"]
)
def test_an_address_is_host_and_port(text: str) -> None:
    with pytest.raises(OptionError):
        Address.parse(text)


def test_addresses() -> None:
    assert Address.parse("broker-a:10911") == Address("broker-a", 10911)
    assert str(Address.parse("[::1]:10911")) == "[::1]:10911"


def test_tls_is_used_if_it_is_given(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(key), "-out",
         str(certificate), "-days", "2", "-subj", "/CN=localhost", "-addext",
         "subjectAltName=IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    of_server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    of_server.load_cert_chain(certificate, key)
    trusting = ssl.create_default_context(cafile=str(certificate))

    with client_of(answering(b"safe"), of_server=of_server, tls=trusting) as client:
        assert client.request(28).body == b"safe"
    refused = pytest.raises(BrokerUnreachableError, match="certificate")
    with refused, client_of(answering(), of_server=of_server, tls=ssl.create_default_context()):
        pass
