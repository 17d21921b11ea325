"""Seeded mutants: how many small defects of the code the tests of ``make test`` find.

    python tests/mutants.py                  # 80 mutants of the default seed
    python tests/mutants.py --seed 7 --count 20 --only format,storage
    python tests/mutants.py --mistakes       # those of mistakes.py, each with its nearest tests

Each mutant changes one operator, constant, bound or condition of one module in a copy of the
project. Tests run nearest first, and stop at the first failure: those beside the module, then all
that need no JVM, then the rest of ``make test``. A line for each mutant says which tests found it,
or that it survived; the exit code is 1 if more than a tenth survive. A survivor is a missing test,
or a change that makes no difference. It is no part of a test run, and takes hours; a record of
which tests run each line, which pytest-cov makes, brings that to half an hour:

    python -m pytest -n 2 -m "RULE" --cov=store --cov=connector --cov-context=test --cov-report=
    python tests/mutants.py --covered .coverage

where RULE is that of ``make test`` without Spark, RocketMQ and browsers.

Mistakes that people make are others than flipped operators. ``mistakes.py`` has a table of them,
and ``--mistakes`` makes each of them; only the tests that are nearest to the module may find it.
That takes some minutes.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from itertools import chain, zip_longest
from pathlib import Path

import pytest

from mistakes import MISTAKES

ROOT = Path(__file__).parents[1]
IN_MAKE_TEST = "not thorough and not slow and not versions"
WITHOUT_JVM = f"{IN_MAKE_TEST} and not spark and not interop and not browser"
# Of each part of the code: its folder, its share of the mutants, and the tests beside it.
PARTS: dict[str, tuple[str, int, list[str]]] = {
    "format": ("store/rmqstore/format", 14, ["format", "equivalence"]),
    "storage": ("store/rmqstore/storage", 14, ["storage"]),
    "read": ("store/rmqstore/read", 14, ["read"]),
    "query": ("store/rmqstore/query", 10, ["query"]),
    "write": ("store/rmqstore/write", 9, ["write"]),
    "copying": ("store/rmqstore/copying", 7, ["following", "test_copy.py", "test_remote_copy.py"]),
    "connector": ("connector/pyspark_rmqstore", 7, ["connector"]),
    "kafkalog": ("store/kafkalog", 5, ["kafkalog"]),
}
COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult,
    ast.BitAnd: ast.BitOr, ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.Mod: ast.FloorDiv,
}  # fmt: skip
TEST_SECONDS = 120
_JARS = (".rocketmq", ".kafka")  # a gigabyte that no mutant changes
SURVIVED = "SURVIVED"
Stages = Iterator[tuple[str, list[str]]]  # what tests are called, and the arguments of pytest


@dataclass(frozen=True)
class Mutant:
    """One change of one module."""

    part: str
    path: Path  # below the project
    line: int
    start: int  # of the changed part of the text of the module, in characters
    end: int
    after: str
    what: str  # it changes, in words

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.what}"


def mutants_of(part: str, path: Path) -> list[Mutant]:
    """Return every change that can be made in a module."""
    text = (ROOT / path).read_text(encoding="utf-8")
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    lines = text.splitlines()
    found = []
    for node in _code(ast.parse(text)):
        for changed in _changes(node):
            places = [
                starts[row - 1] + len(lines[row - 1].encode()[:column].decode())
                for row, column in (
                    (node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0)
                )
            ]  # fmt: skip
            before, after = text[places[0] : places[1]], f"({ast.unparse(changed)})"
            what = f"{before} -> {after}"
            found.append(Mutant(part, path, node.lineno, *places, after, what))
    return found


def _code(tree: ast.AST) -> Iterator[ast.expr]:
    """Yield the expressions that decide what is computed: no annotation and no text."""
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list", "type_params"):
            continue
        for node in value if isinstance(value, list) else [value]:
            if isinstance(node, ast.Raise | ast.JoinedStr | ast.ImportFrom):
                continue  # texts are compared in words
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                continue
            if isinstance(node, ast.expr):
                yield node
            if isinstance(node, ast.AST):
                yield from _code(node)


def _changes(node: ast.expr) -> Iterator[ast.expr]:
    match node:
        case ast.Compare(left, [operator], [right]) if type(operator) in COMPARISONS:
            yield ast.Compare(left, [COMPARISONS[type(operator)]()], [right])
        case ast.BinOp(left, operator, right) if type(operator) in ARITHMETIC:
            if not any(isinstance(one, ast.JoinedStr) for one in (left, right)):
                yield ast.BinOp(left, ARITHMETIC[type(operator)](), right)
        case ast.BoolOp(operator, values):
            other = ast.Or() if isinstance(operator, ast.And) else ast.And()
            yield ast.BoolOp(other, values)
        case ast.UnaryOp(ast.Not(), operand):
            yield operand
        case ast.Constant(bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(int() as value):
            yield ast.Constant(value + 1)
        case ast.IfExp(test, body, orelse):
            yield ast.IfExp(ast.UnaryOp(ast.Not(), test), body, orelse)
        case _:
            return


def chosen(seed: int, parts: set[str], count: int | None) -> list[Mutant]:
    """Return mutants that a seed chooses, a share of them in each part, in different modules."""
    rng = random.Random(seed)
    found: list[Mutant] = []
    for part, (folder, share, _) in PARTS.items():
        if part not in parts:
            continue
        modules = sorted((ROOT / folder).rglob("*.py"))
        every = [mutants_of(part, path.relative_to(ROOT)) for path in modules]
        weights = [len(one) for one in every]
        wanted = share if count is None else max(1, count * share // 80)
        while wanted:
            (at,) = rng.choices(range(len(every)), weights)
            found.append(rng.choice(every[at]))
            weights[at] = 0
            wanted -= 1
    return found


def covering(mutant: Mutant, record: Path) -> list[str]:
    """Return the tests that run the line of a mutant, nearest first, then of each file in turn.

    A line that runs when its module is imported belongs to all tests that run any of the module;
    of a module of constants there are none.
    """
    from coverage import CoverageData

    data = CoverageData(str(record))
    data.read()
    files = [name for name in data.measured_files() if name.endswith(f"/{mutant.path}")]
    lines = data.contexts_by_lineno(files[0]) if files else {}
    runs = set(lines.get(mutant.line, [])) - {""} or set(chain.from_iterable(lines.values()))
    names = {name.rpartition("|")[0] for name in runs - {""}}
    by_file: dict[str, list[str]] = {}
    for name in sorted(names, key=len):
        by_file.setdefault(name.partition("::")[0], []).append(name)
    beside = tuple(f"tests/{name}" for name in PARTS[mutant.part][2])
    near = [by_file.pop(file) for file in list(by_file) if file.startswith(beside)]
    turns = chain(zip_longest(*near), zip_longest(*by_file.values()))
    return [name for turn in turns for name in turn if name is not None and "\n" not in name]


def judged(
    mutant: Mutant, number: int, work: Path, stages: Callable[[Mutant, Path], Stages]
) -> str:
    """Return which tests found a mutant, or ``SURVIVED``.

    Args:
        mutant: the change.
        number: a folder's name below ``work``.
        work: where the project is copied to.
        stages: yields the tests to run, by the mutant and the folder of the copy.
    """
    folder = work / str(number)
    # test_mistakes.py fails whenever some line of a module changes.
    others = (".*_cache", "__pycache__", "test_mistakes.py")
    ignored = shutil.ignore_patterns(".git", ".venv", ".versions", *_JARS, *others)
    shutil.copytree(ROOT, folder, ignore=ignored, symlinks=True)
    for name in _JARS:
        if (ROOT / name).exists():
            (folder / name).symlink_to(ROOT / name)
    try:
        path = folder / mutant.path
        text = path.read_text(encoding="utf-8")
        path.write_text(text[: mutant.start] + mutant.after + text[mutant.end :], encoding="utf-8")
        for stage, arguments in stages(mutant, folder):
            failure = _run(folder, arguments)
            if failure:
                return f"{stage}: {failure}"
        return SURVIVED
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def stages_of_mutant(mutant: Mutant, folder: Path, record: Path | None, most: int) -> Stages:
    """Yield the tests of ``make test``, nearest first.

    Args:
        mutant: the change.
        folder: the copy of the project.
        record: which tests run each line, by pytest-cov.
        most: how many of these tests to run at most.
    """
    with_jvm = ["-m", f"({IN_MAKE_TEST}) and (spark or interop or browser)"]
    covered = [] if record is None else covering(mutant, record)
    for first, last in ((0, 60), (60, most)):
        if covered[first:last]:
            listed = folder / f"tests-{first}"
            listed.write_text("\n".join(covered[first:last]), encoding="utf-8")
            yield f"{len(covered)} tests that run it", [f"@{listed}"]
    if not covered:
        beside = [f"tests/{name}" for name in PARTS[mutant.part][2]]
        yield "the tests beside it", ["-m", WITHOUT_JVM, *beside]
        yield "the tests without a JVM", ["-m", WITHOUT_JVM, "-n", "2"]
    if not covered or (most >= len(covered) and mutant.part in ("connector", "kafkalog")):
        yield "the tests with a JVM", with_jvm


def mistaken() -> list[Mutant]:
    """Return the mistakes of the table; the part of each is the tests nearest to it."""
    found = []
    for mistake in MISTAKES:
        text = (ROOT / mistake.module).read_text(encoding="utf-8")
        start = text.index(mistake.before)
        end = start + len(mistake.before)
        place = (Path(mistake.module), text.count("\n", 0, start) + 1, start, end)
        found.append(Mutant(mistake.tests, *place, mistake.after, mistake.harm))
    return found


def stages_of_mistake(mutant: Mutant, _folder: Path) -> Stages:
    """Yield the tests nearest to a mistake."""
    yield f"tests/{mutant.part}", ["-m", WITHOUT_JVM, f"tests/{mutant.part}"]


def _run(folder: Path, arguments: list[str]) -> str | None:
    """Run tests until one fails, or takes ``TEST_SECONDS``; return its name."""
    packages = os.pathsep.join(str(folder / name) for name in ("store", "connector"))
    command = [
        sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--no-header",
        "-o", f"faulthandler_timeout={TEST_SECONDS}", "-o", "faulthandler_exit_on_timeout=true",
        f"--basetemp={folder}.tmp", *arguments,
    ]  # fmt: skip
    try:
        done = subprocess.run(
            command, cwd=folder, env={**os.environ, "PYTHONPATH": packages}, capture_output=True,
            text=True, check=False,
        )  # fmt: skip
    finally:
        shutil.rmtree(f"{folder}.tmp", ignore_errors=True)
    if done.returncode == 0:
        return None
    if done.returncode == pytest.ExitCode.USAGE_ERROR and "ERROR: not found" in done.stderr:
        raise RuntimeError(done.stderr)  # the record is of other tests; or the mutant fails at once
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failed[0][:160] if failed else (done.stdout + done.stderr)[-300:]


def main() -> int:
    parser = argparse.ArgumentParser(description="run mutants against make test")
    parser.add_argument("--seed", type=int, default=38)
    parser.add_argument("--count", type=int, help="mutants in all (80)")
    parser.add_argument("--only", default=",".join(PARTS), help="parts of the code")
    parser.add_argument("--covered", type=Path, help="which tests run each line, by pytest-cov")
    parser.add_argument("--most", type=int, default=1 << 30, help="tests of a mutant at most")
    parser.add_argument("--at", type=int, nargs="*", help="the numbers of some mutants")
    parser.add_argument("--list", action="store_true", help="print the mutants and run none")
    parser.add_argument("--mistakes", action="store_true", help="those of mistakes.py instead")
    arguments = parser.parse_args()
    if arguments.mistakes:
        every, stages = list(enumerate(mistaken())), stages_of_mistake
    else:
        parts = set(arguments.only.split(","))
        every = list(enumerate(chosen(arguments.seed, parts, arguments.count)))
        stages = partial(stages_of_mutant, record=arguments.covered, most=arguments.most)
    if arguments.at:
        every = [every[number] for number in arguments.at]
    if arguments.list:
        for number, mutant in every:
            sys.stdout.write(f"{number} {mutant}\n")
        return 0
    survived = 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as work, ThreadPoolExecutor(2) as pool:
        started = time.monotonic()
        running = {
            pool.submit(judged, mutant, number, Path(work), stages): (number, mutant)
            for number, mutant in every
        }
        for done in as_completed(running):
            (number, mutant), result = running[done], done.result()
            survived += result == SURVIVED
            spent = int(time.monotonic() - started)
            sys.stdout.write(f"{number} [{spent} s] {mutant}\n    {result}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{len(every) - survived} of {len(every)} found, {survived} survived\n")
    return int(survived > len(every) / 10)


if __name__ == "__main__":
    sys.exit(main())
