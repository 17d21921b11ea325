"""The broker that is followed: who it is, whether it can be followed, and what it tells."""

from __future__ import annotations

import time
from typing import Any, Final, NamedTuple

from rmqstore.copying.following.remoting.broker import Bounds, Broker, BrokerSettings
from rmqstore.copying.following.remoting.client import Address, Endpoint, RemotingClient
from rmqstore.errors import (
    Argument,
    CorruptConfigError,
    StoreStateError,
    Text,
    UnsupportedFeatureError,
)
from rmqstore.storage.broker.config_files import (
    BATCH_QUEUES,
    MAX_TABLE_BYTES,
    QUEUE_TYPE,
    table_of,
)
from rmqstore.storage.broker.store_config import StoreConfig

_DEFAULT_FILE_BYTES: Final = 1 << 30
_MAX_FILE_BYTES: Final = (1 << 31) - 1
_MIN_FILE_BYTES: Final = 1 << 12
_FALL_BEHIND_BYTES: Final = 256 << 20  # haSlaveFallbehindMax
_TAGS_IN_INDEX: Final = (5, 4)


class Facts(NamedTuple):
    """What a broker told at one moment.

    Attributes:
        settings: its settings.
        tables: its tables by file, {} if they were not asked for.
        bounds: where its log begins and ends; asked for after the tables, so a copy that has come
            as far has all that the tables speak of.
        asked_at: monotonic time before the tables were asked for.
        told_at: monotonic time after the last answer.
    """

    settings: BrokerSettings
    tables: dict[str, bytes]
    bounds: Bounds
    asked_at: float
    told_at: float


def ask(endpoint: Endpoint, *, with_tables: bool) -> Facts:
    """Ask a broker, on a connection of its own.

    Raises:
        BrokerUnreachableError: it does not answer; a later attempt may succeed.
        BrokerRefusedError: it refused.
    """
    asked_at = time.monotonic()
    with RemotingClient(endpoint) as client:
        broker = Broker(client, str(endpoint.address))
        settings = broker.settings()
        tables = broker.tables() if with_tables else {}
        return Facts(settings, tables, broker.bounds(), asked_at, time.monotonic())


def ask_bounds(endpoint: Endpoint) -> Bounds:
    """Return where the log of a broker begins and ends; raises as :func:`ask` does."""
    with RemotingClient(endpoint) as client:
        return Broker(client, str(endpoint.address)).bounds()


class Source(NamedTuple):
    """A broker that can be followed.

    Attributes:
        cluster: name of its cluster.
        broker: its name.
        file_size: bytes of each file of its log.
        ha_address: where it serves replicas.
        config: sizes of its other files, and what it indexes.
        store_type: how it keeps its queues.
        least_overlap: how far before the end of its log a request has to begin.
    """

    cluster: str
    broker: str
    file_size: int
    ha_address: Address
    config: StoreConfig
    store_type: str
    least_overlap: int


def source_of(
    settings: BrokerSettings,
    endpoint: Endpoint,
    ha_address: Address | None,
    *,
    allow_sync_master: bool,
) -> Source:
    """Return the source that the settings of a broker describe.

    Raises:
        UnsupportedFeatureError: its log is replicated in another way.
        StoreStateError: a follower would harm it, or it does not tell what is needed.
    """
    name = str(endpoint.address)
    if settings.is_on("enableDLegerCommitLog"):
        raise UnsupportedFeatureError(
            f"{name} keeps a DLedger log, which is replicated by Raft: "
            "copy a backup or a snapshot of its disk (rmqstore copy)"
        )
    if settings.is_on("enableControllerMode"):
        raise UnsupportedFeatureError(
            f"{name} is in controller mode, whose port for replicas speaks another protocol: "
            "copy its store (rmqstore copy)"
        )
    if settings.is_on("duplicationEnable"):
        raise UnsupportedFeatureError(f"{name} has duplicationEnable and serves no replicas")
    least_overlap = 0
    if settings.text("brokerRole") == "SYNC_MASTER" and settings.version[:1] < (5,):
        if not allow_sync_master:
            raise StoreStateError(
                Text(
                    f"{name} is a SYNC_MASTER of RocketMQ 4: without another replica, producers "
                    "would wait for a follower until they time out. Follow its slave, or allow it "
                    "with ",
                    Argument("allow_sync_master", value=True),
                )
            )
        least_overlap = settings.number("haSlaveFallbehindMax", _FALL_BEHIND_BYTES) or 0
    file_size = settings.number("mappedFileSizeCommitLog", _DEFAULT_FILE_BYTES) or 0
    if not _MIN_FILE_BYTES <= file_size <= _MAX_FILE_BYTES:
        raise StoreStateError(f"{name} says that files of its log have {file_size} bytes")
    cluster, broker = settings.text("brokerClusterName"), settings.text("brokerName")
    if not broker or not settings.text("brokerRole"):
        raise StoreStateError(f"{name} does not tell its name and role: it is not a broker")
    if ha_address is None:
        port = settings.number("haListenPort") or 0
        if not 1 <= port < 1 << 16:
            raise StoreStateError(
                Text(
                    f"{name} does not tell its port for replicas (haListenPort {port}): give it "
                    "with ",
                    Argument("ha_address"),
                )
            )
        ha_address = Address(endpoint.address.host, port)
    config = StoreConfig(index_tags=settings.version >= _TAGS_IN_INDEX).updated(settings.given)
    store_type = settings.text("storeType")
    return Source(cluster, broker, file_size, ha_address, config, store_type, least_overlap)


def batch_topics_of(tables: dict[str, bytes]) -> dict[str, bool]:
    """Return the topics in the tables of a broker, and whether each has BatchConsumeQueues."""
    content = tables.get("topics.json", b"")
    if len(content) > MAX_TABLE_BYTES:  # no reader of stores takes it either
        return {}
    try:
        topics: Any = table_of(content).get("topicConfigTable")
    except CorruptConfigError:
        return {}
    if not isinstance(topics, dict):
        return {}
    return {
        topic: isinstance(entry, dict)
        and isinstance(entry.get("attributes"), dict)
        and entry["attributes"].get(QUEUE_TYPE) == BATCH_QUEUES
        for topic, entry in topics.items()
    }
