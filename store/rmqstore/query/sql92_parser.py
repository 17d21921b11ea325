"""Parses an expression by RocketMQ's grammar, and refuses what RocketMQ refuses.

Two of its habits are kept because its consumers live by them. Text after a complete expression is
not read: ``a = 0L`` is ``a = 0``, for only other integers take an ``L``. And ``--`` begins a
comment only if a line ends after it.

Source: SelectorParser.jj; the refusals: ComparisonExpression.java, ConstantExpression.java.

A value is what Java has there: None, bool, str, int (Integer), Long, float (Double). Python's own
conversions differ: ``int`` takes blanks and underscores, ``float`` takes ``inf`` and no ``1.5f``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias, get_args

from rmqstore.errors import Argument, Text
from rmqstore.query.tokens import Token, Tokens, shortened

INT_MIN, INT_MAX = -(1 << 31), (1 << 31) - 1
LONG_MIN, LONG_MAX = -(1 << 63), (1 << 63) - 1
_LONG_DIGITS = 19
# With this exponent a double is zero or infinite, however many digits stand before it.
_FARTHEST_EXPONENT = "999999999"

_BLANKS = "".join(map(chr, range(0x21)))  # what String.trim takes away
_DIGITS = re.compile(r"([+-]?)(\d+)")  # of any script, as Character.digit knows them
_DECIMAL = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[fFdD]?")
_HEXADECIMAL = re.compile(
    r"([+-]?0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+))[pP]([+-]?[0-9]+)[fFdD]?"
)
_NAMED = {"NaN": math.nan, "Infinity": math.inf}

MAX_DEPTH = 64  # of parentheses, and of the tree; each level takes several frames of Python's stack

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


class Long(int):
    """A number of Java's class Long; a plain int is an Integer, a float a Double."""

    __slots__ = ()

    def __neg__(self) -> Long:
        """Return the negated number, which is a Long too."""
        return Long(-int(self))


Number = int | float


def parse_integer(text: str) -> int | None:
    """Return the Integer that a string spells, None for none.

    Source: Integer.java#valueOf of the JDK.
    """
    return _parse_digits(text, INT_MIN, INT_MAX)


def parse_long(text: str) -> Long | None:
    """Return the Long that a string spells, None for none.

    Source: Long.java#valueOf of the JDK.
    """
    value = _parse_digits(text, LONG_MIN, LONG_MAX)
    return None if value is None else Long(value)


def _parse_digits(text: str, lowest: int, highest: int) -> int | None:
    # Java looks at UTF-16 units one by one, so a digit of two units is none.
    match = _DIGITS.fullmatch(text)
    if match is None or max(text) > "\uffff":
        return None
    sign, digits = match.groups()
    if len(digits) > _LONG_DIGITS:
        digits = "".join(str(int(digit)) for digit in digits).lstrip("0") or "0"
        if len(digits) > _LONG_DIGITS:
            return None
    value = -int(digits) if sign == "-" else int(digits)
    return value if lowest <= value <= highest else None


def parse_double(text: str) -> float | None:
    """Return the Double that a string spells, None for none.

    Source: Double.java#valueOf of the JDK.
    """
    text = text.strip(_BLANKS)
    match = _DECIMAL.fullmatch(text)
    if match is not None:
        return float(match[1])
    match = _HEXADECIMAL.fullmatch(text)
    if match is not None:
        significand = match[1]
        exponent = match[2]
        digits = exponent.lstrip("+-").lstrip("0") or "0"
        if len(digits) > len(_FARTHEST_EXPONENT):
            digits = _FARTHEST_EXPONENT
        try:
            return float.fromhex(f"{significand}p{'-' if exponent[0] == '-' else ''}{digits}")
        except OverflowError:
            return -math.inf if significand[0] == "-" else math.inf
    named = _NAMED.get(text[1:] if text[:1] in ("+", "-") else text)
    return -named if named is not None and text[0] == "-" else named


def compare_doubles(left: float, right: float) -> int:
    """Return a number less than, equal to or greater than 0.

    NaN is above all other numbers and equals itself; 0.0 is above -0.0.

    Source: Double.java#compare of the JDK.
    """
    if left < right:
        return -1
    if left > right:
        return 1
    if math.isnan(left) or math.isnan(right):
        return math.isnan(left) - math.isnan(right)
    left_sign = math.copysign(1, left)
    right_sign = math.copysign(1, right)
    return (left_sign > right_sign) - (left_sign < right_sign)


Value: TypeAlias = bool | str | Number | None


class Literal(NamedTuple):
    """A constant. Source: ConstantExpression.java, BooleanConstantExpression.java."""

    value: Value


class Property(NamedTuple):
    """A property of the message, always a string, or null. Source: PropertyExpression.java."""

    name: str


class Negate(NamedTuple):
    """A minus sign: null for all but numbers. Source: UnaryExpression.java#createNegate."""

    operand: Node


class IsTrue(NamedTuple):
    """A property in place of a truth: FALSE, because it is a string, or null.

    Source: UnaryExpression.java#createBooleanCast.
    """

    operand: Node


class Not(NamedTuple):
    """Source: UnaryExpression.java#createNOT."""

    operand: Node


class And(NamedTuple):
    """Two operands or more, from left to right. Source: LogicExpression.java#createAND."""

    operands: tuple[Node, ...]


class Or(NamedTuple):
    """Two operands or more, from left to right. Source: LogicExpression.java#createOR."""

    operands: tuple[Node, ...]


class Equal(NamedTuple):
    """Source: ComparisonExpression.java#doCreateEqual."""

    left: Node
    right: Node


class IsNull(NamedTuple):
    """Source: ComparisonExpression.java#createIsNull."""

    operand: Node


class Order(NamedTuple):
    """A comparison of numbers by one of ``< <= > >=``.

    Source: ComparisonExpression.java#evaluate.
    """

    symbol: str
    left: Node
    right: Node


class Between(NamedTuple):
    """``low <= operand AND operand <= high``, in RocketMQ's order.

    Source: ComparisonExpression.java#createBetween.
    """

    operand: Node
    low: Node
    high: Node


class NotBetween(NamedTuple):
    """``operand < low OR operand > high``. Source: ComparisonExpression.java#createNotBetween."""

    operand: Node
    low: Node
    high: Node


class In(NamedTuple):
    """A property that is one of some strings. Source: UnaryExpression.java#createInExpression."""

    operand: Node
    texts: frozenset[str]


class Search(NamedTuple):
    """A string in a string, by CONTAINS, STARTSWITH or ENDSWITH; FALSE for null, also with NOT.

    Source: ComparisonExpression.java#ContainsExpression and the five classes like it.
    """

    how: str
    operand: Node
    text: str
    negated: bool


Node: TypeAlias = (
    Literal
    | Property
    | Negate
    | IsTrue
    | Not
    | And
    | Or
    | Equal
    | IsNull
    | Order
    | Between
    | NotBetween
    | In
    | Search
)
_PARTS = get_args(Node)
_OPERANDS = (Literal, Property, Negate)


def is_truth(node: Node) -> bool:
    """Return whether the part gives TRUE, FALSE or null by its kind.

    Source: BooleanExpression.java.
    """
    if isinstance(node, Literal):
        return node.value is None or isinstance(node.value, bool)
    return not isinstance(node, _OPERANDS)


def walk(tree: Node) -> Iterator[tuple[Node, int]]:
    """Yield every part of a tree from left to right, with its depth; the root has depth 1."""
    waiting = [(tree, 1)]
    while waiting:
        node, depth = waiting.pop()
        yield node, depth
        fields = node.operands if isinstance(node, And | Or) else node
        waiting.extend((part, depth + 1) for part in reversed(fields) if isinstance(part, _PARTS))


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

    _SUBJECT = Text("SQL92 ", Argument("filter"))
    _PATTERN = _TOKEN
    _KEYWORDS = _KEYWORDS

    def __init__(self, text: str) -> None:
        self._text = text
        self._open = 0  # parentheses and signs around the present place
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
        start = self._token.start
        left = self._conjunction()
        if self._token.kind != "OR":
            return left
        operands = [self._truth(left, start)]
        while self._accept("OR"):
            start = self._token.start
            operands.append(self._truth(self._conjunction(), start))
        return Or(tuple(operands))

    def _conjunction(self) -> Node:
        start = self._token.start
        left = self._equality()
        if self._token.kind != "AND":
            return left
        operands = [self._truth(left, start)]
        while self._accept("AND"):
            start = self._token.start
            operands.append(self._truth(self._equality(), start))
        return And(tuple(operands))

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
                negated = self._accept("NOT")
                self._expect("NULL", "NULL" if negated else "NULL or NOT NULL")
                left = Not(IsNull(left)) if negated else IsNull(left)
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
                texts = [self._string()]
                while self._accept(","):
                    texts.append(self._string())
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
        if negated:
            return NotBetween(operand, low, high)
        if (
            isinstance(low, Literal)
            and isinstance(high, Literal)
            and _is_above(low.value, high.value)
        ):
            reason = f"BETWEEN {low.value} AND {high.value} has its ends the wrong way round"
            raise self._refused(low_start, reason)
        return Between(operand, low, high)

    def _unary(self) -> Node:
        operator = self._accept("+", "-", "NOT")
        if operator is None:
            return self._primary()
        self._deepen(operator)
        start = self._token.start
        operand = self._unary()
        self._open -= 1
        if operator.kind == "NOT":
            return Not(self._truth(operand, start))
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
            self._take()
            value = parse_long(token.text.rstrip("lL"))
            if value is None:
                highest = (1 << 63) - 1
                reason = f"{shortened(token.text)} is above the highest integer, {highest}"
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

    def _deepen(self, token: Token) -> None:
        self._open += 1
        if self._open > MAX_DEPTH:
            raise self._refused(
                token.start,
                f"nested deeper than {MAX_DEPTH} levels; write it with fewer parentheses and signs",
            )

    # Literals

    def _string(self) -> str:
        token = self._expect("string", "a string in single quotes")
        return token.text[1:-1].replace("''", "'")

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
        return compare_doubles(float(low), float(high)) > 0
    return low > high
