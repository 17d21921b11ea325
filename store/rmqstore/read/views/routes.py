"""View ``routes``: what a name server answers for each topic, as far as the stores show.

A name server keeps what brokers register: the entries of their topics, and their addresses. The
entries are those of ``config/topics.json``. An address is in a store only with ``broker.conf``.

Source: RouteInfoManager.java, BrokerController.java#registerBrokerAll, TopicConfig.java.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from rmqstore.errors import RmqStoreError
from rmqstore.query.selection import choose_topics
from rmqstore.read.store_parts import StoreParts
from rmqstore.read.views.rows import Row
from rmqstore.read.views.schema import ViewSpec
from rmqstore.read.views.stores import Broker, brokers_of
from rmqstore.storage.broker.config_files import TOPICS, warn_if_unknown
from rmqstore.storage.broker.identity import READ_AND_WRITE
from rmqstore.storage.broker.topic_table import topic_entry

WRITABLE: Final = 2  # Source: PermName.java
READABLE: Final = 4


def route_rows(sources: Sequence[StoreParts], spec: ViewSpec) -> Iterator[Row]:
    """Yield a row for each broker and topic, in the order of the brokers.

    Raises:
        OptionError: stores of one broker name are not replicas of each other.
    """
    brokers = brokers_of(sources)
    for broker in brokers:
        broker.require_valid()
    rows = [row for broker in brokers for row in _routes(broker, spec)]
    ordered: dict[object, list[str]] = {}
    for row in sorted(rows, key=lambda row: str(row["brokerName"])):
        if row.get("order"):
            part = f"{row['brokerName']}:{row['writeQueueNums']}"
            ordered.setdefault(row["topic"], []).append(part)
    for row in rows:
        parts = ordered.get(row.get("topic"))
        if parts:
            row["orderTopicConf"] = ";".join(parts)
        yield row


def _routes(broker: Broker, spec: ViewSpec) -> Iterator[dict[str, object]]:
    # A name server has the topics of the master, or else those of the first replica.
    registered = broker.chosen
    if not broker.chosen.epochs:
        known = [member for member in broker.members if member.identity.broker_id is not None]
        registered = min(
            known, key=lambda member: member.identity.broker_id or 0, default=broker.chosen
        )
    identity = registered.identity
    addresses: list[tuple[str, str | None]] | None = None
    identities = [member.identity for member in broker.members]
    known_ids = {
        known.broker_id: known.address for known in identities if known.broker_id is not None
    }
    # With a controller the master has id 0, whatever its own is, and no file shows who is the
    # master. Then there are no addresses, as where no id is known.
    if known_ids and not any(member.has_controller for member in broker.members):
        addresses = [(str(number), known_ids[number]) for number in sorted(known_ids)]
    common: dict[str, object] = {
        "brokerName": broker.name,
        "clusterName": identity.cluster,
        "brokerAddrs": addresses,
    }
    try:
        entries = registered.source.config.topic_entries()
    except RmqStoreError as err:
        yield common | {"reason": str(err)}
        return
    if not entries:
        warn_if_unknown(registered.source.paths, TOPICS)
    is_limited = identity.permission & READ_AND_WRITE != READ_AND_WRITE
    mask = identity.permission if is_limited else ~0
    if identity.is_acting_master and identity.broker_id:  # there is no master
        mask &= ~WRITABLE
    own_topics = {broker.name, identity.cluster} - spec.selection.named_topics
    if spec.selection.include_system_topics:
        own_topics = set()
    for topic in choose_topics(spec.selection, sorted(entries.keys() - own_topics)):
        row = {**common, "topic": topic}
        try:
            fields = topic_entry(entries[topic])
        except ValueError as err:
            yield row | {"reason": str(err)}
            continue
        yield row | {
            "readQueueNums": fields.read_queue_nums,
            "writeQueueNums": fields.write_queue_nums,
            "perm": fields.perm & mask,
            # a broker that takes permissions away leaves out the flag when it registers all topics
            "topicSysFlag": 0 if is_limited else fields.topic_sys_flag,
            "order": fields.order,
        }
