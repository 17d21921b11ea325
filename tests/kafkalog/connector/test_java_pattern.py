"""Regular expressions of Java, as Spark's Kafka source takes them."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from pyspark_kafkalog.java_pattern import compile_java
from rmqstore.errors import OptionError

NAMES = (
    "a", "A", "orders", "Orders", "ORDERS", "orders-eu", "orders.eu.1", "o", "z9", "9", "10-a",
    "_x", "__internal", "a.b", "a-b", "a_b", "aa", "aab", "abab", "abcabc", "Zebra.2024-01-01",
    "dlq.orders-eu", "-", ".x", "x-", "E", "Qa", "d", "w", "s", "b",
)  # fmt: skip

TRANSLATED = r"""
    orders ^orders$ o|z (?:a|b)+ a* a*+b a++ a?+b (?>a|ab)c a{2} a{1,}b (a|b){2,3} (?<x>ab)\k<x>
    (abc)\1 (?i)orders (?i:O)rders (?s)a.b (?im)^ORDERS$ (?i)(?s)a (?iu)oRDERS (?-i)orders
    (?i)[^o]rders (?i)[a-c]+$ o(?!rders-) (?<=-)eu (?<!-)eu (?=.*eu)orders \p{Upper} \P{Upper}
    ^\p{Lower}+$ ^\p{Alpha}+$ \p{Digit} ^\p{Alnum}+$ \p{Punct} ^\p{L}+$ \pL \PL \p{Lu}
    \p{IsAlphabetic} \p{IsL} \p{IsLatin} \p{Nd} \p{Pd} \p{Pc} \p{P} \p{XDigit} \p{ASCII} \p{Graph}
    \p{javaLowerCase} [\p{Upper}\p{Digit}] [^\p{Lower}] [\P{Lower}] [\p{L}-] \Qa.b\E \Qa.b \Qa\E+b
    [\Q.-\E] ^[\w-.]+$ [\w.-]+ [a-c] [.-] [-.] [^.-] []a] [a\-c] [\d-z] [&] [a&b] [a^] \. \- \x61
    \u0061 \x{61} \0141 a\b \Ba \Aa a\z a\Z \h \H \v \V \d \D \W \S a{2}+ ] a] } a-b # a#b () (?:)
    (|a)b . .. \e \t x \$ $ ^ a$|^o (?m)a$ \Q\E a\Q\E*
"""

REFUSED = r"""
    ( ) [ [a [a-z&&[^b]] [a&&b] [a[b]] [[a]] \G \Ga \X \R a{ {2} a{,2} a{x} *a a** (?U)\w
    (?i)\p{Lower} \p{Foo} \p{lower} \p \y \E \cA \ a\ (?P<x>a) (?#a) (?<=a*)b (a)\11 \1 \k<x>
    a(?i)b (?<x>a)(?<x>b) [b-a] [a-\d] \b{g} [] (?(1)a|b) [a-[b]]
"""

PIECES = r"""
    (?: (?i) [^ \d \W \p{L} \P{Alnum} \Q \E a-b {1,2} (?! (?<= \1 (?<n> \k<n> && \b \x2d
"""


def found_by_java(spark: SparkSession, pattern: str) -> str:
    """Return the names in which Java finds a pattern, as Java shows a list."""
    patterns = spark._jvm.java.util.regex.Pattern
    names = patterns.compile("\n").splitAsStream("\n".join(NAMES))
    shown: str = names.filter(patterns.compile(pattern).asPredicate()).toList().toString()
    return shown


def found(pattern: str) -> str:
    """Return the names in which the translated pattern is found, in the same form."""
    compiled = compile_java(pattern)
    return f"[{', '.join(name for name in NAMES if compiled.search(name))}]"


@pytest.mark.spark
def test_names_are_found_as_java_finds_them(spark: SparkSession) -> None:
    for pattern in ("", *TRANSLATED.split()):
        assert found(pattern) == found_by_java(spark, pattern), pattern


@pytest.mark.spark
def test_random_patterns_are_found_as_java_finds_them_or_refused(spark: SparkSession) -> None:
    chosen = random.Random(1)
    pieces = [*"ab.-_^$|()[]{}*+?&\\,1", *PIECES.split()]
    n_compared = 0
    for _ in range(1500):
        pattern = "".join(chosen.choices(pieces, k=chosen.randint(1, 7)))
        try:
            ours = found(pattern)
        except OptionError:
            continue
        with suppress(Py4JJavaError):  # Java refuses it
            assert ours == found_by_java(spark, pattern), pattern
            n_compared += 1
    assert n_compared > 300


@pytest.mark.parametrize("pattern", [*REFUSED.split(), "(?x)a b", "\\N{DIGIT ONE}", "(?iu)\u017f"])
def test_what_cannot_be_translated_is_refused(pattern: str) -> None:
    with pytest.raises(OptionError, match="subscribePattern "):
        compile_java(pattern)


def test_the_reason_names_the_construct() -> None:
    with pytest.raises(OptionError, match="&& within a class cannot be translated from Java"):
        compile_java("[a-z&&[^b]]")
