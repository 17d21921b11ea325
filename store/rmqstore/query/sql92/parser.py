"""Text to tree, by RocketMQ's grammar and with its refusals.

Two of its habits are kept because its consumers live by them. Text after a complete expression is
    not read:
``a = 0L`` is ``a = 0``, for only other integers take an ``L``. And ``--`` begins a comment only if
a line ends after it.

Source: SelectorParser.jj; the refusals: ComparisonExpression.java, ConstantExpression.java.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple, NoReturn

from rmqstore.errors import OptionError
from rmqstore.query.sql92.numbers import INT_MAX, Number, compare_doubles, parse_double, parse_long
from rmqstore.query.sql92.tree import (
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
    NotBetween,
    Or,
    Order,
    Property,
    Search,
    is_truth,
    walk,
)

MAX_DEPTH = 64  # of parentheses, and of the tree; each level takes several frames of Python's stack
_SHOWN = 200  # characters of an expression that an error repeats

_TOKEN = re.compile(
    r"""
    (?P<skip>    [ \t\n\r\f]+ | --[^\n\r]*[\n\r] | /\*.*?\*/ )
    | (?P<float>   [0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)? | \.[0-9]+(?:[eE][+-]?[0-9]+)? | [0-9]+[eE][+-]?[0-9]+ )
    | (?P<integer> 0 | [1-9][0-9]*[lL]? )
    | (?P<string>  '(?:''|[^'])*' )
    | (?P<name>    [a-zA-Z_$][a-zA-Z0-9_$]* )
    | (?P<symbol>  <> | <= | >= | [<>=(),+-] )
    """,
    re.VERBOSE | re.DOTALL,
)
_KEYWORDS = frozenset(
    {
        "NOT",
        "AND",
        "OR",
        "BETWEEN",
        "IN",
        "TRUE",
        "FALSE",
        "NULL",
        "IS",
        "CONTAINS",
        "STARTSWITH",
        "ENDSWITH",
    }
)
_CONSTANTS = {"TRUE": True, "FALSE": False, "NULL": None}
_ORDERS = frozenset({"<", "<=", ">", ">="})
_SEARCHES = frozenset({"CONTAINS", "STARTSWITH", "ENDSWITH"})
_END = "end"


class _Token(NamedTuple):
    kind: str  # float, integer, string, name, end; a keyword or symbol is its own kind
    text: str
    at: int  # its first character


class Parsed(NamedTuple):
    """A tree, and the text after it that RocketMQ does not read, with blanks and comments before it left out."""

    tree: Node
    unread: str


def parse(text: str) -> Parsed:
    """Parse an expression.

    Raises:
        OptionError: RocketMQ refuses it, or it nests deeper than MAX_DEPTH.
    """
    return _Parser(text).parse()


class _Parser:
    """One token ahead, as RocketMQ's: nothing after an expression's end and one more token is looked at."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._open = 0  # parentheses and signs around the present place
        lone = next((at for at, char in enumerate(text) if "\ud800" <= char <= "\udfff"), None)
        if lone is not None:
            self._refuse(lone, "half of a surrogate pair, which no property holds")
        self._token = self._read(0)

    def parse(self) -> Parsed:
        start = self._token.at
        tree = self._truth(self._disjunction(), start)
        if any(depth > MAX_DEPTH for _, depth in walk(tree)):
            self._refuse(
                start, f"more than {MAX_DEPTH} operators one upon the other; write it with fewer"
            )
        return Parsed(tree, self._text[self._token.at :])

    # Tokens

    def _read(self, at: int) -> _Token:
        """Return the token at or after a position."""
        while at < len(self._text):
            match = _TOKEN.match(self._text, at)
            if match is None:
                self._refuse(at, _unreadable(self._text, at))
            if match.lastgroup != "skip":
                found, kind = match[0], str(match.lastgroup)
                if kind == "symbol" or found.upper() in _KEYWORDS:
                    kind = found.upper()
                return _Token(kind, found, at)
            at = match.end()
        return _Token(_END, "", at)

    def _take(self) -> _Token:
        taken = self._token
        self._token = self._read(taken.at + len(taken.text))
        return taken

    def _accept(self, *kinds: str) -> _Token | None:
        return self._take() if self._token.kind in kinds else None

    def _expect(self, kind: str, wanted: str) -> _Token:
        if self._token.kind != kind:
            self._refuse_token(wanted)
        return self._take()

    def _refuse_token(self, wanted: str) -> NoReturn:
        found = "the end" if self._token.kind == _END else f"{_shortened(self._token.text)}"
        self._refuse(self._token.at, f"expected {wanted}, found {found}")

    def _refuse(self, at: int, reason: str) -> NoReturn:
        raise OptionError(f"SQL92 filter {_shortened(self._text)!r}, character {at + 1}: {reason}")

    # Grammar, from what binds least to what binds most

    def _disjunction(self) -> Node:
        at = self._token.at
        left = self._conjunction()
        if self._token.kind != "OR":
            return left
        operands = [self._truth(left, at)]
        while self._accept("OR"):
            at = self._token.at
            operands.append(self._truth(self._conjunction(), at))
        return Or(tuple(operands))

    def _conjunction(self) -> Node:
        at = self._token.at
        left = self._equality()
        if self._token.kind != "AND":
            return left
        operands = [self._truth(left, at)]
        while self._accept("AND"):
            at = self._token.at
            operands.append(self._truth(self._equality(), at))
        return And(tuple(operands))

    def _equality(self) -> Node:
        at = self._token.at
        left = self._comparison()
        while True:
            if operator := self._accept("=", "<>"):
                right_at = self._token.at
                right = self._comparison()
                self._require_equatable(left, at, right, right_at)
                left = Equal(left, right) if operator.kind == "=" else Not(Equal(left, right))
            elif self._accept("IS"):
                negated = self._accept("NOT")
                self._expect("NULL", "NULL" if negated else "NULL or NOT NULL")
                left = Not(IsNull(left)) if negated else IsNull(left)
            else:
                return left

    def _comparison(self) -> Node:
        at = self._token.at
        left = self._unary()
        while True:
            if operator := self._accept(*_ORDERS):
                right_at = self._token.at
                right = self._unary()
                self._require_orderable(left, at)
                self._require_orderable(right, right_at)
                left = Order(operator.kind, left, right)
                continue
            negated = self._accept("NOT") is not None
            if operator := self._accept(*_SEARCHES):
                left = Search(operator.kind, left, self._string(), negated)
            elif self._accept("BETWEEN"):
                left = self._between(left, at, negated=negated)
            elif self._accept("IN"):
                left = self._in(left, at)
                left = Not(left) if negated else left
            elif negated:
                self._refuse_token("BETWEEN, IN, CONTAINS, STARTSWITH or ENDSWITH after NOT")
            else:
                return left

    def _between(self, operand: Node, at: int, *, negated: bool) -> Node:
        low_at = self._token.at
        low = self._unary()
        self._expect("AND", "AND between the two ends of BETWEEN")
        high_at = self._token.at
        high = self._unary()
        for node, place in ((operand, at), (low, low_at), (high, high_at)):
            self._require_orderable(node, place)
        if negated:
            return NotBetween(operand, low, high)
        if (
            isinstance(low, Literal)
            and isinstance(high, Literal)
            and _is_above(low.value, high.value)
        ):
            self._refuse(
                low_at, f"BETWEEN {low.value} AND {high.value} has its ends the wrong way round"
            )
        return Between(operand, low, high)

    def _in(self, operand: Node, at: int) -> Node:
        self._expect("(", '"(" and strings after IN')
        texts = [self._string()]
        while self._accept(","):
            texts.append(self._string())
        self._expect(")", '"," or ")"')
        if not isinstance(operand, Property):
            self._refuse(at, "expected the name of a property before IN")
        return In(operand, frozenset(texts))

    def _unary(self) -> Node:
        operator = self._accept("+", "-", "NOT")
        if operator is None:
            return self._primary()
        self._deepen(operator)
        at = self._token.at
        operand = self._unary()
        self._open -= 1
        if operator.kind == "NOT":
            return Not(self._truth(operand, at))
        return Negate(operand) if operator.kind == "-" else operand

    def _primary(self) -> Node:
        token = self._token
        if token.kind == "(":
            self._deepen(self._take())
            inner = self._disjunction()
            self._expect(")", 'an operator or ")"')
            self._open -= 1
            return inner
        if token.kind == "string":
            return Literal(self._string())
        if token.kind == "integer":
            return Literal(self._integer(self._take()))
        if token.kind == "float":
            return Literal(self._double(self._take()))
        if token.kind in _CONSTANTS:
            self._take()
            return Literal(_CONSTANTS[token.kind])
        return Property(self._expect("name", 'a property, a literal or "("').text)

    def _deepen(self, token: _Token) -> None:
        self._open += 1
        if self._open > MAX_DEPTH:
            self._refuse(
                token.at,
                f"nested deeper than {MAX_DEPTH} levels; write it with fewer parentheses and signs",
            )

    # Literals

    def _string(self) -> str:
        token = self._expect("string", "a string in single quotes")
        return token.text[1:-1].replace("''", "'")

    def _integer(self, token: _Token) -> Number:
        found = parse_long(token.text.rstrip("lL"))
        if found is None:
            self._refuse(
                token.at, f"{_shortened(token.text)} is above the highest integer, {(1 << 63) - 1}"
            )
        return int(found) if found <= INT_MAX else found

    def _double(self, token: _Token) -> float:
        found = parse_double(token.text)
        if not found or math.isinf(found):
            self._refuse(
                token.at,
                f"{_shortened(token.text)} is zero or beyond a double, which no literal may be; write 0",
            )
        return found

    # What may stand where

    def _truth(self, node: Node, at: int) -> Node:
        if isinstance(node, Property):
            return IsTrue(node)
        if not is_truth(node):
            self._refuse(at, "expected a condition, found a value; compare it with something")
        return node

    def _require_equatable(self, left: Node, at: int, right: Node, right_at: int) -> None:
        for node, place in ((left, at), (right, right_at)):
            if isinstance(node, Literal) and node.value is None:
                self._refuse(
                    place, "= and <> do not compare with NULL; write IS NULL or IS NOT NULL"
                )
        if (
            isinstance(left, Literal)
            and isinstance(right, Literal)
            and is_truth(left)
            and not is_truth(right)
        ):
            self._refuse(at, "TRUE and FALSE do not compare with a literal of another kind")

    def _require_orderable(self, node: Node, at: int) -> None:
        is_number = (
            isinstance(node, Literal) and isinstance(node.value, int | float) and not is_truth(node)
        )
        if is_truth(node) or (isinstance(node, Literal) and not is_number):
            self._refuse(
                at, "expected a number or a property: <, <=, >, >= and BETWEEN compare nothing else"
            )


def _unreadable(text: str, at: int) -> str:
    """Return what is wrong with a place where no token begins."""
    if text.startswith("'", at):
        return "a string that does not end"
    if text.startswith("/*", at):
        return "a comment that does not end"
    if text[at] == '"':
        return "expected an expression, found a double quote; strings stand in single quotes"
    if text.startswith("!=", at):
        return "expected an operator, found !=; write <>"
    return f"{text[at]!r} has no place in an expression"


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _is_above(low: object, high: object) -> bool:
    assert isinstance(low, int | float)
    assert isinstance(high, int | float)
    if isinstance(low, float) or isinstance(high, float):
        return compare_doubles(float(low), float(high)) > 0
    return low > high
