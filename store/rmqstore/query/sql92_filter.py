"""A filter as users write it: compiled once, then applied to one message or to many."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from rmqstore.errors import OptionError
from rmqstore.format.layout import Mask
from rmqstore.format.schema import ALL_COLUMNS, ASSIGNED
from rmqstore.query import sql92_evaluation as evaluation
from rmqstore.query import sql92_masks
from rmqstore.query.sql92_parser import parse
from rmqstore.query.sql92_tree import Node, Property, walk

logger = logging.getLogger(__name__)

_COLUMNS: Final = frozenset(ALL_COLUMNS.names)
# Not `pending`, an ordinary word that may well be the name of a property.
_ASSIGNED: Final = frozenset({*ASSIGNED, "queueId"}) - {"pending"}


@dataclass(frozen=True, slots=True)
class Filter:
    """A compiled expression; picklable, so that tasks can be given it.

    Made by :func:`compile_filter`.

    Attributes:
        text: the expression as it was given.
        tree: the expression, parsed.
        names: the properties that it compares, each once, in the order of the text.
        unread: text after the end of the expression, which a broker does not read either.
    """

    text: str
    tree: Node
    names: tuple[str, ...]
    unread: str

    def keep(self, columns: Mapping[str, pa.Array], n: int) -> Mask:
        """Return a mask (n,) of the messages that a broker would deliver.

        Args:
            columns: each property of ``names``, string (n,), null where a message has none; as
                ``format.columns.decode.property_values`` gives them.
            n: how many messages; ``1 = 1`` names no property.

        Raises:
            OptionError: a column of ``names`` is missing, or does not hold n strings.
        """
        for name in self.names:
            column = columns.get(name)
            if column is None or len(column) != n or column.type != pa.string():
                actual = "nothing" if column is None else f"{len(column)} of {column.type}"
                raise OptionError(
                    f"SQL92 filter {self.text!r} needs {n} strings of property {name}, "
                    f"found {actual}"
                )
        return sql92_masks.keep(self.tree, columns, n)

    def matches(self, properties: Mapping[str, str]) -> bool:
        """Return whether a broker would deliver a message with these properties.

        Source: ExpressionMessageFilter.java#isMatchedByCommitLog.
        """
        return evaluation.matches(self.tree, properties)


def compile_filter(text: str) -> Filter:
    """Compile an expression of RocketMQ's SQL92.

    Raises:
        OptionError: RocketMQ refuses the expression, or it nests too deep; says where and what was
            expected.

    Source: SqlFilter.java#compile, SelectorParser.java#parse.
    """
    tree, unread = parse(text)
    names = dict.fromkeys(node.name for node, _ in walk(tree) if isinstance(node, Property))
    return Filter(text, tree, tuple(names), unread)


def parse_filter(text: str | None) -> Filter | None:
    """Compile the option ``filter``; None and empty text select all messages.

    A broker compares properties only, so the name of a column matches nothing. Names that the
    store itself assigns are refused, since no producer has cause to give them to a property; words
    such as ``topic`` may well be a property's.

    Raises:
        OptionError: as :func:`compile_filter`; or the expression ends before the text does; or it
            names a column that the store assigns.
    """
    if text is None or not text.strip():
        return None
    compiled = compile_filter(text)
    if compiled.unread:
        raise OptionError(
            f"`filter` {text!r}: RocketMQ ends the expression before {compiled.unread!r} "
            "and passes over the rest; write AND or OR there, or leave it out (it knows "
            "CONTAINS, STARTSWITH and ENDSWITH, but no LIKE)"
        )
    for name in compiled.names:
        if name in _ASSIGNED:
            raise OptionError(
                f"`filter` {text!r}: {name} is a column, and a filter compares properties "
                "only: put the condition into `where=` (in Spark, .where()). For a "
                "property of that name hold it against column properties: "
                f"where=pc.map_lookup(pc.field('properties'), '{name}', 'first') == '…', in "
                f"Spark properties['{name}'] = '…'"
            )
        if name in _COLUMNS:
            logger.warning(
                "filter %r compares the property %s, not the column of that name; "
                "conditions on columns go into where",
                text,
                name,
            )
    return compiled
