"""What a name server is asked: which brokers there are.

Source: RouteInfoManager.java#getAllClusterInfo, ClusterInfo.java.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

from rmqstore.copying.following.remoting.client import Address, Endpoint, RemotingClient
from rmqstore.errors import (
    BrokerRefusedError,
    BrokerUnreachableError,
    CorruptConfigError,
    OptionError,
)
from rmqstore.storage.broker.config_files import MAX_TABLE_BYTES, integer, table_of
from rmqstore.storage.broker.identity import MASTER_ID
from rmqstore.storage.files.paths import can_name_queues

_GET_CLUSTER_INFO: Final = 106
_SUCCESS: Final = 0
_MOST_WARNINGS: Final = 1000  # that are remembered

logger = logging.getLogger(__name__)


class RegisteredBroker(NamedTuple):
    """A broker as a name server knows it: one name, and an address for each of its replicas."""

    name: str
    cluster: str
    addresses: Mapping[int, Address]

    def address(self, current: Address | None, *, prefers_slave: bool) -> Address | None:
        """Return where the broker is followed, None if nobody there can be.

        Args:
            current: where it is followed now. A slave is kept as long as it is registered.
            prefers_slave: take a slave if there is one.
        """
        slaves = [self.addresses[each] for each in sorted(self.addresses) if each != MASTER_ID]
        if prefers_slave and slaves:
            return current if current in slaves else slaves[0]
        return self.addresses.get(MASTER_ID)


def registered_brokers(endpoint: Endpoint) -> list[RegisteredBroker]:
    """Ask a name server for all brokers that are registered, sorted by their names.

    Anybody can register a broker. One that cannot be copied is left out, with a warning.

    Raises:
        BrokerUnreachableError: it did not answer.
        BrokerRefusedError: it refused.
    """
    name = str(endpoint.address)
    with RemotingClient(endpoint) as client:
        answer = client.request(_GET_CLUSTER_INFO)
    if answer.code != _SUCCESS:
        raise BrokerRefusedError(name, answer.code, answer.remark)
    if len(answer.body) > MAX_TABLE_BYTES:
        raise BrokerUnreachableError(name, f"an answer of {len(answer.body)} bytes")
    try:
        entries = sorted((table_of(answer.body).get("brokerAddrTable") or {}).items())
    except (CorruptConfigError, ValueError, TypeError, AttributeError) as err:
        raise BrokerUnreachableError(name, f"the list of brokers cannot be read: {err}") from err
    brokers = []
    for broker, entry in entries:
        try:
            brokers.append(_broker(broker, entry))
        except (OptionError, ValueError, TypeError, AttributeError) as err:
            _warn_once(f"{name}: broker {broker!r} is not followed: {err}")
    return brokers


@lru_cache(maxsize=_MOST_WARNINGS)
def _warn_once(text: str) -> None:
    logger.warning("%s", text)


def _broker(name: str, entry: Any) -> RegisteredBroker:  # noqa: ANN401 - any JSON
    """Return one broker of the answer.

    Raises:
        ValueError, TypeError, AttributeError, OptionError: it is not one that could be copied.
    """
    if not can_name_queues(name) or name.startswith("."):
        raise ValueError(f"{name!r} cannot be the name of a folder")
    addresses = {
        integer(broker_id): Address.parse(str(address))
        for broker_id, address in (entry.get("brokerAddrs") or {}).items()
    }
    return RegisteredBroker(name, str(entry.get("cluster") or ""), addresses)
