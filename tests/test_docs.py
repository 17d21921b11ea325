"""The README and the manual: every snippet runs, and what they list is what there is."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any

import option_tables
import pytest

import kafkalog
import manual
import rmqstore
from goldens import Golden
from rmqstore.cli import main
from rmqstore.cli.verbs import VERBS
from rmqstore.read.views.schema import VIEWS

DOCS = manual.ROOT / "docs"
MOST_THAT_DO_NOT_RUN = 20  # most of them need a live broker
WITH_SNIPPETS = [
    page
    for page in manual.PAGES
    if any(snippet.reason is None for snippet in manual.snippets(page))
]


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(
            page, id=page.stem, marks=[pytest.mark.spark] if manual.uses_spark(page) else []
        )
        for page in WITH_SNIPPETS
    ],
)
def test_the_snippets_of_a_page_run(
    page: Path,
    golden_store: Golden,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    manual.make_places(golden_store, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "180")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    names: dict[str, Any] = {"__name__": "__main__"}
    if manual.uses_spark(page):
        names["spark"] = request.getfixturevalue("spark")
    for snippet in manual.snippets(page):
        if snippet.reason is not None:
            continue
        if snippet.language == "console":
            manual.run_console(snippet, tmp_path)
        else:
            manual.run_python(snippet, page, tmp_path, names)
    if manual.uses_spark(page):
        for query in names["spark"].streams.active:
            query.processAllAvailable()
            query.stop()


def test_few_snippets_do_not_run_and_each_says_why() -> None:
    every = [(page.name, snippet) for page in manual.PAGES for snippet in manual.snippets(page)]
    left_out = [
        (name, snippet.reason)
        for name, snippet in every
        if snippet.reason is not None and not snippet.reason.endswith("runs it")
    ]
    assert len(left_out) <= MOST_THAT_DO_NOT_RUN, left_out
    assert len(every) - len(left_out) >= 40
    assert len(WITH_SNIPPETS) >= 11


def test_every_block_is_of_a_language_that_the_tests_know() -> None:
    for page in [*manual.PAGES, manual.ROOT / "CONTRIBUTING.md"]:
        opened = re.findall(r"^```(\S+)", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
        assert {name for name in opened if not name.startswith("{")} <= {
            "python", "console", "text", "toml", "yaml",
        }, page.name  # fmt: skip


@pytest.mark.parametrize(
    "page", [*manual.PAGES, manual.ROOT / "CONTRIBUTING.md"], ids=lambda page: page.stem
)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if target.startswith(("https://", "http://")):
            continue
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        assert file.exists(), f"{page.name}: {target}"
        if anchor:
            assert anchor in _anchors(file), f"{page.name}: {target}"


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_tables_of_options_are_those_that_parse_them() -> None:
    shown: set[str] = set()
    for page in DOCS.glob("*.md"):
        text = page.read_text(encoding="utf-8")
        assert option_tables.with_tables(text) == text, "run python docs/_ext/option_tables.py"
        shown.update(re.findall(r"<!-- options: (.+) -->", text))
    assert shown == {"read", "look-up", "stream", "view", "views", "write", "kafkalog"}


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_every_verb_has_its_section_with_a_table_and_two_examples(verb: str) -> None:
    sections = (DOCS / "cli.md").read_text(encoding="utf-8").split("\n## ")
    (section,) = [text for text in sections if text.startswith(f"{verb}\n")]
    assert f"```{{command-reference}} {verb}\n" in section
    assert len(re.findall(rf"^\$ .*\brmqstore {verb} ", section, flags=re.MULTILINE)) >= 2


def test_the_api_page_has_every_public_name() -> None:
    text = (DOCS / "api.md").read_text(encoding="utf-8")
    listed = set(re.findall(r":: rmqstore\.(\w+)", text))
    errors = {name for name in rmqstore.__all__ if name.endswith("Error")}
    assert "errors" in listed
    assert errors <= set(vars(rmqstore.errors))  # that module as a whole is on the page
    assert not errors & set(re.search(r":exclude-members: (.+)", text)[1].split(", "))
    assert set(rmqstore.__all__) - errors - {"__version__"} == listed - {"errors"}
    of_kafka = set(re.findall(r":: kafkalog\.(\w+)$", text, flags=re.MULTILINE))
    assert set(kafkalog.__all__) - {"IsolationLevel", "Mode"} == of_kafka  # texts, not classes


def test_the_page_of_views_documents_every_view_and_column() -> None:
    text = (DOCS / "views.md").read_text(encoding="utf-8")
    for name, schema in VIEWS.items():
        (row,) = [line for line in text.splitlines() if line.startswith(f"| `{name}` ")]
        for column in schema.names[1:]:
            assert f"`{column}`" in row, f"{name}.{column}"
    assert "`brokerName`" in text


def test_the_answers_have_the_words_that_people_search_for() -> None:
    text = (DOCS / "faq.md").read_text(encoding="utf-8")
    recipes = (DOCS / "recipes.md").read_text(encoding="utf-8")
    for word in (
        "PyPI", "macOS", "Windows", "licence", "license", "memory", "fast", "security", "ACL",
        "upgraded", "Docker", "Airflow", "Glue", "EMR", "Databricks", "Hudi", "Iceberg", "laptop",
        "yesterday", "password", "lag", "damaged", "mask", "poison", "backfill", "retention",
        "duplicates", "Prometheus", "CronJob", "spark-sql", "permissions", "4.x", "DuckDB",
    ):  # fmt: skip
        assert re.search(rf"\b{word}", text + recipes, flags=re.IGNORECASE), word
    questions = re.findall(r"^### (.+)$", text, flags=re.MULTILINE)
    assert all(question.endswith("?") for question in questions)
    assert len(questions) >= 20


def test_the_readme_stays_a_front_page() -> None:
    assert len((manual.ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 140


def test_the_reference_of_a_verb_lists_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    from docutils import nodes
    from docutils.core import publish_doctree
    from docutils.parsers.rst import directives

    monkeypatch.syspath_prepend(str(DOCS / "_ext"))
    directives.register_directive(
        "command-reference", importlib.import_module("command_reference").CommandReference
    )
    shown = publish_doctree(".. command-reference:: report")
    rows = [
        [cell.astext() for cell in row.findall(nodes.entry)] for row in shown.findall(nodes.row)
    ]
    assert rows[0] == ["option", "meaning"]
    assert ["-o, --output FILE", "The HTML file.  [required]"] in rows

    assert (
        len(rows) == len([one for one in main.verb("report").params if one.opts[0][0] == "-"]) + 1
    )
    assert "rmqstore report [OPTIONS] [PATH]..." in shown.astext()
