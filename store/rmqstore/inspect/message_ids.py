"""Finds messages by any id that names one: physical offset, offset message id or unique key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa

from rmqstore.errors import MessageNotFoundError, OffsetOutOfRangeError
from rmqstore.format.schema import ALL_COLUMNS, Message
from rmqstore.query.arguments import TopicArguments
from rmqstore.query.keys import is_offset_id
from rmqstore.store.message_store import MessageStore

_LEAST_ID_DIGITS: Final = 32  # ids may be decimal by chance, but no offset is as long


class FoundMessages(NamedTuple):
    """What some ids name.

    Attributes:
        rows: the messages, as rows by column name, in the order of the ids. An id that several
            records have, such as a message and its retries, gives all of them, oldest first.
        missing: why there is no message, by id.
    """

    rows: list[dict[str, Any]]
    missing: dict[str, str]

    def table(self, schema: pa.Schema) -> pa.Table:
        """Return the messages with some of their columns."""
        return pa.Table.from_pylist(self.rows, schema=schema)


def find_messages(
    store: MessageStore, ids: Sequence[str], topics: TopicArguments | None = None
) -> FoundMessages:
    """Find the messages that some ids name, whatever kind of id each of them is.

    The host in an offset message id is ignored if no message has that very id, so an id is valid
    for a copy too.

    Args:
        store: the store.
        ids: physical offsets in decimal, offset message ids, or unique keys.
        topics: the topics in which unique keys are looked up; all topics by default.

    Raises:
        CorruptRecordError: the record of one is damaged.
    """
    store.session.warn_of_messages_elsewhere()
    rows: dict[str, list[dict[str, Any]]] = {}
    missing: dict[str, str] = {}
    of_copies: dict[str, dict[str, Any]] = {}
    looked_up = []
    for name in dict.fromkeys(ids):
        is_offset = name.isdecimal() and len(name) < _LEAST_ID_DIGITS
        if not is_offset and (store.session.is_tiered or not is_offset_id(name)):
            looked_up.append(name)
            continue
        if is_offset:
            store.session.require_local("looking up a physical offset")
        try:
            row = _row_of(store.get(int(name) if is_offset else name))
        except (MessageNotFoundError, OffsetOutOfRangeError) as err:
            if is_offset:
                missing[name] = str(err)
            else:  # a unique key has the form of an offset message id, too
                looked_up.append(name)
            continue
        if is_offset or row["offsetMsgId"] == name.upper():
            rows[name] = [row]
        else:
            looked_up.append(name)
            of_copies[name] = row
    for name, found in _look_up(store, looked_up, topics).items():
        if found:
            rows[name] = found
        elif name in of_copies:
            rows[name] = [of_copies[name]]
        else:
            missing[name] = "no message has this id"
    return FoundMessages([row for name in ids for row in rows.get(name, ())], missing)


def _row_of(message: Message) -> dict[str, Any]:
    return message._asdict() | {"properties": list(message.properties.items())}


def _look_up(
    store: MessageStore, ids: Sequence[str], topics: TopicArguments | None
) -> dict[str, list[dict[str, Any]]]:
    """Return the messages with unique keys or offset message ids, by id."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in ids}
    if not ids:
        return found
    chosen: TopicArguments = topics or {"include_system_topics": True}
    names = [name for name in ALL_COLUMNS.names if name != "tagsCode"]
    # Damage elsewhere, which a warning names, must not hide what is intact.
    for batch in store.scan(msg_id=list(ids), columns=names, mode="DROPMALFORMED", **chosen):
        for row in batch.to_pylist():
            for name in ids:
                upper = name.upper() if is_offset_id(name) else name
                if row["msgId"] in (name, upper) or row["offsetMsgId"] == upper:
                    found[name].append(row)
    return found
