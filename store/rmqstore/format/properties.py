"""The property string of one record, ``name 0x01 value 0x02 …``, parsed plainly."""

from __future__ import annotations

from rmqstore.format.layout import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR
from rmqstore.format.utf8 import decode_text


def parse_properties(stored: bytes) -> dict[str, str]:
    """Parse a stored property string as RocketMQ does.

    A property without a separator, a name or a value is dropped. Of two properties with the same
    name the last one wins. The last 0x02 may be missing. Bytes that are not UTF-8 become U+FFFD,
    as in Java.

    Source: MessageDecoder.java#string2messageProperties.
    """
    properties: dict[str, str] = {}
    for entry in stored.split(bytes([PROPERTY_SEPARATOR])):
        name, _, value = entry.partition(bytes([NAME_VALUE_SEPARATOR]))
        if name and value:
            text = decode_text(name)
            # A repeated name takes its last position, as in the columnar parser.
            properties.pop(text, None)
            properties[text] = decode_text(value)
    return properties
