"""UTF-8 as Java decodes it.

Python differs where bytes encode half of a surrogate pair.
"""

from __future__ import annotations

import codecs

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
