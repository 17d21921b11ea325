"""Bodies of messages as text, as JSON, in hex or in base64, in place of bytes.

Nothing is lost: a body that is not what it was said to be stands in base64 in the column
``bodyBase64``.
"""

from __future__ import annotations

import base64
import codecs
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from rmqstore.errors import OptionError
from rmqstore.exchange.json_rows import BASE64, JSON_TEXT

FORMS: Final = ("text", "json", "hex", "base64", "none")
UTF8: Final = "utf-8"
_BODY: Final = "body"
_ENCODED: Final = f"{_BODY}{BASE64}"
_FIELDS: Final = {
    "text": (pa.field(_BODY, pa.string()), pa.field(_ENCODED, pa.string())),
    "json": (pa.field(_BODY, pa.string(), metadata=JSON_TEXT), pa.field(_ENCODED, pa.string())),
    "hex": (pa.field(f"{_BODY}Hex", pa.string()),),
    "base64": (pa.field(_ENCODED, pa.string()),),
    "none": (),
}
# a string, or the space between two tokens
_STRING_OR_SPACE: Final = re.compile(r'("(?:[^"\\]|\\.)*")|[ \t\n\r]+')


class BodyForm(NamedTuple):
    """The form in which bodies are written.

    Attributes:
        name: one of :data:`FORMS`.
        charset: the charset of the bodies, for text and JSON.
    """

    name: str
    charset: str = UTF8

    def schema(self, schema: pa.Schema) -> pa.Schema:
        """Return the columns that are written in place of those of messages."""
        fields: list[pa.Field] = []
        for field in schema:
            fields += _FIELDS[self.name] if field.name == _BODY else (field,)
        return pa.schema(fields)

    def batches(self, reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        """Yield messages with the columns of :meth:`schema`."""
        schema = self.schema(reader.schema)
        for batch in reader:
            columns: list[pa.Array] = []
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                columns += self._bodies(column) if name == _BODY else (column,)
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

    def _bodies(self, bodies: pa.Array) -> tuple[pa.Array, ...]:
        if self.name == "none":
            return ()
        if self.name == "hex":
            return (_texts(bodies, bytes.hex),)
        if self.name == "base64":
            return (_texts(bodies, _base64),)
        texts = _decoded(bodies, self.charset)
        if self.name == "json":
            texts = _texts(texts, _json_text)
        refused = pc.if_else(texts.is_null(), bodies, pa.scalar(None, bodies.type))
        return texts, _texts(refused, _base64)


def parse_body_form(name: str | None, charset: str | None) -> BodyForm | None:
    """Return the form of bodies; None if they are to stay as they are.

    Args:
        name: one of :data:`FORMS`; text if only a charset is given.
        charset: a charset that Python knows, for text and JSON.

    Raises:
        OptionError: the charset is unknown, or the form has none.
    """
    if name is None and charset is None:
        return None
    name = name or "text"
    if charset is None:
        return BodyForm(name)
    if name not in ("text", "json"):
        raise OptionError(f"charset {charset}: only text and JSON have one, not {name}")
    try:
        is_text = codecs.lookup(charset)._is_text_encoding  # noqa: SLF001 - str.decode asks it too
    except LookupError:
        is_text = False
    if not is_text:
        raise OptionError(
            f"charset {charset!r} is unknown; there are utf-8, utf-16, latin-1, gb18030, big5, "
            "shift_jis, euc-kr and all others that Python has"
        )
    return BodyForm(name, charset)


def _texts(values: pa.Array, text_of: Callable[[Any], str | None]) -> pa.Array:
    """Return what a function returns for each value, as text; null for null."""
    texts = [None if value is None else text_of(value) for value in values.to_pylist()]
    return pa.array(texts, pa.string())


def _decoded(bodies: pa.Array, charset: str) -> pa.Array:
    """Return bodies as text, null for those that are not text in the charset."""
    if codecs.lookup(charset).name == UTF8:
        with suppress(pa.ArrowInvalid):  # one by one, then
            return bodies.cast(pa.string())
    return _texts(bodies, partial(_decoded_body, charset=charset))


def _decoded_body(body: bytes, charset: str) -> str | None:
    try:
        text = body.decode(charset)
        text.encode()  # some charsets give half a surrogate pair, which no file can hold
    except UnicodeError:
        return None
    return text


def _json_text(text: str) -> str | None:
    """Return a JSON text on one line, None for other text.

    Its numbers and strings stay as they were written.
    """
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    if "\n" in text or "\r" in text:
        return _STRING_OR_SPACE.sub(r"\1", text)
    return text


def _base64(body: bytes) -> str:
    return base64.b64encode(body).decode()
