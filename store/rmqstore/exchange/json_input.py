"""Messages from files of JSON Lines.

For people and small tools: each row passes through Python, where Parquet stays in columns.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain, islice
from typing import IO, Any, Final, NamedTuple

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from rmqstore.errors import IllegalMessageError, OptionError
from rmqstore.exchange.files import RowOrigins
from rmqstore.exchange.json_rows import BASE64
from rmqstore.format.schema import ALL_COLUMNS, ASSIGNED, VERBATIM, WRITE_TYPES
from rmqstore.json_text import parse_json
from rmqstore.query.times import parse_timestamp

_BODY: Final = "body"
_OTHER_BODIES: Final = (
    f"; other bytes stand in {_BODY}{BASE64}, and bodies in the form of --body json or --body hex "
    "are not read"
)
# Rows of more lines would not stay in the processor's cache until their columns are made.
_LINES_AT_ONCE: Final = 512
_CHUNKS_A_BATCH: Final = 16
_YEAR_ONE_MS: Final = -62_135_596_800_000
# The columns, of those that the store assigns, that show whether a msgId is an offset message id.
_ID_COLUMNS: Final = ("storeHost", "commitLogOffset", "offsetMsgId")


def read_json_lines(
    file: IO[str], name: str, *, verbatim: bool = False, origins: RowOrigins | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield rows of JSON Lines in the form that :mod:`rmqstore.exchange.json_rows` writes.

    Times may also be in any other form of :func:`rmqstore.query.times.parse_timestamp`.

    Args:
        file: a file that is open as UTF-8 text.
        name: name of the file, for errors.
        verbatim: the columns are those of ``format.schema.VERBATIM`` instead of those of messages.
        origins: notes on which lines the rows of each batch are.

    Raises:
        IllegalMessageError: a line is not a JSON object, or has an unknown column or a value of the
            wrong type.
    """
    if verbatim:
        types = {field.name: field.type for field in VERBATIM}
    else:
        types = WRITE_TYPES | {column: ALL_COLUMNS.field(column).type for column in _ID_COLUMNS}
    origins = origins or RowOrigins()
    chunks: list[_Lines] = []
    n_before = 0
    while True:
        try:
            lines = list(islice(file, _LINES_AT_ONCE))
        except UnicodeDecodeError as err:
            raise IllegalMessageError(f"{name} is not UTF-8: {err}") from err
        if not lines:
            break
        batch = _fast_batch(lines, types)
        if batch is None:
            batch = _plain_batch(list(enumerate(lines, n_before + 1)), name, types)
        numbers: Sequence[int] = range(n_before + 1, n_before + len(lines) + 1)
        if len(batch) < len(lines):
            numbers = [number for number, line in zip(numbers, lines, strict=True) if line.strip()]
        n_before += len(lines)
        if not len(batch):
            continue
        is_other = chunks and batch.schema != chunks[0].rows.schema
        if is_other or len(chunks) == _CHUNKS_A_BATCH:
            yield _joined(chunks, name, origins)
            chunks = []
        chunks.append(_Lines(batch, numbers))
    if chunks:
        yield _joined(chunks, name, origins)


class _Lines(NamedTuple):
    rows: pa.RecordBatch
    lines: Sequence[int]  # their numbers


def _joined(chunks: list[_Lines], name: str, origins: RowOrigins) -> pa.RecordBatch:
    origins.note(name, "line", [chunk.lines for chunk in chunks])
    rows = [chunk.rows for chunk in chunks]
    return pa.Table.from_batches(rows).combine_chunks().to_batches()[0]


def _fast_batch(lines: list[str], types: dict[str, pa.DataType]) -> pa.RecordBatch | None:
    """Return the rows of lines, column by column.

    None if anything is unusual; :func:`_plain_batch` then says what is wrong, or finds it right.
    """
    try:
        rows = [orjson.loads(line) for line in lines if line.strip()]
        # Each name has two quotation marks. Of two that are the same, one is gone.
        is_whole = orjson.dumps(rows).count(b'"') == "".join(lines).count('"')
        if set(map(type, rows)) - {dict} or not is_whole:
            return None
        names_of_rows = dict.fromkeys(map(tuple, rows))
        names = dict.fromkeys(chain.from_iterable(names_of_rows))
        columns = [name for name in names if name.removesuffix(BASE64) in types]
        if any(name not in ASSIGNED for name in names.keys() - columns):
            return None
        if len(names_of_rows) == 1:
            all_values = zip(*map(dict.values, rows), strict=True)
            values = dict(zip(names, all_values, strict=True))
        else:
            values = {name: tuple([row.get(name) for row in rows]) for name in columns}
        arrays = {
            name: _column(rows, values, name, types[name])
            for name in dict.fromkeys(column.removesuffix(BASE64) for column in columns)
        }
        return pa.RecordBatch.from_pydict(arrays)
    except (AttributeError, TypeError, ValueError, OverflowError, pa.ArrowException):
        return None


def _column(
    rows: list[dict[str, Any]],
    values_by_name: dict[str, tuple[Any, ...]],
    name: str,
    kind: pa.DataType,
) -> pa.Array:
    """Return one column of rows.

    Args:
        rows: the rows, (n,).
        values_by_name: their values, (n,) each, None where a row does not have a name.

    Raises:
        AttributeError, TypeError, ValueError, OverflowError, pa.ArrowException: a value is unusual.
    """
    encoded_name = f"{name}{BASE64}"
    encoded = values_by_name.get(encoded_name)
    values = values_by_name.get(name, (None,) * len(rows))
    if encoded is not None and not pa.types.is_binary(kind):
        raise ValueError("base64 where text is expected")
    if pa.types.is_timestamp(kind):
        times = pa.array(values, pa.string()).cast(pa.timestamp("ms", "UTC"))
        if times.null_count < len(times) and pc.min(times).value < _YEAR_ONE_MS:
            raise ValueError("a year that Python does not know")
        return times.cast(kind)
    if pa.types.is_map(kind):
        ends = accumulate((len(value) if value is not None else 0 for value in values), initial=0)
        filled = [value for value in values if value is not None]
        keys = pa.array(chain.from_iterable(filled), pa.string())
        items = pa.array(chain.from_iterable(value.values() for value in filled), pa.string())
        offsets: list[int | None] = list(ends)
        for row, value in enumerate(values):
            if value is None:
                offsets[row] = None
        return pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), keys, items).cast(kind)
    if not pa.types.is_binary(kind):
        return pa.array(values, kind)
    texts = pa.array(values, pa.string()).cast(kind)
    if encoded is None:
        return texts
    if any(encoded_name in row and name in row for row in rows):
        raise ValueError("the same value twice")
    stored = [None if text is None else base64.b64decode(text, validate=True) for text in encoded]
    return pc.coalesce(texts, pa.array(stored, kind))


def _plain_batch(
    chunk: list[tuple[int, str]], name: str, types: dict[str, pa.DataType]
) -> pa.RecordBatch:
    """Return the rows of numbered lines, value by value.

    Raises:
        IllegalMessageError: as :func:`read_json_lines`.
    """
    rows = [
        _parsed(line, f"{name}: line {number}", types) for number, line in chunk if line.strip()
    ]
    names = list(dict.fromkeys(column for row in rows for column in row))
    schema = pa.schema([(column, types[column]) for column in names])
    return pa.RecordBatch.from_pylist(rows, schema)


def _parsed(line: str, where: str, types: dict[str, pa.DataType]) -> dict[str, Any]:
    """Return the values of a line by column, as Arrow takes them."""
    try:
        row = parse_json(line)
    except json.JSONDecodeError as err:
        text = f"{where} is not JSON: {err.msg} at character {err.colno}"
        raise IllegalMessageError(text) from err
    except ValueError as err:
        raise IllegalMessageError(f"{where} is not JSON that can be read: {err}") from err
    if not isinstance(row, dict):
        raise IllegalMessageError(f"{where} is not a JSON object")
    values: dict[str, Any] = {}
    for name, value in row.items():
        plain = name.removesuffix(BASE64)
        if plain in types:
            try:
                found = _value(value, types[plain], is_base64=plain != name)
            except OptionError as err:
                raise IllegalMessageError(f"{where}: {name}: {err}") from err
            except (ValueError, TypeError, OverflowError, pa.ArrowException) as err:
                expected = _expected(types[plain], is_base64=plain != name)
                text = f"{where}: {name} must be {expected}, not {json.dumps(value)[:100]}"
                if name == _BODY:
                    text += _OTHER_BODIES
                raise IllegalMessageError(text) from err
            values[plain] = _agreed(values.get(plain), found, f"{where}: {plain}")
        elif name not in ASSIGNED:
            raise IllegalMessageError(
                f"{where}: {name} is not a column; there are {', '.join(types)}"
            )
    return values


def _agreed(first: Any, second: Any, column: str) -> Any:  # noqa: ANN401 - as Arrow takes them
    """Return the value of a column that may be given as text and in base64."""
    if first is None or second is None or first == second:
        return first if second is None else second
    raise IllegalMessageError(
        f"{column} is {first!r:.99} by one name, {second!r:.99} by the other: give it as text or "
        f"with {BASE64}"
    )


def _value(value: Any, kind: pa.DataType, *, is_base64: bool) -> Any:  # noqa: ANN401 - whatever JSON holds
    """Return a value as Arrow takes it.

    Raises:
        ValueError, TypeError, OverflowError, pa.ArrowException: it is not of this type.
    """
    if value is None:
        return None
    if is_base64:
        if not pa.types.is_binary(kind):
            raise TypeError("only bytes are written in base64")
        return base64.b64decode(value, validate=True)
    if pa.types.is_timestamp(kind):
        value = parse_timestamp("time", value) * 1000
    elif pa.types.is_binary(kind):
        value = pa.scalar(value, pa.string()).as_py().encode()
    elif pa.types.is_map(kind):
        if not isinstance(value, dict):
            raise TypeError("not an object")
        value = list(value.items())
    pa.scalar(value, kind)  # refuses other values, and text that UTF-8 cannot hold
    return value


def _expected(kind: pa.DataType, *, is_base64: bool) -> str:
    """Say what a value has to be."""
    if is_base64:
        return "bytes in base64" if pa.types.is_binary(kind) else f"{kind}, without {BASE64}"
    if pa.types.is_map(kind):
        return "an object whose values are text"
    return "text" if pa.types.is_string(kind) or pa.types.is_binary(kind) else str(kind)
