"""A name server in a thread that answers which brokers are registered."""

from __future__ import annotations

import json
import socket
import struct
import threading
from contextlib import suppress
from typing import Self

from following.fake_master import exactly


class FakeNameServer:
    """Answers from ``brokers``, which may be changed while it does.

    Attributes:
        brokers: by name: cluster, and addresses by broker id.
        n_asked: the requests so far.
        code: of the answers.
    """

    def __init__(self, brokers: dict[str, tuple[str, dict[int, str]]] | None = None) -> None:
        self.brokers = brokers or {}
        self.n_asked = self.code = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def body(self) -> bytes:
        """Return the list as fastjson writes it, with keys that are not quoted."""
        entries = []
        clusters: dict[str, list[str]] = {}
        for name, (cluster, addresses) in self.brokers.items():
            listed = ",".join(f'{number}:"{address}"' for number, address in addresses.items())
            entries.append(
                f'"{name}":{{"brokerAddrs":{{{listed}}},"brokerName":"{name}",'
                f'"cluster":"{cluster}","enableActingMaster":false}}'
            )
            clusters.setdefault(cluster, []).append(name)
        table = f'{{"brokerAddrTable":{{{",".join(entries)}}},'
        return f'{table}"clusterAddrTable":{json.dumps(clusters)}}}'.encode()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with suppress(OSError, ValueError), connection:
                length = struct.unpack(">i", exactly(connection, 4))[0]
                frame = exactly(connection, length)
                size = struct.unpack(">i", frame[:4])[0]
                request = json.loads(frame[4 : 4 + size])
                assert request["code"] == 106
                self.n_asked += 1
                header = json.dumps(
                    {"code": self.code, "flag": 1, "opaque": request["opaque"], "remark": "why"}
                ).encode()
                body = b"" if self.code else self.body()
                connection.sendall(
                    struct.pack(">ii", 4 + len(header) + len(body), len(header)) + header + body
                )
