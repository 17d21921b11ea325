"""The broker that is followed: who it is, whether it can be followed, and what it tells."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from typing import Any, Final, Literal, NamedTuple

from rmqstore.copying.following.remoting.broker import Bounds, Broker, BrokerSettings
from rmqstore.copying.following.remoting.client import Address, Endpoint, RemotingClient
from rmqstore.copying.following.remoting.held_table import HeldTable
from rmqstore.errors import (
    Argument,
    BrokerUnreachableError,
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
from rmqstore.storage.broker.identity import MASTER_ID
from rmqstore.storage.broker.store_config import StoreConfig

HEARTBEAT_MS: Final = 5000
HOUSEKEEPING_MS: Final = 20_000
_LEAST_HOUSEKEEPING_MS: Final = 1000
_LONGEST_MS: Final = 60_000
_DEFAULT_FILE_BYTES: Final = 1 << 30
MAX_FILE_BYTES: Final = (1 << 31) - 1
MIN_FILE_BYTES: Final = 1 << 12
_FALL_BEHIND_BYTES: Final = 256 << 20  # haSlaveFallbehindMax
_TAGS_IN_INDEX: Final = (5, 4)
_FIRST_LEARNERS: Final = (5, 1, 1)  # that tell their id as later versions do
_MAX_PARSED_BYTES: Final = 1 << 20  # a parsed table may take forty times as much memory
_TOPIC_TABLE: Final = re.compile(r'"topicConfigTable"\s*:\s*\{')
_NEXT_NAME: Final = re.compile(r'[\s,]*"([^"\\]*)"\s*:\s*')  # no name needs an escape


Mode = Literal["default", "controller"]


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
    tables: dict[str, HeldTable]
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
        heartbeat: seconds after which it sends a heartbeat where there is nothing else to send.
        housekeeping: seconds after which it closes a connection that has not reported.
        mode: how it serves replicas.
    """

    cluster: str
    broker: str
    file_size: int
    ha_address: Address
    config: StoreConfig
    store_type: str
    least_overlap: int
    heartbeat: float
    housekeeping: float
    mode: Mode


def source_of(
    settings: BrokerSettings,
    endpoint: Endpoint,
    ha_address: Address | None,
    *,
    allow_sync_master: bool,
    acknowledges: bool = False,
) -> Source:
    """Return the source that the settings of a broker describe.

    Raises:
        UnsupportedFeatureError: its log is replicated in another way.
        StoreStateError: a follower would harm it, or it does not tell what is needed.
        BrokerUnreachableError: it is not a master in controller mode now, and may become one.
    """
    name = str(endpoint.address)
    if settings.is_on("enableDLegerCommitLog"):
        raise UnsupportedFeatureError(
            f"{name} keeps a DLedger log, which is replicated by Raft: "
            "copy a backup or a snapshot of its disk (rmqstore copy)"
        )
    is_controlled = settings.is_on("enableControllerMode")
    if is_controlled:
        _require_learners(settings, name, acknowledges=acknowledges)
        require_master(settings, name)
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
    if not MIN_FILE_BYTES <= file_size <= MAX_FILE_BYTES:
        raise StoreStateError(f"{name} says that files of its log have {file_size} bytes")
    cluster, broker = settings.text("brokerClusterName"), settings.text("brokerName")
    if not broker or not settings.text("brokerRole"):
        raise StoreStateError(f"{name} does not tell its name and role: it is not a broker")
    if ha_address is None:
        ha_address = _ha_address_of(settings, endpoint)
    config = StoreConfig(index_tags=settings.version >= _TAGS_IN_INDEX).updated(settings.given)
    store_type = settings.text("storeType")
    return Source(
        cluster,
        broker,
        file_size,
        ha_address,
        config,
        store_type,
        least_overlap,
        heartbeat=_bounded(settings.number("haSendHeartbeatInterval", HEARTBEAT_MS), 1),
        housekeeping=_bounded(
            settings.number("haHousekeepingInterval", HOUSEKEEPING_MS), _LEAST_HOUSEKEEPING_MS
        ),
        mode="controller" if is_controlled else "default",
    )


def _bounded(interval_ms: int | None, least_ms: int) -> float:
    """Return an interval of a broker in seconds, no longer than a follower can wait."""
    return min(max(interval_ms or 0, least_ms), _LONGEST_MS) / 1000


def _ha_address_of(settings: BrokerSettings, endpoint: Endpoint) -> Address:
    """Return where a broker serves replicas; raises StoreStateError if it does not tell."""
    port = settings.number("haListenPort") or 0
    if not 1 <= port < 1 << 16:
        raise StoreStateError(
            Text(
                f"{endpoint.address} does not tell its port for replicas (haListenPort {port}): "
                "give it with ",
                Argument("ha_address"),
            )
        )
    return Address(endpoint.address.host, port)


def _require_learners(settings: BrokerSettings, name: str, *, acknowledges: bool) -> None:
    """Refuse a broker in controller mode that cannot be followed as is asked.

    Raises:
        UnsupportedFeatureError: it is too old, or the follower is to acknowledge. Some settings
            count what a learner acknowledges, and no controller makes it a master.
    """
    if settings.version < _FIRST_LEARNERS:
        version = ".".join(map(str, settings.version)) or "unknown"
        raise UnsupportedFeatureError(
            f"{name} is in controller mode, and its version is {version}: followers speak the "
            "protocol of 5.1.1 and later. Copy its store (rmqstore copy)"
        )
    if acknowledges:
        raise UnsupportedFeatureError(
            Text(
                f"{name} is in controller mode, where a follower is a learner: its "
                "acknowledgements would let producers rely on a replica that cannot become the "
                "master. Leave out ",
                Argument("acknowledge"),
            )
        )


def require_master(settings: BrokerSettings, name: str) -> None:
    """Refuse a broker in controller mode that is not the master of its group.

    A slave serves replicas as well, but it cuts its log where it differs from a new master's while
    the connection goes on. Before a master is demoted, it closes all connections.

    Raises:
        BrokerUnreachableError: it is not the master.

    Source: ReplicasManager.java#changeToMaster, #changeToSlave; AutoSwitchHAClient.java#doTruncate.
    """
    is_master = settings.number("brokerId") == MASTER_ID
    if not is_master or settings.text("brokerRole") == "SLAVE":
        raise BrokerUnreachableError(
            name,
            "it is not the master of its group in controller mode by now, and only the master is "
            "followed; a name server knows who it is",
        )


def batch_topics_of(content: bytes) -> dict[str, bool]:
    """Return the topics in the table of a broker, and whether each has BatchConsumeQueues."""
    if len(content) > MAX_TABLE_BYTES:  # no reader of stores takes it either
        return {}
    topics: Any
    if len(content) > _MAX_PARSED_BYTES:
        topics = _entries(content.decode(errors="replace"))
    else:
        try:
            table = table_of(content).get("topicConfigTable")
        except CorruptConfigError:
            return {}
        topics = table.items() if isinstance(table, dict) else ()
    return {
        topic: isinstance(entry, dict)
        and isinstance(entry.get("attributes"), dict)
        and entry["attributes"].get(QUEUE_TYPE) == BATCH_QUEUES
        for topic, entry in topics
    }


def _entries(text: str) -> Iterator[tuple[str, Any]]:
    """Yield the topics of a table and their entries, one by one, as far as it is sound."""
    table = _TOPIC_TABLE.search(text)
    place = table.end() if table else len(text)
    decoder = json.JSONDecoder()
    while (name := _NEXT_NAME.match(text, place)) is not None:
        try:
            entry, place = decoder.raw_decode(text, name.end())
        except (ValueError, RecursionError):
            return
        yield name[1], entry
