"""The property string of one record, ``name 0x01 value 0x02 …``, and what follows from it; the plain form."""

from __future__ import annotations

from rmqstore.format.layout import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR
from rmqstore.format.utf8 import decode_text


def parse_properties(stored: bytes) -> dict[str, str]:
    """Parse a stored property string as RocketMQ does.

    A piece without a separator, without a name or without a value is dropped; of two with one name the last wins;
    the last 0x02 may be missing; bytes that are not UTF-8 become U+FFFD as in Java.

    Source: MessageDecoder.java#string2messageProperties.
    """
    found: dict[str, str] = {}
    for piece in stored.split(bytes([PROPERTY_SEPARATOR])):
        name, _, value = piece.partition(bytes([NAME_VALUE_SEPARATOR]))
        if name and value:
            text = decode_text(name)
            found.pop(text, None)  # the place of the last one, as the columnar parser gives it
            found[text] = decode_text(value)
    return found
