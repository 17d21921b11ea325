"""RocketMQ's own filter module judges ours: which expressions it refuses, and all their results.

``golden/sql92.json.xz`` holds what :meth:`RealFilters.answer` gives for every case.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import goldens
import tiers
from interop.random_filters import (
    VALUES,
    random_expression,
    random_properties,
    valid_expression,
)
from interop.rocketmq import RocketMQ
from rmqstore.format.columns.decode import property_values
from rmqstore.format.columns.record_headers import read_headers
from rmqstore.query.sql92_filter import compile_filter
from sql92_answers import Answered, ours, recorded

pytestmark = pytest.mark.interop

EXPRESSIONS = [
    "a", "NOT a", "a AND b", "a = 5", "a <> 5", "NOT a = 5", "NOT (a = 5)", "a = 'x'", "'x' = a",
    "a <> 'x'",
    "a = b", "a <> b", "a = TRUE", "TRUE = a", "a = FALSE", "5 = TRUE", "TRUE = 5", "TRUE = TRUE",
    "TRUE <> FALSE", "'true' = TRUE", "TRUE = 'true'", "a = NULL", "NULL = a", "a <> NULL",
    "NULL IS NULL", "a IS NULL",
    "a IS NOT NULL", "5 IS NULL", "(a = 5) IS NULL", "(a = 5) = (b = 5)", "(a = 5) = b",
    "b = (a = 5)",
    "a > 5", "a >= 5", "a < 5", "a <= 5", "5 < a", "a > 2147483648", "a > -2147483648",
    "a = -2147483648", "a = 2147483648", "a = 9223372036854775807", "a = 9223372036854775808",
    "a > 5.0", "a = 5.0", "5 = 5.0", "a = 9007199254740993.0",
    "9007199254740993 = 9007199254740992.0", "a > b", "a >= b", "a < b", "a <= b",
    "a > 'x'", "'x' < a", "a > TRUE", "(a = 5) > 5", "a > (b = 5)", "a < -(b = 5)", "a = -(b = 5)",
    "-(b = 5) < a", "a > -'x'", "a > -NULL", "a = -NULL", "-a = 5", "-a IS NULL", "- - 5 = a",
    "+a = +5", "+ 'x' = a", "-TRUE > a", "a BETWEEN 1 AND 5", "a NOT BETWEEN 1 AND 5",
    "a BETWEEN 5 AND 1", "a NOT BETWEEN 5 AND 1", "a BETWEEN 5 AND 5.0", "a BETWEEN 5.5 AND 5",
    "a BETWEEN -1 AND -5", "a BETWEEN b AND c", "NOT (a BETWEEN b AND c)", "a NOT BETWEEN b AND c",
    "5 BETWEEN a AND b", "a BETWEEN '1' AND '5'", "a BETWEEN NULL AND 5",
    "a BETWEEN TRUE AND FALSE", "NULL BETWEEN 1 AND 5", "-(a = 5) BETWEEN 1 AND 5",
    "a IN ('x')", "a NOT IN ('x', '5')", "a IN ('1','2','5','x','xyz','true')", "a IN ()",
    "a IN (5)", "5 IN ('x')", "(a) IN ('x')", "+a IN ('x')", "-a IN ('x')", "a IN ('x') IN ('y')",
    "a IN ('x') = TRUE", "a IN ('x',)", "a CONTAINS '5'", "a NOT CONTAINS '5'", "a STARTSWITH 'x'",
    "a NOT STARTSWITH 'x'", "a ENDSWITH 'z'", "a NOT ENDSWITH 'z'", "a CONTAINS ''",
    "a NOT CONTAINS ''", "5 CONTAINS '5'", "'55' CONTAINS '5'", "'55' NOT CONTAINS '4'",
    "5 NOT CONTAINS '4'", "a CONTAINS 5", "a CONTAINS b", "(TRUE = a) CONTAINS 'x'",
    "(TRUE = a) CONTAINS ''", "a CONTAINS 'x' CONTAINS 'y'", "a CONTAINS 'x' = TRUE",
    "a CONTAINS '\U0001f600'", "a > 5 OR b = 'x'", "b = 'x' OR a > 5", "a > 5 AND b = 'x'",
    "b = 'x' AND a > 5", "NOT (b = 'x' AND a > 5)", "a > 5 OR a IS NULL OR b = 'x'",
    "a = 1 OR b = 2 AND c = 3", "(a = 1 OR b = 2) AND c = 3", "a > 1 > 2", "a = 5 = TRUE",
    "a = b = c", "TRUE", "FALSE", "NULL", "NOT NULL", "NULL OR TRUE", "NULL AND FALSE", "5", "'x'",
    "-a",
    "a AND 5", "5 OR a", "NOT 5", "a OR -b", "", " ", "()", "(a", "a)", "a b", "a = 5 b = 6",
    "a = 5 @", "a = 5 b @", "a = 0L", "a = 0L AND b = 5", "a = 007", "a = 00.5", "a = 0.0",
    "a = 0e5", "a = 1e400", "a = 1e-400", "a = 5d", "a = 5e", "a = .5", "a = .", "a = 5.e1",
    "a = 5L", "a = 5l b", "a == 5", "a != 5", 'a = "x"', "a = 'x", "a = 'it''s'", "a = 'x''",
    "a = '--'", "a = 5 -- x", "a = 5 -- x\n", "a = -- x\n5", "a = --5", "a = 5 --\r\n AND b = 5",
    "a /* x */ = /* ** */ 5", "a = 5 /* x", "a = 5 /*/ x */ ", "/**/a", "/* a */", "A = 5", "Not A",
    "a iS nOt nUlL", "not", "a is", "a is not", "a not", "a not 5", "a in", "a between 1",
    "a between 1 and", "tags = 'x'", "TAGS = 'x'", "$a = 5", "_x$1 = '5'", "a.b = 5", "a-b = 5",
    "a - 5 = 0", "a + b", "a LIKE 'x%'", "gr\u00f6\u00dfe = 5", "\u212a = 5",
    "notes = 'x'", "inx = 5", "a = '\u6d88\u606f'", "a\u00a0= 5", "a = 5\u00a0", "a\x0b= 5",
    "a\x0c= 5", "a = 'x\ny'", "a,b",
]  # fmt: skip


class RealFilters:
    """RocketMQ's SqlFilter, applied to many expressions and messages in one call each."""

    def __init__(self, real: RocketMQ) -> None:
        self._java, self._rocketmq = real.java, real.rocketmq
        self._filter = self._rocketmq.filter.FilterFactory.INSTANCE.get("SQL92")
        self._expression = self._class("org.apache.rocketmq.filter.expression.Expression")
        self._context = self._class("org.apache.rocketmq.filter.expression.EvaluationContext")

    def compile(self, texts: Sequence[str]) -> list[Any]:
        string = self._class("java.lang.String")
        compiled = self._function(
            self._filter, self._class("org.apache.rocketmq.filter.FilterSpi"), "compile", string
        )
        return list(self._mapped(compiled, texts).toArray())

    def contexts(self, rows: Sequence[Mapping[str, str]]) -> Any:
        context = self._rocketmq.broker.filter.MessageEvaluationContext
        found = self._java.util.ArrayList()
        for row in rows:
            found.add(context(row))
        return found

    def answer(self, asked: Answered) -> Answered:
        contexts = self.contexts(asked.rows)
        compiled = zip(asked.answers, self.compile(list(asked.answers)), strict=True)
        answers = {
            text: None if made is None else self.evaluate(made, contexts) for text, made in compiled
        }
        return Answered(asked.rows, answers)

    def evaluate(self, expression: Any, contexts: Any) -> str:
        evaluated = self._function(expression, self._expression, "evaluate", self._context, "x")
        values = self._mapped(evaluated, contexts).toString()[1:-1].split(", ")
        return "".join(value[0] for value in values)

    def _class(self, name: str) -> Any:
        return self._java.lang.Class.forName(name)

    def _mapped(self, function: Any, values: Any) -> Any:
        taken = self._java.util.ArrayList(values)
        return taken.stream().map(function).collect(self._java.util.stream.Collectors.toList())

    def _function(
        self, bound: Any, owner: Any, name: str, takes: Any, thrown: str | None = None
    ) -> Any:
        """Return a method as a java.util.function.Function that returns ``thrown`` if it throws."""
        invoke = self._java.lang.invoke
        result = self._expression if name == "compile" else self._class("java.lang.Object")
        method = invoke.MethodHandles.publicLookup().findVirtual(
            owner, name, invoke.MethodType.methodType(result, takes)
        )
        raises = self._java.util.List.of(self._class("java.lang.Throwable"))
        handler = invoke.MethodHandles.dropArguments(
            invoke.MethodHandles.constant(result, thrown), 0, raises
        )
        caught = invoke.MethodHandles.catchException(method.bindTo(bound), raises.get(0), handler)
        return invoke.MethodHandleProxies.asInterfaceInstance(
            self._class("java.util.function.Function"), caught
        )


@pytest.fixture(scope="module")
def real(rocketmq: RocketMQ) -> RealFilters:
    return RealFilters(rocketmq)


def by_hand() -> Answered:
    rng = random.Random(92)
    rows = [
        {},
        *({"a": value} for value in VALUES),
        *({"b": "x", "a": value, "A": value} for value in VALUES),
        *(random_properties(rng) for _ in range(60)),
    ]
    return Answered(rows, dict.fromkeys(EXPRESSIONS))


def numbers() -> Answered:
    """Ask each value as a number of each class."""
    literals = [
        "5", "0", "2147483647", "3000000000", "9223372036854775807", "9007199254740992.0", "1.5",
        "5.0", "1e3",
    ]  # fmt: skip
    signed = [*literals, *(f"-{literal}" for literal in literals)]
    texts = (f"a {symbol} {literal}" for symbol in ("=", "<", ">=") for literal in signed)
    return Answered([{"a": value} for value in VALUES], dict.fromkeys(texts))


def pairs() -> Answered:
    """Ask each value against each other one, as doubles."""
    rows = [{"a": left, "b": right} for left in VALUES for right in VALUES]
    return Answered(rows, dict.fromkeys(("a < b", "a >= b", "a = b")))


def doubles() -> Answered:
    rng = random.Random(7)

    def literal() -> str:
        if rng.random() < 0.5:
            return "".join(
                rng.choice("0123456789..eE+-fdxXpPaF ") for _ in range(rng.randrange(1, 9))
            )
        return rng.choice(("{!r}", "{:.3e}", "{:.20g}", "{!r}f", " {!r} ")).format(
            rng.uniform(-3, 3) * 10 ** rng.randrange(-30, 30)
        )

    values = [literal() for _ in range(4000)] + [
        float(rng.uniform(-1e3, 1e3)).hex() for _ in range(500)
    ]
    rows = [
        {"a": value, "b": rng.choice(values), "c": repr(rng.uniform(-3, 3))} for value in values
    ]
    return Answered(rows, dict.fromkeys(("a < c", "a >= b", "a < 1.5", "a = 1", "a > 3000000000")))


def randomly(seed: int) -> Answered:
    rng = random.Random(seed)
    texts = [random_expression(rng) for _ in range(400)]
    texts += [valid_expression(rng) for _ in range(400)]
    return Answered([random_properties(rng) for _ in range(60)], dict.fromkeys(texts))


# Of what golden/sql92.json.xz has the answers, by name.
CASES = {
    **{case.__name__: case for case in (by_hand, numbers, pairs, doubles)},
    **{f"random-{seed}": partial(randomly, seed) for seed in range(4)},
}


@pytest.mark.parametrize("name", CASES)
def test_the_real_filter_answers_as_is_recorded(real: RealFilters, name: str) -> None:
    assert real.answer(CASES[name]()) == recorded()[name]


@pytest.mark.parametrize("seed", tiers.seeds(2))
def test_random_expressions_give_what_the_real_filter_gives(real: RealFilters, seed: int) -> None:
    rows, answers = real.answer(randomly(seed + len(CASES)))
    for text, answer in answers.items():
        assert ours(text, rows) == answer, text


@pytest.mark.parametrize(
    "text", ["color = 'red'", "a > 12", "a BETWEEN 10 AND 15 OR INSTANCE IS NULL", "KEYS <> 'k'"]
)
def test_stored_messages_are_kept_that_the_real_filter_matches(
    real: RealFilters, tmp_path: Path, text: str
) -> None:
    """From the bytes of a broker's log to the mask; the real filter gets the parsed properties."""
    data = np.fromfile(goldens.unpack("cq-ext", tmp_path) / "commitlog" / ("0" * 20), np.uint8)
    rows = [row for row in goldens.lines("cq-ext", "expected") if row["physicalOffset"] < len(data)]
    headers, whole = read_headers(data, np.array([row["physicalOffset"] for row in rows]))
    assert whole.all()
    compiled = compile_filter(text)
    kept = compiled.keep(property_values(data, headers, compiled.names), len(headers)).tolist()
    contexts = real.contexts([row["properties"] for row in rows])
    assert kept == [letter == "t" for letter in real.evaluate(real.compile([text])[0], contexts)]
    assert 0 < sum(kept) < len(rows)
