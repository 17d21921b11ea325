"""Text in records: UTF-8 as Java decodes it, and the property string ``name 0x01 value 0x02 …``.

Python and Java decode halves of surrogate pairs in different ways.
"""

from __future__ import annotations

import codecs

from rmqstore.format.layout import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR

_AS_JAVA = "rmqstore.as-java"
# Before a byte from 0xA0 to 0xBF it begins three bytes that would be half of a surrogate pair.
_SURROGATE_LEAD = 0xED


def decode_text(stored: bytes) -> str:
    """Return stored bytes as text, as ``new String(bytes, UTF_8)`` does.

    Each malformed sequence becomes one U+FFFD. Java counts an encoded surrogate as one sequence of
    three bytes, or of two if the third is missing. Python counts each of its bytes as a sequence.

    Source: java.lang.String#decodeUTF8.
    """
    return stored.decode(errors=_AS_JAVA)


def _replace(err: UnicodeError) -> tuple[str, int]:
    assert isinstance(err, UnicodeDecodeError)
    sequence = err.object[err.start : err.start + 3]
    if sequence[0] != _SURROGATE_LEAD or not (len(sequence) > 1 and 0xA0 <= sequence[1] <= 0xBF):
        return "\ufffd", err.end
    is_whole = len(sequence) > 2 and sequence[2] & 0xC0 == 0x80
    return "\ufffd", err.start + (3 if is_whole else 2)


codecs.register_error(_AS_JAVA, _replace)


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
