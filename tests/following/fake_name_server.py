"""A name server in a thread that answers which brokers are registered."""

from __future__ import annotations

import json

from fake_server import FakeServer, Reply, Request


class FakeNameServer(FakeServer):
    """Answers from ``brokers``, which may be changed while it does.

    Attributes:
        brokers: by name: cluster, and addresses by broker id.
        code: of the answers.
    """

    def __init__(self, brokers: dict[str, tuple[str, dict[int, str]]] | None = None) -> None:
        self.brokers = brokers or {}
        self.code = 0
        super().__init__()

    def answer(self, request: Request) -> Reply:
        assert request.code == 106
        return Reply(self.code, body=b"" if self.code else self.body(), remark="why")

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
