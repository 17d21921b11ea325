"""Each module of rmqstore imports only modules listed before it (ARCHITECTURE.md, section 3)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "store" / "rmqstore"
# fmt: off
ORDER = [
    "errors", "files.regular", "config", "selection",
    "format.layout", "format.utf8", "format.hosts", "format.hashing", "format.properties",
    "format.schema", "format.compression", "format.record",
    "format.heads", "format.gather", "format.text", "format.property_columns", "format.property_strings",
    "format.decode", "format.checks",
    "format.multi_dispatch", "format.inner_batch",
    "format.frames", "format.bloom", "format.encode", "format.requests",
    "sql92.numbers", "sql92.tree", "sql92.parser", "sql92.evaluation", "sql92.masks", "sql92.filter", "wanted",
    "files.paths", "files.sparse", "files.mapped_file", "files.mapped_file_queue", "files.disk", "files.lock",
    "intent", "brokerconfig", "topicconfig", "checkpoint", "commitlog", "consumequeue",
    "consumequeue_ext", "batches", "batchqueue", "queues", "queueoffsets",
    "ledger", "index_sizes", "indexfile", "index_search",
    "logwriter", "offset_runs", "queuewriter", "findings", "dispatch",
    "recovery", "log_filter", "assemble", "log_scan", "unit_checks", "queue_recovery", "placed", "ext_codes",
    "queue_scan",
    "retention", "ends", "place_scan", "lookup", "finder", "light_queues", "ranges", "pruning", "pending", "sampling",
    "views.schema", "views.source", "views.log", "views.queues", "views.units", "views.index_items", "views.groups",
    "views.files", "views.reading", "store", "pruned",
    "broker_run", "log_cursor", "tail",
    "uniqkey", "messages", "verbatim", "waiting", "repair", "writer", "entry",
    "verify_index", "verify", "exchange",
    "report.facts", "report.charts", "report.page",
    "cli.common", "cli.reading", "cli.looking", "cli.checking", "cli.exchanging", "cli.reporting", "__main__",
]
# fmt: on
STRUCTURES = [
    "commitlog",
    "consumequeue",
    "consumequeue_ext",
    "checkpoint",
    "brokerconfig",
    "indexfile",
    "logwriter",
    "queuewriter",
]  # fmt: skip
FILES_BY_OTHER_NAMES = {"os", "pathlib", "mmap", "io", "shutil", "tempfile", "glob"}
BANNED = {name: {"pyspark", "pyspark_rmqstore"} for name in ORDER}
for name in ORDER:
    if name.startswith("format."):
        BANNED[name] |= {"rmqstore.files", *FILES_BY_OTHER_NAMES}
    if name.startswith("files."):
        BANNED[name] |= {"rmqstore.format"}
    if name in STRUCTURES:
        BANNED[name] |= {f"rmqstore.{other}" for other in STRUCTURES if other != name}

MODULES = sorted(path for path in ROOT.rglob("*.py") if path.name != "__init__.py")


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def imports_of(path: Path) -> set[str]:
    """Return what a module imports, also inside functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write absolute imports"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def is_part(target: str, module: str) -> bool:
    return target == module or target.startswith(module + ".")


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_module_has_its_place_in_the_order(path: Path) -> None:
    assert module_name(path) in ORDER, f"give {module_name(path)} its place in ORDER"


@pytest.mark.parametrize("path", [path for path in MODULES if module_name(path) in ORDER], ids=module_name)
def test_module_imports_only_earlier_ones(path: Path) -> None:
    name = module_name(path)
    for target in imports_of(path):
        inside = [module for module in ORDER if is_part(target, f"rmqstore.{module}")]
        assert all(ORDER.index(module) < ORDER.index(name) for module in inside), f"{name} imports {target}"
        assert not is_part(target, "rmqstore") or inside, f"{name} imports {target}, which has no place in ORDER"


@pytest.mark.parametrize("path", [path for path in MODULES if module_name(path) in ORDER], ids=module_name)
def test_module_imports_nothing_banned(path: Path) -> None:
    name = module_name(path)
    hit = {target for target in imports_of(path) for ban in BANNED[name] if is_part(target, ban)}
    assert not hit, f"{name} imports {sorted(hit)}"


@pytest.mark.parametrize("path", [path for path in MODULES if module_name(path).startswith("format.")], ids=module_name)
def test_format_modules_open_no_file(path: Path) -> None:
    calls = {
        node.func.id
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert "open" not in calls


@pytest.mark.parametrize("path", sorted(ROOT.rglob("__init__.py")), ids=lambda path: path.parent.name)
def test_packages_hold_nothing_but_names(path: Path) -> None:
    body = ast.parse(path.read_text(encoding="utf-8")).body
    docstring = (ast.Expr,) if body and isinstance(body[0], ast.Expr) else ()
    assert all(isinstance(node, (ast.ImportFrom, ast.Assign, *docstring)) for node in body)


def test_the_order_names_no_module_that_is_gone() -> None:
    assert set(ORDER) == {module_name(path) for path in MODULES}
