"""The followed broker: its identity, its settings and the bounds of its log."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from rmqstore.errors import (
    BrokerUnreachableError,
    CorruptConfigError,
    StoreStateError,
    UnsupportedFeatureError,
)
from rmqstore.remoting import Address, Endpoint
from rmqstore.replica.broker_requests import (
    TOPICS,
    BrokerClient,
    LogBounds,
    PackedTable,
    ServedSettings,
)
from rmqstore.storage.broker.config_files import BATCH_QUEUES, MAX_TABLE_BYTES, QUEUE_TYPE, table_of
from rmqstore.storage.broker.identity import MASTER_ID
from rmqstore.storage.broker.store_config import StoreConfig

HEARTBEAT_MS: Final = 5000
HOUSEKEEPING_MS: Final = 20_000
_LEAST_HOUSEKEEPING_MS: Final = 1000
_LONGEST_MS: Final = 60_000
_DEFAULT_FILE_BYTES: Final = 1 << 30
_MAX_FILE_BYTES: Final = (1 << 31) - 1
_MIN_FILE_BYTES: Final = 1 << 12
_FALL_BEHIND_BYTES: Final = 256 << 20  # haSlaveFallbehindMax
_TAGS_IN_INDEX: Final = (5, 4)
_FIRST_LEARNERS: Final = (5, 1, 1)  # that give their id as later versions do
MAX_PARSED_BYTES: Final = 1 << 20  # a parsed table may take forty times as much memory
_TOPIC_TABLE: Final = re.compile(r'"topicConfigTable"\s*:\s*\{')
_NEXT_NAME: Final = re.compile(r'[\s,]*"([^"\\]*)"\s*:\s*')  # no name needs an escape

Mode = Literal["default", "controller"]


@dataclass(frozen=True, slots=True)
class ListenPort:
    """The listen port of a broker.

    All questions raise BrokerUnreachableError if the broker does not answer, and BrokerRefusedError
    if it refuses; a later attempt may succeed after the first one only.

    Attributes:
        endpoint: the port.
        ha_address: where the broker serves replicas, None as it says itself.
        allow_sync_master: a SYNC_MASTER of RocketMQ 4 is not refused.
        acknowledges: whether the follower acknowledges what it has.
    """

    endpoint: Endpoint
    ha_address: Address | None = None
    allow_sync_master: bool = False
    acknowledges: bool = False

    def ask(self) -> Facts:
        """Return everything that is reported."""
        asked_at = time.monotonic()
        with BrokerClient(self.endpoint) as broker:
            settings = broker.settings()
            tables = broker.tables()
            return Facts(settings, tables, broker.bounds(), asked_at, time.monotonic())

    def source(self, settings: ServedSettings) -> Source:
        """Return the broker that settings describe.

        Raises:
            UnsupportedFeatureError: its log is replicated in another way.
            StoreStateError: a follower would harm it, or it does not report what is needed.
            BrokerUnreachableError: it is not a master in controller mode now, and may become one.
        """
        name = str(self.endpoint.address)
        if settings.is_on("enableDLegerCommitLog"):
            raise UnsupportedFeatureError(
                f"{name} keeps a DLedger log, which is replicated by Raft: "
                "copy a backup or a snapshot of its disk (rmqstore copy)"
            )
        is_controlled = settings.is_on("enableControllerMode")
        if is_controlled:
            _require_learners(settings, name, acknowledges=self.acknowledges)
            require_master(settings, name)
        if settings.is_on("duplicationEnable"):
            raise UnsupportedFeatureError(f"{name} has duplicationEnable and serves no replicas")
        least_overlap = 0
        if settings.text("brokerRole") == "SYNC_MASTER" and settings.version[:1] < (5,):
            if not self.allow_sync_master:
                raise StoreStateError(
                    f"{name} is a SYNC_MASTER of RocketMQ 4: without another replica, producers "
                    "would wait for a follower until they time out. Follow its slave, or allow "
                    "it with `allow_sync_master=True`"
                )
            least_overlap = settings.number("haSlaveFallbehindMax", _FALL_BEHIND_BYTES)
        file_size = settings.number("mappedFileSizeCommitLog", _DEFAULT_FILE_BYTES)
        if not _MIN_FILE_BYTES <= file_size <= _MAX_FILE_BYTES:
            raise StoreStateError(f"{name} says that files of its log have {file_size} bytes")
        cluster, broker = settings.text("brokerClusterName"), settings.text("brokerName")
        if not broker or not settings.text("brokerRole"):
            raise StoreStateError(f"{name} does not report its name and role: it is not a broker")
        ha_address = self.ha_address or _ha_address_of(settings, self.endpoint)
        config = StoreConfig(index_tags=settings.version >= _TAGS_IN_INDEX).updated(settings.given)
        store_type = settings.text("storeType")
        return Source(
            cluster, broker, file_size, ha_address, config, store_type, least_overlap,
            heartbeat=_bounded(settings.number("haSendHeartbeatInterval", HEARTBEAT_MS), 1),
            housekeeping=_bounded(
                settings.number("haHousekeepingInterval", HOUSEKEEPING_MS), _LEAST_HOUSEKEEPING_MS
            ),
            mode="controller" if is_controlled else "default",
        )  # fmt: skip

    def require_master(self) -> None:
        """Refuse a broker in controller mode that is now not the master of its group."""
        with BrokerClient(self.endpoint) as broker:
            settings = broker.settings()
        require_master(settings, str(self.endpoint.address))


class TopicKinds(NamedTuple):
    """The topics with BatchConsumeQueues, and those that are known to have others."""

    batch: frozenset[str] = frozenset()
    plain: frozenset[str] = frozenset()


class Facts(NamedTuple):
    """What a broker reported at one moment.

    Attributes:
        settings: its settings.
        tables: its tables by file.
        bounds: where its log begins and ends; asked for after the tables, so a copy that has come
            as far has all that the tables speak of.
        asked_at: monotonic time before the tables were asked for.
        reported_at: monotonic time after the last answer.
        kinds: of the topics in the tables.
    """

    settings: ServedSettings
    tables: dict[str, PackedTable]
    bounds: LogBounds
    asked_at: float
    reported_at: float
    kinds: TopicKinds = TopicKinds()

    def kept_once(self, before: Facts | None) -> Facts:
        """Return the same, with the tables of the time before where these did not change."""
        old = {} if before is None else before.tables
        tables = {
            name: old[name] if old.get(name) == table else table
            for name, table in self.tables.items()
        }
        topics = tables.get(TOPICS)
        if before is not None and topics is old.get(TOPICS):
            return self._replace(tables=tables, kinds=before.kinds)
        are_batch = batch_topics_of(b"" if topics is None else topics.content)
        batch = frozenset(topic for topic, is_batch in are_batch.items() if is_batch)
        return self._replace(tables=tables, kinds=TopicKinds(batch, frozenset(are_batch) - batch))


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


def _bounded(interval_ms: int, least_ms: int) -> float:
    """Return an interval of a broker in seconds, no longer than a follower can wait."""
    return min(max(interval_ms, least_ms), _LONGEST_MS) / 1000


def _ha_address_of(settings: ServedSettings, endpoint: Endpoint) -> Address:
    """Return where a broker serves replicas; raises StoreStateError if it does not say."""
    port = settings.number("haListenPort", 0)
    if not 1 <= port < 1 << 16:
        raise StoreStateError(
            f"{endpoint.address} does not report its HA port (haListenPort {port}): give it "
            "with `ha_address`"
        )
    return Address(endpoint.address.host, port)


def _require_learners(settings: ServedSettings, name: str, *, acknowledges: bool) -> None:
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
            f"{name} is in controller mode, where a follower is a learner: its "
            "acknowledgements would let producers rely on a replica that cannot become the "
            "master. Leave out `acknowledge`"
        )


def require_master(settings: ServedSettings, name: str) -> None:
    """Refuse a broker in controller mode that is not the master of its group.

    A slave serves replicas as well, but it cuts its log where it differs from a new master's while
    the connection continues. Before a master is demoted, it closes all connections.

    Raises:
        BrokerUnreachableError: it is not the master.

    Source: ReplicasManager.java#changeToMaster, #changeToSlave; AutoSwitchHAClient.java#doTruncate.
    """
    is_master = settings.number("brokerId", -1) == MASTER_ID
    if not is_master or settings.text("brokerRole") == "SLAVE":
        raise BrokerUnreachableError(
            name,
            "it is now not the master of its group in controller mode, and only the master is "
            "followed; a name server knows who it is",
        )


def batch_topics_of(content: bytes) -> dict[str, bool]:
    """Return the topics in the table of a broker, and whether each has BatchConsumeQueues."""
    if len(content) > MAX_TABLE_BYTES:  # no reader of stores takes it either
        return {}
    topics: Any
    if len(content) > MAX_PARSED_BYTES:
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
    """Yield the topics of a table and their entries, one by one, as far as it is valid."""
    table = _TOPIC_TABLE.search(text)
    position = table.end() if table else len(text)
    decoder = json.JSONDecoder()
    while (name := _NEXT_NAME.match(text, position)) is not None:
        try:
            entry, position = decoder.raw_decode(text, name.end())
        except (ValueError, RecursionError):
            return
        yield name[1], entry
