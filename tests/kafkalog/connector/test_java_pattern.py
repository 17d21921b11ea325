"""Regular expressions of Java, as Spark's Kafka source takes them."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from pyspark_kafkalog.options import compile_java
from rmqstore.errors import OptionError

NAMES = (
    "a", "A", "orders", "Orders", "ORDERS", "orders-eu", "orders.eu.1", "o", "z9", "9", "10-a",
    "_x", "__internal", "a.b", "a-b", "a_b", "aa", "aab", "abab", "abcabc", "Zebra.2024-01-01",
    "dlq.orders-eu", "-", ".x", "x-", "E", "Qa", "d", "w", "s", "b",
)  # fmt: skip

TRANSLATED = r"""
    orders ^orders$ o|z (?:a|b)+ a* a{2} a{1,}b (a|b){2,3} a*? a+?b a{1,2}?b (?i)orders (?i:O)rders
    (?-i:o)rders (?i)(?-i:o)RDERS (?i)[^o]rders (?i)[a-c]+$ (?i)[Z-a] o(?!rders-) (?<=-)eu (?<!-)eu
    (?=.*eu)orders ^[\w-.]+$ [\w.-]+ [\w-] [^\w-] [\w-a-c] [\\d-z] [a-c-e] [a-c] [.-] [-.] [^.-]
    [a\-c] [\d-z] [\d-\w] [&] [a&b] [a|b] [a^] [+-.] [\.-9] \. \- a\b \Ba \Aa \d \D \W \S ] a]
    } a-b # a#b () (?:) (|a)b . .. x \$ $ ^ a$|^o orders-.* ^dlq\..* ^(orders|Zebra)\.[^.]+$
"""

REFUSED = {
    r"\p{Lower}": r"\p{Lower} (a property of characters) is not supported here; write a class",
    r"[\pL-]": r"\p (a property",
    r"\Qa.b\E": r"\Q (quoted text) is not supported here; write a backslash before each special",
    r"[\Q.-\E]": r"\Q (quoted", r"a\E": r"\E (quoted",
    r"a\Z": r"\Z (an end of this kind) is not supported here; write $",
    r"a\z": r"\z (an end",
    r"\Ga": r"\G (the end of the last match) is not supported here; write ^",
    r"(abc)\1": r"\1 (a reference to a group) is not supported here; write the alternatives",
    r"(a)\k<x>": r"\k (a reference",
    r"\x61": r"\x (an escape of this kind) is not supported here; write the characters",
    r"\u0061": r"\u (an escape", r"\0141": r"\0 (an escape", r"\cA": r"\c (an escape",
    r"\N{DIGIT ONE}": r"\N (an escape", r"\X": r"\X (an escape", r"\R": r"\R (an escape",
    r"\h": r"\h (an escape", r"\v": r"\v (an escape", r"\t": r"\t (an escape",
    r"[\b]": r"\b (an escape", "a\\": "\\ (an escape", "[a\\": "\\ (an escape",
    r"(?s)a.b": "(?s) (a flag of this kind or here) is not supported here; begin with (?i)",
    r"(?x)a": "(?x) (a flag", r"(?U)\w": "(?U) (a flag", r"(?iu)a": "(?iu) (a flag",
    r"a(?i)b": "(?i) (a flag", r"(?m-i:a)": "(?m-i: (a flag",
    r"(?<x>ab)": "(?< (a group of this kind) is not supported here; write (…) or (?:…)",
    r"(?>a|ab)c": "(?> (a group", r"(?P<x>a)": "(?P (a group", r"(?#a)": "(?# (a group",
    r"(?(1)a|b)": "(?( (a group",
    r"a*+": "*+ (a possessive quantifier) is not supported here; leave out its last +",
    r"a++": "++ (a possessive", r"a?+b": "?+ (a possessive", r"a{2}+": "{2}+ (a possessive",
    r"a{": "{ (a { without a number of repetitions) is not supported here; write {n}, {n,} or",
    r"a{,2}": "{ (a {",
    r"[a-z&&[^b]]": "&& (an intersection of classes) is not supported here; write one class",
    r"[a--b]": "-- (a doubled character in a class) is not supported here; write it once",
    r"[a||b]": "|| (a doubled", r"[a~~b]": "~~ (a doubled",
    r"[a[b]]": "[ (a class within a class) is not supported here; write one class",
    r"[a-[b]]": "[ (a class within",
    r"[]a]": r"] (a class that begins with ]) is not supported here; write \]",
    r"[^]": "] (a class that begins", r"[a": "a [ is not closed", r"[": "a [ is not closed",
    r"(": "is not a regular expression that can be used here",
    r")": "is not a regular", r"*a": "is not a regular", r"a**": "is not a regular",
    r"a{2}{3}": "is not a regular", r"(?<=a*)b": "is not a regular", r"[b-a]": "is not a regular",
    r"[a-\d]": "is not a regular",
}  # fmt: skip

PIECES = r"""
    (?: (?i) (?i: [^ \d \W \w- \. \- a-b {1,2} (?! (?<= && \b *? \\
"""


def found_by_java(spark: SparkSession, pattern: str) -> str:
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


@pytest.mark.parametrize("pattern", REFUSED)
def test_what_is_not_supported_is_refused_by_name(pattern: str) -> None:
    with pytest.raises(OptionError) as caught:
        compile_java(pattern)
    assert str(caught.value).startswith(f"subscribePattern {pattern!r}: {REFUSED[pattern]}")


def test_ordinary_patterns_find_topics() -> None:
    assert found(r"^orders[\w-.]*$") == "[orders, orders-eu, orders.eu.1]"
    assert found("(?i)^ORDERS$") == "[orders, Orders, ORDERS]"
    assert found(r"^dlq\.|^[^a-zA-Z]+$") == "[9, dlq.orders-eu, -]"
    assert found("^(?:ab){2}|aab?$") == "[aa, aab, abab]"
