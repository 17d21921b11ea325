"""The running brokers of a cluster, as name servers know them, and where a selection of them lies.

Source: DefaultRequestProcessor.java; RouteInfoManager.java; TopicRouteData.java; QueueData.java.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, Final, NamedTuple

from rmqstore.errors import (
    BrokerRefusedError,
    BrokerUnreachableError,
    CorruptConfigError,
    OffsetOutOfRangeError,
    OptionError,
    UnsupportedFeatureError,
)
from rmqstore.format.layout import LMQ_PREFIX
from rmqstore.live.bounds import (
    Spans,
    bounds_of_withdrawn,
    first_offsets,
    resolver_for,
    search_times,
)
from rmqstore.live.broker import LiveBroker, LiveServer
from rmqstore.live.location import LiveLocation
from rmqstore.live.patience import is_passing
from rmqstore.query.conditions import NO_PRUNING, Between, Pruning
from rmqstore.query.damage import READS_ON
from rmqstore.query.selection import Selection, choose_topics, require_named
from rmqstore.remoting import Address, Answer, RequestCode, ResponseCode
from rmqstore.spans import QueueKey, QueueSlice
from rmqstore.storage.broker.config_files import MAX_TABLE_BYTES, integer, table_of
from rmqstore.storage.broker.identity import MASTER_ID
from rmqstore.storage.files.storage import Closing

logger = logging.getLogger(__name__)

_ANSWERS: Final = (ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST)
_SPARE_SECONDS: Final = 3.0  # for which one of several name servers may be busy
_READABLE: Final = 4  # PermName.java
_WRITABLE: Final = 2
_SILENT_SECONDS: Final = 60.0  # for which a name server that did not answer is passed over
_MOST_QUEUES: Final = 1 << 16  # of a topic at one broker, as far as a route is believed
_MOST_BEYOND: Final = 1024  # queues of a topic that are looked for after those that it has
_MOST_NAMED: Final = 20  # queues in one text
_CLEANUP: Final = "cleanup.policy"
_COMPACTION: Final = "COMPACTION"


class BrokerQueues(NamedTuple):
    """The queues of a topic at one broker.

    Attributes:
        read: how many queues may be read, those with the ids from 0 on; 0 without the right.
        write: how many may be written to; 0 without the right.
    """

    read: int
    write: int


class TopicRoute(NamedTuple):
    """Where the queues of a topic are.

    Attributes:
        addresses: by broker name, the addresses of its replicas by broker id.
        queues: by broker name.
        ordered: the brokers that the topic has by its order configuration, if it has one, also
            those that no name server knows at the moment.
    """

    addresses: Mapping[str, Mapping[int, Address]]
    queues: Mapping[str, BrokerQueues]
    ordered: frozenset[str] = frozenset()

    def with_other(self, other: TopicRoute) -> TopicRoute:
        """Return the route with what another name server knows of it."""
        addresses = {name: {**replicas} for name, replicas in self.addresses.items()}
        for name, replicas in other.addresses.items():
            addresses.setdefault(name, {}).update(replicas)
        queues = {**self.queues}
        for name, counts in other.queues.items():
            queues[name] = BrokerQueues(*map(max, counts, queues.get(name, counts)))
        return TopicRoute(addresses, queues, self.ordered | other.ordered)


class NameServers:
    """The name servers of a cluster, which know nothing of one another.

    Each hears of brokers by itself, and one that has only just started has not heard of all. So
    all of them are asked, and what they say is put together.
    """

    def __init__(self, location: LiveLocation) -> None:
        self._location = location
        self._silent: dict[Address, float] = {}  # when each failed to answer
        self._failures: list[BrokerUnreachableError] = []  # of those that were asked last
        self._unanswered: set[int] = set()  # what one of them could not say for now

    def topics(self) -> list[str]:
        """Return every topic that a name server knows, sorted.

        Raises:
            BrokerUnreachableError: no name server answered, or what came is not a list.
            BrokerRefusedError: a name server refused.
        """
        known: set[str] = set()
        for _, answer in self._ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, [{}]):
            topics = self._table(answer).get("topicList")
            if not isinstance(topics, list) or not all(map(_is_name, topics)):
                raise self._failure("the list of topics cannot be read")
            known.update(topics)
        return sorted(known)

    def routes(self, topics: Sequence[str], *, are_listed: bool = False) -> dict[str, TopicRoute]:
        """Return the brokers of topics' queues, without topics that no broker has.

        Args:
            topics: the topics.
            are_listed: whether name servers have just listed them.

        Raises:
            BrokerUnreachableError: no name server answered, or not the one that has listed a topic,
                or what came is not a route.
            BrokerRefusedError: a name server refused.
            UnsupportedFeatureError: the queues are logical ones, mapped on those of several
                brokers.
        """
        asked = [{"topic": topic, "acceptStandardJsonOnly": "true"} for topic in topics]
        routes: dict[str, TopicRoute] = {}
        for number, answer in self._ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, asked):
            topic = topics[number]
            route = self._route(topic, answer)
            routes[topic] = routes[topic].with_other(route) if topic in routes else route
        missing = [
            topic
            for number, topic in enumerate(topics)
            if topic not in routes and (are_listed or number in self._unanswered)
        ]
        if missing and self._failures:
            reasons = "; ".join(map(str, self._failures))
            raise self._failure(f"no route of {', '.join(missing)}: {reasons}")
        return {topic: routes[topic] for topic in topics if topic in routes}

    def _route(self, topic: str, answer: Answer) -> TopicRoute:
        table = self._table(answer)
        if table.get("topicQueueMappingByBroker"):
            raise UnsupportedFeatureError(
                f"{topic} is a static topic, whose logical queues are mapped on those of "
                "several brokers: read the brokers' stores"
            )
        try:
            return _route(table)
        except (OptionError, ValueError, TypeError, AttributeError, KeyError) as err:
            raise self._failure(f"the route of {topic} cannot be read: {err}") from err

    def _table(self, answer: Answer) -> dict[str, Any]:
        if len(answer.body) > MAX_TABLE_BYTES:
            raise self._failure(f"an answer of {len(answer.body)} bytes")
        try:
            return table_of(answer.body)
        except CorruptConfigError as err:
            raise self._failure(err.reason) from err

    def _failure(self, reason: str) -> BrokerUnreachableError:
        return BrokerUnreachableError(str(self._location), reason)

    def _ask(self, code: int, asked: Sequence[Mapping[str, str]]) -> Iterator[tuple[int, Answer]]:
        """Yield what name servers know, with the numbers of the requests.

        Those that did not answer a while ago are asked if no other one answers.
        """
        now = time.monotonic()
        silent = [
            address for address, since in self._silent.items() if now - since < _SILENT_SECONDS
        ]
        has_answered = False
        known = set[int]()
        errors = self._failures = []
        self._unanswered = set()
        for address in sorted(self._location.name_servers, key=silent.count):
            if address in silent and has_answered:
                continue
            try:
                for number, answer in self._ask_one(address, code, asked):
                    known.add(number)
                    yield number, answer
            except BrokerUnreachableError as err:
                if address not in self._silent:
                    logger.warning("topics that only this name server knows are not read: %s", err)
                self._silent[address] = now
                errors.append(err)
                continue
            self._silent.pop(address, None)
            has_answered = True
        if has_answered or len(known) == len(asked):
            return
        if len(errors) == 1:
            raise errors[0]
        reasons = "; ".join(map(str, errors))
        raise self._failure(f"no name server answers: {reasons}")

    def _ask_one(
        self, address: Address, code: int, asked: Sequence[Mapping[str, str]]
    ) -> Iterator[tuple[int, Answer]]:
        """Yield the routes that one name server knows, and note those that it cannot give now.

        Raises:
            BrokerUnreachableError: it does not answer, or cannot say anything for now.
            BrokerRefusedError: it refuses.
        """
        unanswered = {*range(len(asked))}
        is_spare = len(self._location.name_servers) > 1
        patience = _SPARE_SECONDS if is_spare else None
        with LiveServer(address, self._location, patience=patience) as server:
            answers = chain.from_iterable(server.rounds(code, asked, allowed=_ANSWERS))
            try:
                for number, answer in answers:
                    unanswered.discard(number)
                    if answer.code == ResponseCode.SUCCESS:
                        yield number, answer
            except BrokerRefusedError as err:
                if err.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                    raise BrokerRefusedError(
                        str(address),
                        err.code,
                        f"{err.reason.strip()}. It is not a name server, but perhaps a broker or a "
                        "proxy: name servers are given, whose port is 9876 by default; of a proxy, "
                        "which has no list of topics, also the topics",
                    ) from err
                if not is_passing(err.code, err.reason):
                    raise
                self._unanswered |= unanswered
                failure = BrokerUnreachableError(str(address), err.reason)
                if len(unanswered) == len(asked):
                    raise failure from err
                self._failures.append(failure)


def _route(table: Mapping[str, Any]) -> TopicRoute:
    """Return the route in an answer.

    Raises:
        ValueError, TypeError, AttributeError, KeyError, OptionError: it is not one.
    """
    addresses: dict[str, dict[int, Address]] = {}
    entries = [*(table.get("brokerDatas") or []), *(table.get("queueDatas") or [])]
    if not all(_is_name(entry["brokerName"]) for entry in entries):
        raise ValueError("it names no brokers")
    for entry in table.get("brokerDatas") or []:
        replicas = addresses.setdefault(str(entry["brokerName"]), {})
        for number, address in (entry.get("brokerAddrs") or {}).items():
            try:
                replicas[integer(number)] = Address.reported(str(address))
            except OptionError:
                if integer(number) == MASTER_ID:  # no other replica is talked to
                    raise
    if not table.get("queueDatas"):
        raise ValueError("it names no queues")
    queues: dict[str, BrokerQueues] = {}
    for entry in table["queueDatas"]:
        permissions = integer(entry["perm"])
        counts = []
        for bit, name in ((_READABLE, "readQueueNums"), (_WRITABLE, "writeQueueNums")):
            count = integer(entry[name])
            if not 0 <= count <= _MOST_QUEUES:
                raise ValueError(f"{name} {count}")
            counts.append(count if permissions & bit else 0)
        queues[str(entry["brokerName"])] = BrokerQueues(*counts)
    parts = str(table.get("orderTopicConf") or "").split(";")  # broker-a:8;broker-b:8
    ordered = frozenset(filter(_is_name, (part.rpartition(":")[0].strip() for part in parts)))
    return TopicRoute(addresses, queues, ordered)


def _is_name(value: object) -> bool:
    """Return whether a value names a topic or a broker, by which a terminal is not deceived."""
    return isinstance(value, str) and value != "" and value.isprintable()


class BrokerSpans(NamedTuple):
    """The queues of a selection at one broker, and where each begins and ends.

    Attributes:
        broker: the broker.
        spans: of the queues that it serves.
        withdrawn: of queues that hold messages, and that it lets nobody read: the topic had more
            queues to read once, or gets them later.
    """

    broker: LiveBroker
    spans: Spans
    withdrawn: Spans


class _BrokersQueues(NamedTuple):
    """The chosen queues of one broker.

    Attributes:
        served: those that may be read.
        unserved: those that may be written to, and not be read.
        beyond: of each topic the first one after these, which it may have had once.
    """

    served: list[QueueKey]
    unserved: list[QueueKey]
    beyond: list[QueueKey]


def _within(bounds: Spans, offsets: Between) -> Spans:
    """Return the parts of ranges that have these queue offsets, without empty ones."""
    low, high = offsets.low, offsets.high + 1
    parts = {key: (max(at, low), min(to, high)) for key, (at, to) in bounds.items()}
    return {key: part for key, part in parts.items() if part[0] < part[1]}


class LiveBrokers(Closing):
    """The brokers of a cluster, found at its name servers.

    Connections are made when they are needed.

    Args:
        location: the name servers, and how servers are talked to.
    """

    def __init__(self, location: LiveLocation) -> None:
        self.location = location
        self._names = NameServers(location)
        self._routes: dict[str, TopicRoute] = {}
        self._brokers: dict[str, LiveBroker] = {}
        self._warned: set[str] = set()
        self._granted: dict[str, set[str]] = {}  # topics that may be read, by broker

    def close(self) -> None:
        """Close all connections."""
        for broker in self._brokers.values():
            broker.close()

    def refresh(self) -> None:
        """Ask the name servers again for what was asked."""
        self._routes.clear()

    def topics(self) -> list[str]:
        """Return the topics that the name servers know, also those of the system, sorted.

        Raises:
            BrokerUnreachableError: no name server answers.
        """
        return self._names.topics()

    def routes(self, topics: Sequence[str], *, are_listed: bool = False) -> dict[str, TopicRoute]:
        """Return the brokers of topics' queues, without topics that no broker has.

        Args:
            topics: the topics.
            are_listed: whether name servers have just listed them.

        Raises:
            BrokerUnreachableError, BrokerRefusedError: no name server answers, or one refuses.
            UnsupportedFeatureError: a topic is of a kind that is not read or written here.
        """
        for topic in topics:
            if topic.startswith(LMQ_PREFIX):
                raise UnsupportedFeatureError(
                    f"{topic} is a light message queue, of which name servers know nothing: read "
                    "the topic that its messages were sent to, or the broker's store"
                )
        unknown = [topic for topic in topics if topic not in self._routes]
        if unknown:
            self._routes |= self._names.routes(unknown, are_listed=are_listed)
        return {topic: self._routes[topic] for topic in topics if topic in self._routes}

    def broker(self, name: str, route: TopicRoute) -> LiveBroker:
        """Return a broker of a route, by its name.

        Raises:
            BrokerUnreachableError: no name server knows where its master is.
        """
        replicas = route.addresses.get(name, {})
        address = replicas.get(MASTER_ID)
        if address is None:
            others = ", ".join(map(str, replicas.values())) or "none"
            reason = f"broker {name} has no master at the moment; its replicas: {others}"
            raise BrokerUnreachableError(str(self.location), reason)
        known = self._brokers.get(name)
        if known is None or known.address != address:
            if known is not None:
                known.close()
            known = self._brokers[name] = LiveBroker(name, address, self.location)
        return known

    def spans(
        self,
        selection: Selection,
        pruning: Pruning = NO_PRUNING,
        *,
        must_exist: bool = True,
        ask_for_removed: bool = True,
        fail_on_data_loss: bool = False,
    ) -> list[BrokerSpans]:
        """Return where the chosen queues of each broker begin and end, by the broker's name.

        Args:
            selection: topics and queues.
            pruning: conditions on topics, queues and brokers; it may have others.
            must_exist: whether topics and queues that are named must exist.
            ask_for_removed: whether brokers are asked for queues that a topic had once.
            fail_on_data_loss: whether it is an error, and no warning, if no name server knows a
                broker that is known to have queues of a topic.

        Raises:
            OptionError: a topic or queue that is named does not exist.
            UnsupportedFeatureError: a topic is of a kind that cannot be read.
            BrokerUnreachableError: a server does not answer.
            BrokerRefusedError: one refuses.
        """
        are_listed = selection.is_open or selection.subscribe_pattern is not None
        if are_listed:
            topics = choose_topics(selection, self.topics())
        else:
            topics = sorted({*(selection.subscribe or ()), *(selection.assign or {})})
        routes = self.routes(topics, are_listed=are_listed)
        if must_exist:
            # Offsets and times may be given for further topics.
            others = self.routes(sorted(selection.named_topics - {*topics}))
            self._require_named(selection, {**routes, **others})
        self._require_brokers(selection, routes, pruning, fail_on_data_loss=fail_on_data_loss)
        found = []
        for name, chosen in sorted(self._queues(routes, selection, pruning, must_exist).items()):
            broker = self.opened(name)
            queues = chosen
            if are_listed:
                queues = self._readable(broker, chosen, selection.named_topics)
            spans = broker.spans(queues.served)
            beyond = queues.beyond if ask_for_removed else []
            withdrawn = self._withdrawn(broker, queues.unserved, beyond)
            found.append(BrokerSpans(broker, spans, withdrawn))
        return found

    def _queues(
        self,
        routes: Mapping[str, TopicRoute],
        selection: Selection,
        pruning: Pruning,
        must_be_read: bool,
    ) -> dict[str, _BrokersQueues]:
        """Return the chosen queues of topics, by the name of the broker, which is found then."""
        found: dict[str, _BrokersQueues] = {}
        for topic, route in routes.items():
            if not pruning.keeps_topic(topic):
                continue
            for name, counts in sorted(route.queues.items()):
                if not pruning.keeps_broker(name):
                    continue
                if not counts.read:
                    text = f"broker {name} lets nobody read {topic} (perm, readQueueNums)"
                    if must_be_read and topic in selection.named_topics:
                        raise UnsupportedFeatureError(f"{text}: let it (mqadmin updateTopic)")
                    self.warn(text)
                    continue
                self.broker(name, route)
                of_broker = found.setdefault(name, _BrokersQueues([], [], []))
                above = max(counts)
                parts = (range(counts.read), range(counts.read, counts.write), (above,))
                for into, numbers in zip(of_broker, parts, strict=True):
                    into.extend(
                        (topic, queue_id)
                        for queue_id in numbers
                        if pruning.keeps(topic, queue_id)
                        and (selection.assign is None or queue_id in selection.assign[topic])
                    )
        return found

    def _readable(
        self, broker: LiveBroker, queues: _BrokersQueues, named: Container[str]
    ) -> _BrokersQueues:
        """Return the queues of topics that a broker lets us read, and warn of the others.

        Raises:
            BrokerRefusedError: it lets us read none of them, or not one that is named.
        """
        if not self.location.has_credentials:
            return queues
        topics = {topic for topic, _ in queues.served}
        refused = broker.forbidden(sorted(topics - self._granted.get(broker.name, set())))
        self._granted.setdefault(broker.name, set()).update(topics - refused.keys())
        for topic, err in refused.items():
            if topic in named or len(refused) == len(topics):
                raise err
        if refused:
            some = next(iter(refused.values()))
            self.warn(f"topics are not read: {', '.join(refused)}: {some}")
        kept = ([key for key in part if key[0] not in refused] for part in queues)
        return _BrokersQueues(*kept)

    def _require_brokers(
        self,
        selection: Selection,
        routes: Mapping[str, TopicRoute],
        pruning: Pruning,
        *,
        fail_on_data_loss: bool,
    ) -> None:
        """Report brokers with queues of a topic that no name server knows.

        Raises:
            BrokerUnreachableError: there is one, and ``fail_on_data_loss`` holds.
        """
        for topic, route in routes.items():
            known = {
                "the topic's order configuration": route.ordered,
                "the selection": selection.named_brokers(topic),
            }
            for where, names in known.items():
                missing = sorted(
                    name for name in names - route.queues.keys() if pruning.keeps_broker(name)
                )
                if not missing or not pruning.keeps_topic(topic):
                    continue
                text = f"no name server knows that it has queues of {topic}, and {where} names it"
                if fail_on_data_loss:
                    raise BrokerUnreachableError(
                        f"broker {', '.join(missing)}", f"{text}; {READS_ON} reads the others"
                    )
                self.warn(f"broker {', '.join(missing)}: {text}; reading the others")

    def _require_named(self, selection: Selection, routes: Mapping[str, TopicRoute]) -> None:
        if not selection.named_topics:
            return
        known: dict[str, set[int]] = {}
        for topic, route in routes.items():
            most = max((queues.read for queues in route.queues.values()), default=0)
            known[topic] = set(range(most))
        if missing := selection.named_topics - known.keys():
            with suppress(BrokerRefusedError, BrokerUnreachableError):
                others = choose_topics(Selection(), self.topics())
                known |= {topic: set() for topic in others if topic not in missing}
        require_named(selection, [known], str(self.location), "LiveCluster.topics() in Python")

    def warn(self, text: str) -> None:
        """Log a warning, once."""
        if text not in self._warned:
            self._warned.add(text)
            logger.warning("%s", text)

    def _withdrawn(
        self, broker: LiveBroker, unserved: Sequence[QueueKey], beyond: Sequence[QueueKey]
    ) -> Spans:
        """Return the bounds of queues with messages that nobody may read.

        A broker says so, and refuses pulls of them.

        Args:
            unserved: queues that may be written to. There is a warning if it does not say whether
                they hold any.
            beyond: the first queue of each topic after those that it has. Where one holds messages,
                the next one is asked for too.
        """
        spans = self._granted_spans(broker, [*unserved, *beyond])
        if unknown := [f"{topic}-{id_}" for topic, id_ in unserved if (topic, id_) not in spans]:
            self.warn(
                f"{broker}: {', '.join(unknown)} may hold messages, and the broker lets nobody "
                "read them (readQueueNums)"
            )
        asked = beyond
        filled = {key: span for key, span in spans.items() if span[0] < span[1]}
        for _ in range(_MOST_BEYOND):
            asked = [(topic, number + 1) for topic, number in asked if (topic, number) in filled]
            if not asked:
                break
            spans = self._granted_spans(broker, asked)
            filled |= {key: span for key, span in spans.items() if span[0] < span[1]}
        return filled

    @staticmethod
    def _granted_spans(broker: LiveBroker, queues: Sequence[QueueKey]) -> Spans:
        with suppress(BrokerRefusedError):  # which is no reason not to read the others
            return broker.granted_spans(queues)
        return {}

    def report_withdrawn(
        self, broker: LiveBroker, spans: Spans, *, fail_on_data_loss: bool
    ) -> None:
        """Report messages in queues that a broker lets nobody read.

        Raises:
            OffsetOutOfRangeError: there are some, and ``fail_on_data_loss`` holds.
        """
        if not spans:
            return
        names = [
            f"{topic}-{id_} ({start} to {end})" for (topic, id_), (start, end) in spans.items()
        ]
        if len(names) > _MOST_NAMED:
            names[_MOST_NAMED:] = [f"{len(names) - _MOST_NAMED} more"]
        text = (
            f"{broker} lets nobody read queues that hold messages (readQueueNums): "
            f"{', '.join(names)}, the latter offset excluded"
        )
        if fail_on_data_loss:
            raise OffsetOutOfRangeError(
                f"{text}. Let the topic have these queues to read again (mqadmin updateTopic), "
                f"or read the broker's files; {READS_ON} reads the other queues"
            )
        self.warn(text)

    def ranges(
        self, selection: Selection, pruning: Pruning, *, fail_on_data_loss: bool
    ) -> dict[str, list[QueueSlice]]:
        """Return the ranges of queues that a selection names, by broker.

        Raises:
            OffsetOutOfRangeError: offsets of the selection are gone and ``fail_on_data_loss``
                holds, or no message was stored at or after a start time and the strategy is
                ``error``.
            OptionError, UnsupportedFeatureError, BrokerUnreachableError, BrokerRefusedError: as
                :meth:`spans` does.
        """
        found: dict[str, list[QueueSlice]] = {}
        found_spans = self.spans(selection, pruning, fail_on_data_loss=fail_on_data_loss)
        for broker, spans, withdrawn in found_spans:
            if fail_on_data_loss:
                # Brokers remove messages of compacted topics that later ones replace.
                topics = sorted({topic for topic, _ in spans})
                for topic, attributes in zip(topics, broker.attributes(topics), strict=True):
                    if attributes.get(_CLEANUP, "").upper() == _COMPACTION:
                        raise UnsupportedFeatureError(
                            f"{topic} is compacted ({_CLEANUP}): which of its messages were "
                            "replaced and which are lost is not known. "
                            f"{READS_ON} reads those that are left"
                        )
            if withdrawn:
                bounds = bounds_of_withdrawn(broker, selection, spans, withdrawn)
                chosen = _within(bounds, pruning.queue_offsets)
                self.report_withdrawn(broker, chosen, fail_on_data_loss=fail_on_data_loss)
            resolver = resolver_for(broker, selection, spans, fail_on_data_loss=fail_on_data_loss)
            times = search_times(broker, spans, resolver)
            firsts = first_offsets(broker, spans)
            bounds = {
                key: resolver.bounds(*key, (firsts[key], end), times)
                for key, (_, end) in spans.items()
            }
            chosen = _within(bounds, pruning.queue_offsets)
            found[broker.name] = [QueueSlice(*key, *part) for key, part in chosen.items()]
        return found

    def opened(self, name: str) -> LiveBroker:
        """Return a broker that was found before."""
        return self._brokers[name]
