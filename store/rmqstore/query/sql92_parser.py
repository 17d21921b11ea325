"""Parses an expression by RocketMQ's grammar, and refuses what RocketMQ refuses.

Two of its habits are kept because its consumers live by them. Text after a complete expression is
not read: ``a = 0L`` is ``a = 0``, for only other integers take an ``L``. And ``--`` begins a
comment only if a line ends after it.

Source: SelectorParser.jj; the refusals: ComparisonExpression.java, ConstantExpression.java.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import NamedTuple

from rmqstore.query.sql92_tree import (
    INT_MAX,
    LONG_MAX,
    And,
    Between,
    Equal,
    In,
    IsNull,
    IsTrue,
    Literal,
    Negate,
    Node,
    Not,
    Or,
    Order,
    Property,
    Search,
    is_truth,
    parse_double,
    parse_long,
    walk,
)
from rmqstore.query.tokens import MAX_DEPTH, Tokens, shortened

_TOKEN = re.compile(
    r"""
    (?P<blank>     [ \t\n\r\f]+ | --[^\n\r]*[\n\r] | /\*.*?\*/ )
    | (?P<float>   [0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?
                 | \.[0-9]+(?:[eE][+-]?[0-9]+)?
                 | [0-9]+[eE][+-]?[0-9]+ )
    | (?P<integer> 0 | [1-9][0-9]*[lL]? )
    | (?P<string>  '(?:''|[^'])*' )
    | (?P<name>    [a-zA-Z_$][a-zA-Z0-9_$]* )
    | (?P<symbol>  <> | <= | >= | [<>=(),+-] )
    """,
    re.VERBOSE | re.DOTALL,
)
_SURROGATE = re.compile("[\ud800-\udfff]")
_CONSTANTS = {"TRUE": True, "FALSE": False, "NULL": None}
_ORDERS = frozenset({"<", "<=", ">", ">="})
_SEARCHES = frozenset({"CONTAINS", "STARTSWITH", "ENDSWITH"})
_WORDS = frozenset({"NOT", "AND", "OR", "BETWEEN", "IN", "IS"})
_KEYWORDS = _WORDS.union(_SEARCHES, _CONSTANTS)


class Parsed(NamedTuple):
    """What an expression says.

    Attributes:
        tree: of the part that RocketMQ reads.
        unread: the text after it, from the first character that is not a blank or a comment.
    """

    tree: Node
    unread: str


def parse(text: str) -> Parsed:
    """Parse an expression.

    Raises:
        OptionError: RocketMQ refuses it, or it nests deeper than MAX_DEPTH.
    """
    return _Parser(text).parse()


class _Parser(Tokens):
    """Looks one token ahead, as RocketMQ's parser does: text after that may be anything."""

    _SUBJECT = "SQL92 `filter`"
    _PATTERN = _TOKEN
    _KEYWORDS = _KEYWORDS

    def __init__(self, text: str) -> None:
        self._text = text
        if surrogate := _SURROGATE.search(text):
            reason = "half of a surrogate pair, which no property holds"
            raise self._refused(surrogate.start(), reason)
        super().__init__(text)

    def parse(self) -> Parsed:
        start = self._token.start
        tree = self._truth(self._disjunction(), start)
        if any(depth > MAX_DEPTH for _, depth in walk(tree)):
            raise self._refused(
                start, f"more than {MAX_DEPTH} operators one upon the other; write it with fewer"
            )
        return Parsed(tree, self._text[self._token.start :])

    def _unreadable(self, start: int) -> str:
        if self._text.startswith("'", start):
            return "a string that does not end"
        if self._text.startswith("/*", start):
            return "a comment that does not end"
        if self._text.startswith('"', start):
            return "expected an expression, found a double quote; strings stand in single quotes"
        if self._text.startswith("!=", start):
            return "expected an operator, found !=; write <>"
        return f"{self._text[start]!r} has no place in an expression"

    # Grammar, from what binds least to what binds most

    def _disjunction(self) -> Node:
        return self._joined("OR", self._conjunction, Or)

    def _conjunction(self) -> Node:
        return self._joined("AND", self._equality, And)

    def _joined(self, word: str, read: Callable[[], Node], kind: type[And | Or]) -> Node:
        start = self._token.start
        left = read()
        if self._token.kind != word:
            return left
        operands = [self._truth(left, start)]
        while self._accept(word):
            start = self._token.start
            operands.append(self._truth(read(), start))
        return kind(tuple(operands))

    def _equality(self) -> Node:
        start = self._token.start
        left = self._comparison()
        while True:
            if operator := self._accept("=", "<>"):
                right_start = self._token.start
                right = self._comparison()
                self._require_equatable(left, start, right, right_start)
                left = Equal(left, right) if operator.kind == "=" else Not(Equal(left, right))
            elif self._accept("IS"):
                if self._accept("NOT"):
                    self._expect("NULL", "NULL")
                    left = Not(IsNull(left))
                else:
                    self._expect("NULL", "NULL or NOT NULL")
                    left = IsNull(left)
            else:
                return left

    def _comparison(self) -> Node:
        start = self._token.start
        left = self._unary()
        while True:
            if operator := self._accept(*_ORDERS):
                right_start = self._token.start
                right = self._unary()
                self._require_orderable(left, start)
                self._require_orderable(right, right_start)
                left = Order(operator.kind, left, right)
                continue
            negated = self._accept("NOT") is not None
            if operator := self._accept(*_SEARCHES):
                left = Search(operator.kind, left, self._string(), negated)
            elif self._accept("BETWEEN"):
                left = self._between(left, start, negated=negated)
            elif self._accept("IN"):
                self._expect("(", '"(" and strings after IN')
                texts = self._separated(",", self._string)
                self._expect(")", '"," or ")"')
                if not isinstance(left, Property):
                    raise self._refused(start, "expected the name of a property before IN")
                listed = In(left, frozenset(texts))
                left = Not(listed) if negated else listed
            elif negated:
                raise self._unexpected("BETWEEN, IN, CONTAINS, STARTSWITH or ENDSWITH after NOT")
            else:
                return left

    def _between(self, operand: Node, start: int, *, negated: bool) -> Node:
        low_start = self._token.start
        low = self._unary()
        self._expect("AND", "AND between the two ends of BETWEEN")
        high_start = self._token.start
        high = self._unary()
        self._require_orderable(operand, start)
        self._require_orderable(low, low_start)
        self._require_orderable(high, high_start)
        if (
            not negated
            and isinstance(low, Literal)
            and isinstance(high, Literal)
            and _is_above(low.value, high.value)
        ):
            reason = f"BETWEEN {low.value} AND {high.value} has its ends the wrong way round"
            raise self._refused(low_start, reason)
        return Between(operand, low, high, negated)

    def _unary(self) -> Node:
        operator = self._accept("+", "-", "NOT")
        if operator is None:
            return self._primary()
        self._deepen(operator)
        start = self._token.start
        operand = self._unary()
        self._depth -= 1
        if operator.kind == "NOT":
            return Not(self._truth(operand, start))
        return Negate(operand) if operator.kind == "-" else operand

    def _primary(self) -> Node:
        token = self._token
        if token.kind == "(":
            self._deepen(self._take())
            inner = self._disjunction()
            self._expect(")", 'an operator or ")"')
            self._depth -= 1
            return inner
        if token.kind == "string":
            return Literal(self._string())
        if token.kind == "integer":
            self._take()
            value = parse_long(token.text.rstrip("lL"))
            if value is None:
                reason = f"{shortened(token.text)} is above the highest integer, {LONG_MAX}"
                raise self._refused(token.start, reason)
            return Literal(int(value) if value <= INT_MAX else value)
        if token.kind == "float":
            self._take()
            double = parse_double(token.text)
            if not double or math.isinf(double):
                number = shortened(token.text)
                reason = f"{number} is zero or beyond a double, which no literal may be; write 0"
                raise self._refused(token.start, reason)
            return Literal(double)
        if token.kind in _CONSTANTS:
            self._take()
            return Literal(_CONSTANTS[token.kind])
        return Property(self._expect("name", 'a property, a literal or "("').text)

    # Literals

    def _string(self) -> str:
        return self._unquoted(self._expect("string", "a string in single quotes"))

    # What may stand where

    def _truth(self, node: Node, start: int) -> Node:
        if isinstance(node, Property):
            return IsTrue(node)
        if not is_truth(node):
            reason = "expected a condition, found a value; compare it with something"
            raise self._refused(start, reason)
        return node

    def _require_equatable(self, left: Node, start: int, right: Node, right_start: int) -> None:
        for node, node_start in ((left, start), (right, right_start)):
            if isinstance(node, Literal) and node.value is None:
                reason = "= and <> do not compare with NULL; write IS NULL or IS NOT NULL"
                raise self._refused(node_start, reason)
        are_literals = isinstance(left, Literal) and isinstance(right, Literal)
        if are_literals and is_truth(left) and not is_truth(right):
            reason = "TRUE and FALSE do not compare with a literal of another kind"
            raise self._refused(start, reason)

    def _require_orderable(self, node: Node, start: int) -> None:
        is_string = isinstance(node, Literal) and isinstance(node.value, str)
        if is_truth(node) or is_string:
            raise self._refused(
                start,
                "expected a number or a property: <, <=, >, >= and BETWEEN compare nothing else",
            )


def _is_above(low: object, high: object) -> bool:
    assert isinstance(low, int | float)
    assert isinstance(high, int | float)
    if isinstance(low, float) or isinstance(high, float):
        return float(low) > float(high)  # Java compares doubles then
    return low > high
