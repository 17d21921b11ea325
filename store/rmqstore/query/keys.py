"""What a look-up searches for: keys, message ids or tags. Opens no file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from rmqstore.errors import OptionError, marked
from rmqstore.format.layout import MAX_PROPERTIES_BYTES
from rmqstore.format.record import parse_message_id

KEY_SEPARATOR: Final = " "


class Wanted(NamedTuple):
    """What a look-up searches for: messages with one of the keys, of the ids or of the tags."""

    keys: frozenset[str] = frozenset()  # whole UNIQ_KEYs, or words of KEYS
    msg_ids: frozenset[str] = frozenset()  # as columns msgId or offsetMsgId have them
    tags: frozenset[str] = frozenset()  # as column tags has them

    def __bool__(self) -> bool:
        return bool(self.keys or self.msg_ids or self.tags)


NOTHING_WANTED: Final = Wanted()


def parse_wanted(
    msg_key: str | Sequence[str] | None = None,
    msg_id: str | Sequence[str] | None = None,
    msg_tags: str | Sequence[str] | None = None,
) -> Wanted:
    """Check the keys, the ids or the tags of a look-up, one or several.

    Raises:
        OptionError: two kinds are given, or one that no message can have.
    """
    given = {"msg_key": msg_key, "msg_id": msg_id, "msg_tags": msg_tags}
    named = [name for name, value in given.items() if value is not None]
    if len(named) > 1:
        raise OptionError(f"{marked(named)}: give one of them")
    keys, ids, tags = (
        (value,) if isinstance(value, str) else tuple(value or ()) for value in given.values()
    )
    if named and not (keys or ids or tags):
        raise OptionError(f"`{named[0]}`: name at least one")
    for key in keys:
        if not key or KEY_SEPARATOR in key:
            raise OptionError(
                f"`msg_key` {key!r}: a key must not be empty or hold a blank; give each key "
                "by itself"
            )
        _require_storable("msg_key", key)
    for message_id in ids:
        if not message_id:
            raise OptionError("`msg_id`: an id must not be empty")
        _require_storable("msg_id", message_id)
    for text in tags:
        if not text:
            raise OptionError("`msg_tags`: tags must not be empty")
        _require_storable("msg_tags", text)
    # RocketMQ writes these in upper case.
    offset_ids = (message_id.upper() for message_id in ids if is_offset_id(message_id))
    return Wanted(frozenset(keys), frozenset((*ids, *offset_ids)), frozenset(tags))


def _require_storable(name: str, text: str) -> None:
    """Refuse a key or an id that no record can hold.

    Raises:
        OptionError: it is too long or cannot be encoded.
    """
    try:
        n_bytes = len(text.encode())
    except UnicodeEncodeError as err:
        raise OptionError(f"`{name}` {text!r} cannot be encoded in UTF-8") from err
    if n_bytes > MAX_PROPERTIES_BYTES:
        raise OptionError(
            f"`{name}`: {len(text)} characters; the properties of a message take "
            f"{MAX_PROPERTIES_BYTES}"
        )


def is_offset_id(text: str) -> bool:
    """Return whether an id has the form of an offset message id."""
    try:
        parse_message_id(text)
    except OptionError:
        return False
    return True
