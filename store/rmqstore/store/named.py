"""Refuses names of topics and consumer groups that stores do not know, for views."""

from __future__ import annotations

from collections.abc import Sequence

from rmqstore.errors import OptionError, RmqStoreError
from rmqstore.format.columns.retries import is_copy_topic, may_hold_copies
from rmqstore.format.topics import DLQ_PREFIX, RETRY_PREFIX
from rmqstore.query.selection import Selection, require_named
from rmqstore.query.topic_patterns import nearest_topics
from rmqstore.read.session import StoreSession
from rmqstore.read.views.schema import ViewSpec


def require_names(sessions: Sequence[StoreSession], spec: ViewSpec) -> None:
    """Refuse a view of topics or of a consumer group that none of some stores knows.

    Topics of views that hide those of the system are checked where these are read.

    Raises:
        OptionError: a name is not known; the text has those nearest.
    """
    where = ", ".join(str(session.paths.root) for session in sessions)
    try:
        if spec.view == "groups" and spec.selection.named_topics:
            topics = {topic for session in sessions for topic in _topics_of_groups(session)}
            named = Selection(subscribe=tuple(spec.selection.named_topics))
            require_named(named, {topic: set() for topic in topics}, where)
        if spec.consumer_group is not None:
            _require_group(sessions, spec.consumer_group, where)
    except (RmqStoreError, OSError) as err:
        if isinstance(err, OptionError):
            raise
        # A damaged table hides names; the view reports it if it needs the table.


def _topics_of_groups(session: StoreSession) -> set[str]:
    """Return the topics that a store knows, and those that groups have offsets of."""
    committed = session.config.committed_offsets().values()
    return {topic for offsets in committed for topic, _ in offsets} | {*session.known_topics()}


def _require_group(sessions: Sequence[StoreSession], group: str, where: str) -> None:
    known: set[str] = set()
    for session in sessions:
        known.update(session.config.groups(), session.config.subscribed_groups())
        for topic in filter(is_copy_topic, session.topics()):
            if may_hold_copies(topic, group):
                return
            known.add(topic.removeprefix(RETRY_PREFIX).removeprefix(DLQ_PREFIX))
    if group not in known:
        nearest = nearest_topics([group], known, "groups")
        raise OptionError(f"no consumer group {group} in {where}; {nearest}")
