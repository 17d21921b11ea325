"""Random SQL92 expressions and properties by seed: in RocketMQ's grammar, near it and beyond it."""

from __future__ import annotations

import random

NAMES = ("a", "b", "c", "TAGS", "_x$1", "größe")  # the last cannot be named in an expression
VALUES = (
    "1", "2", "5", "-5", "+5", "007", "5.0", "5.", ".5", "1.5", "-0", "0", "-0.0", "0.0", "1e3",
    "1E+3", "1e400", "-1e400", "5d", "1.5f", "5L", " 5", "5 ", "\t5\n", "\x1f5", "5\u00a0",
    "\u30005", "1_0", "1,000", "0x10",
    "0x1p3", "-0X.8P+1d", "0x1p99999999999", "0x1p-99999999999", "0xp1", "NaN", "-NaN", "nan",
    "Infinity",
    "+Infinity", "-Infinity", "inf", "2147483647", "2147483648", "-2147483648", "-2147483649",
    "3000000000", "9223372036854775807", "9223372036854775808", "-9223372036854775808",
    "9007199254740993", "9007199254740992", "000000000000000000000000000005", "\u0665", "\uff15",
    "\U0001d7d3", "1\u0660", "true", "TRUE", "True", "false", " true", "tru\u0115", "yes", "x", "X",
    "xyz", "a'b", "--", "'", "%", "_", "\u00e4\u00f6", "\u6d88\u606f", "\U0001f600", "\ufffd", "e",
    "E5", "1e", "1e+", ".", "+", "-", "+-5", "1.5.5", "123456789.123456789",
    "4.9E-324", "1e-400", "1.7976931348623157E308", "0." + "0" * 350 + "1e351",
    "1" + "0" * 350 + "e-350", "x\x00y",
)  # fmt: skip
_INTEGERS = (
    "0", "1", "5", "5L", "7l", "2147483647", "2147483648", "9223372036854775807",
    "9007199254740993",
)  # fmt: skip
_FLOATS = (
    "1.5", "5.", ".5", "5E0", "5e-1", "1E+3", "9007199254740992.0", "4.9E-324",
    "1.7976931348623157E308",
)  # fmt: skip
_WRONG_NUMBERS = (
    "0.0", "1e400", "9223372036854775808", "0L", "007", "1e-400", "5d", "0x10", "1.5.5",
)  # fmt: skip
_STRINGS = (
    "''", "'x'", "'5'", "'1.5'", "'true'", "'TRUE'", "'it''s'", "'a''b'", "'\u00e4\u00f6'",
    "'\U0001f600'", "'y'",
)  # fmt: skip
_TOKENS = (
    *_INTEGERS, *_FLOATS, *_WRONG_NUMBERS, *_STRINGS, "a", "b", "NOT", "AND", "OR", "BETWEEN", "IN",
    "TRUE", "FALSE", "NULL", "IS", "CONTAINS", "STARTSWITH", "ENDSWITH", "=", "<>", "<", "<=", ">",
    ">=", "(", ")", ",", "+", "-", "--", "/*", "*/", "/**/", "--x\n", "--y\r", "'", '"', "!=", "*",
    "/", ";", "@", "\u00e4", "\u017f", "\u212a", "LIKE", "now()", "\u00a0", "\x0b", "#", "a.b",
    "a-b", "notes",
)  # fmt: skip
_BLANKS = ("",) * 3 + (" ",) * 12 + ("\n", "\t", "\r\n", "\f", " /* c */ ", "/***/", " -- c\n")


def random_properties(rng: random.Random) -> dict[str, str]:
    return {name: rng.choice(VALUES) for name in NAMES if rng.random() < 0.7}


def random_expression(rng: random.Random) -> str:
    """Return an expression, usually of the grammar; sometimes a damaged one, or random tokens."""
    kind = rng.random()
    if kind < 0.1:
        return _joined(rng, rng.choices(_TOKENS, k=rng.randrange(1, 8)))
    tokens = _condition(rng, rng.randrange(4))
    if kind < 0.3:
        place = rng.randrange(len(tokens) + 1)
        tokens[place : place + rng.randrange(2)] = rng.choices(_TOKENS, k=rng.randrange(3))
    return _joined(rng, tokens)


def valid_expression(rng: random.Random) -> str:
    """Return an expression of the grammar; what it compares with what may still be refused."""
    return " ".join(_condition(rng, rng.randrange(5)))


def _joined(rng: random.Random, tokens: list[str]) -> str:
    return "".join(token + rng.choice(_BLANKS) for token in tokens)


def _condition(rng: random.Random, depth: int) -> list[str]:
    kind = rng.randrange(6) if depth else 5
    if kind <= 2:
        operands = [_condition(rng, depth - 1) for _ in range(rng.choice((2, 2, 3)))]
        return _chain(operands, _keyword(rng, "AND" if kind else "OR"))
    if kind == 3:
        return [_keyword(rng, "NOT"), "(", *_condition(rng, depth - 1), ")"]
    if kind == 4:
        return ["(", *_condition(rng, depth - 1), ")"]
    return _comparison(rng, depth)


def _comparison(rng: random.Random, depth: int) -> list[str]:
    kind = rng.randrange(12)
    left = _operand(rng, depth)
    negation = [_keyword(rng, "NOT")] if rng.random() < 0.4 else []
    if kind <= 2:
        return [*left, rng.choice(("=", "<>")), *_operand(rng, depth)]
    if kind <= 5:
        return [*left, rng.choice(("<", "<=", ">", ">=")), *_number(rng)]
    if kind <= 7:
        return [
            *left, *negation, _keyword(rng, "BETWEEN"), *_number(rng), _keyword(rng, "AND"),
            *_number(rng),
        ]  # fmt: skip
    if kind == 8:
        texts = _chain([[rng.choice(_STRINGS)] for _ in range(rng.choice((1, 2, 7)))], ",")
        return [rng.choice(NAMES[:4]), *negation, _keyword(rng, "IN"), "(", *texts, ")"]
    if kind == 9:
        search = rng.choice(("CONTAINS", "STARTSWITH", "ENDSWITH"))
        return [*left, *negation, _keyword(rng, search), rng.choice(_STRINGS)]
    if kind == 10:
        return [*left, _keyword(rng, "IS"), *negation, _keyword(rng, "NULL")]
    return [*negation, rng.choice(NAMES[:4])]


def _operand(rng: random.Random, depth: int) -> list[str]:
    kind = rng.randrange(20)
    if kind < 9:
        return [rng.choice(NAMES[:5])]
    if kind < 12:
        return [rng.choice(_STRINGS)]
    if kind < 14:
        return [_keyword(rng, rng.choice(("TRUE", "FALSE", "TRUE", "FALSE", "NULL")))]
    if kind == 14 and depth:
        return [rng.choice(("-", "+", "")), "(", *_condition(rng, depth - 1), ")"]
    return _number(rng)


def _number(rng: random.Random) -> list[str]:
    kind = rng.randrange(12)
    if kind < 2:
        return [rng.choice(("a", "b", "c"))]
    if kind == 2:
        return ["-", "(", *_comparison(rng, 0), ")"]
    return [*rng.choice(([], [], [], ["-"], ["+"], ["-", "-"])), rng.choice(_INTEGERS + _FLOATS)]


def _chain(parts: list[list[str]], between: str) -> list[str]:
    return [token for part in parts for token in (*part, between)][:-1]


def _keyword(rng: random.Random, word: str) -> str:
    return rng.choice((word, word, word.lower(), word.capitalize()))
