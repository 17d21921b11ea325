"""The layers: which package may import which, and what each must never know.

A module imports from its own package and from layers above its own. The table in
store/ARCHITECTURE.md shows the same layers, and a test compares the two. kafkalog has layers of its
own, and takes from rmqstore only what knows nothing about RocketMQ.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[1]
ROOT = PROJECT / "store" / "rmqstore"
# A package imports from layers above its own; packages of one layer do not know each other.
LAYERS = [
    ["errors", "spans", "progress"],
    ["format"],
    ["format.framing"],
    ["format.columns"],
    ["format.encoding", "format.system_topics"],
    ["storage.files", "query"],
    ["storage.broker", "storage.remote", "storage.rocksdb", "query.sql92", "query.where"],
    ["storage.log", "storage.queue", "storage.index", "storage.timer", "storage.folders"],
    ["storage.recovery", "storage.tiered"],
    ["read.scan", "write.repair", "write.staged"],
    ["read.plan", "write"],
    ["read.lookup"],
    ["read.views"],
    ["read.views.cluster", "read.views.messages"],
    ["read.views.registry"],
    ["read"],
    ["read.tiered"],
    ["store", "exchange"],
    ["inspect", "polars", "copying.following.remoting"],
    ["copying.following.streams", "copying.following.upkeep"],
    ["copying.following.broker"],
    ["inspect.report", "copying", "copying.following"],
    ["copying.followers"],
    ["cli"],
    ["cli.follow"],
    ["__main__"],
]
LEVEL = {package: level for level, packages in enumerate(LAYERS) for package in packages}
# Each ban in words, the packages that it binds, and what these may not import.
FILE_MODULES = {"os", "pathlib", "mmap", "io", "shutil", "tempfile", "glob"}
BANS = [
    ("no package of the core knows Spark", {""}, {"pyspark", "pyspark_rmqstore"}),
    ("format opens no file", {"format"}, FILE_MODULES),
    (
        "format knows only itself",
        {"format"},
        {f"rmqstore.{name}" for name in ("storage", "query", "read", "write")},
    ),
    (
        "files know no meaning of their bytes",
        {"storage.files"},
        {"rmqstore.format", "rmqstore.query"},
    ),
    (
        "query holds values: no file, nothing read",
        {"query"},
        {"rmqstore.storage", "rmqstore.read", "rmqstore.write"},
    ),
    (
        "storage never asks who reads or writes",
        {"storage"},
        {"rmqstore.query", "rmqstore.read", "rmqstore.write"},
    ),
    ("readers know no writer", {"read"}, {"rmqstore.write", "rmqstore.store"}),
    ("writers know no reader", {"write"}, {"rmqstore.read", "rmqstore.store", "rmqstore.query"}),
    (
        "what reads or checks opens nothing that can write",
        {"read", "inspect"},
        {"rmqstore.storage.files.disk", "rmqstore.storage.index.file_appender"}
        | {f"rmqstore.storage.{name}.appender" for name in ("log", "queue", "index")},
    ),
    (
        "exchange knows formats only",
        {"exchange"},
        {"rmqstore.storage", "rmqstore.read", "rmqstore.write"},
    ),
]
# The classes of queues, and the modules outside storage.queue that are for one kind of queue only.
QUEUE_KINDS: dict[str, set[str]] = {
    "BatchConsumeQueue": {
        "write.repair.queue_files",
        "write.repair.rebuild",
        "write.repair.truncation",
    },
    "ConsumeQueue": {
        "read.views.consumequeue",
        "storage.tiered.queues",
        "write.repair.queue_files",
        "write.repair.rebuild",
        "write.repair.truncation",
    },
    "RecoveredQueue": set(),
    "RocksDbQueue": set(),
}
MOST_ENTRIES, MOST_LINES = 14, 400
LAZY_NAMES = {"if TYPE_CHECKING", "def __getattr__(name", "def __dir__() -> list[str]"}

# The same for kafkalog, and what each of its layers may take from rmqstore.
KAFKA_ROOT = PROJECT / "store" / "kafkalog"
KAFKA_LAYERS = [
    ["errors"],
    ["format"],
    ["storage"],
    ["read"],
    ["inspect"],
    ["opening", "exchange"],
    ["migration"],
]
KAFKA_LEVEL = {name: level for level, names in enumerate(KAFKA_LAYERS) for name in names}
_EVERYWHERE = {"rmqstore.errors", "rmqstore.spans", "rmqstore.progress"}
KAFKA_TAKES = {
    "errors": _EVERYWHERE,
    "format": {*_EVERYWHERE, "rmqstore.format.columns.buffers", "rmqstore.format.utf8"},
    "storage": {*_EVERYWHERE, "rmqstore.storage.files"},
    "read": {*_EVERYWHERE, "rmqstore.storage.files", "rmqstore.query"},
    "inspect": {*_EVERYWHERE, "rmqstore.storage.files", "rmqstore.query"},
    "opening": {
        *_EVERYWHERE,
        "rmqstore.storage.files",
        "rmqstore.storage.remote.location",
        "rmqstore.query",
    },
    "migration": {*_EVERYWHERE, "rmqstore.query"},
    # the one module that knows both
    "exchange": {*_EVERYWHERE, "rmqstore.format.columns.buffers", "rmqstore.format.schema"},
}

MODULES = sorted(path for path in ROOT.rglob("*.py") if path.name != "__init__.py")
KAFKA_MODULES = sorted(path for path in KAFKA_ROOT.rglob("*.py") if path.name != "__init__.py")
FOLDERS = sorted(
    path
    for root in (ROOT, KAFKA_ROOT)
    for path in (root, *root.rglob("*"))
    if path.is_dir() and path.name != "__pycache__"
)


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def package_of(module: str) -> str:
    """Return the package of a module; one in the root is a package of its own."""
    return module.rpartition(".")[0] or module


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


def own_modules(path: Path) -> set[str]:
    """Return the modules of the core that a module imports."""
    known = {module_name(other) for other in MODULES}
    found = set()
    for target in imports_of(path):
        if not is_part(target, "rmqstore"):
            continue
        parts = target.split(".")[1:]
        while parts and ".".join(parts) not in known:
            parts.pop()
        found.add(".".join(parts) if parts else target)
    return found


def test_every_package_has_a_layer() -> None:
    assert {package_of(module_name(path)) for path in MODULES} == set(LEVEL)


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_a_module_imports_from_its_package_and_from_layers_above(path: Path) -> None:
    own = package_of(module_name(path))
    for target in own_modules(path):
        package = package_of(target)
        assert package == own or LEVEL.get(package, len(LAYERS)) < LEVEL[own], (
            f"{own} imports {target}"
        )


@pytest.mark.parametrize("path", MODULES, ids=module_name)
@pytest.mark.parametrize(("words", "bound", "banned"), BANS, ids=[words for words, _, _ in BANS])
def test_a_module_imports_nothing_banned(
    path: Path, words: str, bound: set[str], banned: set[str]
) -> None:
    name = module_name(path)
    if any(not package or is_part(name, package) for package in bound):
        hit = {target for target in imports_of(path) for ban in banned if is_part(target, ban)}
        assert not hit, f"{words}, but {name} imports {sorted(hit)}"


def test_no_two_modules_import_each_other() -> None:
    graph = {module_name(path): own_modules(path) for path in MODULES}
    resolved: set[str] = set()
    while graph:
        free = {name for name, targets in graph.items() if targets <= resolved}
        assert free, f"these import one another in a circle: {sorted(graph)}"
        resolved |= free
        graph = {name: targets for name, targets in graph.items() if name not in free}


@pytest.mark.parametrize(
    "path", [path for path in MODULES if is_part(module_name(path), "format")], ids=module_name
)
def test_format_modules_open_no_file(path: Path) -> None:
    calls = {
        node.func.id
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert "open" not in calls


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_only_the_package_of_queues_knows_their_kinds(path: Path) -> None:
    """Others use the queue's protocol, so a new kind is known only where it is opened."""
    name = module_name(path)
    if package_of(name) == "storage.queue":
        return
    tree = ast.parse(path.read_text(encoding="utf-8"))
    named = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    named |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert not {kind for kind in named & set(QUEUE_KINDS) if name not in QUEUE_KINDS[kind]}
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("isinstance", "type")
        ):
            names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
            assert not names & set(QUEUE_KINDS), f"{name}, line {node.lineno}"


def test_the_kinds_of_queues_do_not_inherit() -> None:
    found = {
        node.name: node.bases
        for path in (ROOT / "storage" / "queue").glob("*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and node.name in QUEUE_KINDS
    }
    assert found == {kind: [] for kind in QUEUE_KINDS}


@pytest.mark.parametrize(
    "path", sorted(ROOT.rglob("__init__.py")), ids=lambda path: path.parent.name
)
def test_packages_hold_nothing_but_names(path: Path) -> None:
    body = ast.parse(path.read_text(encoding="utf-8")).body
    docstring = (ast.Expr,) if body and isinstance(body[0], ast.Expr) else ()
    others = [
        node for node in body if not isinstance(node, (ast.ImportFrom, ast.Assign, *docstring))
    ]
    if path.parent == ROOT:  # its names are imported when they are first asked for
        others = [node for node in others if ast.unparse(node).split(":")[0] not in LAZY_NAMES]
    assert not others


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_a_folder_fits_on_a_screen(folder: Path) -> None:
    entries = [
        path
        for path in folder.iterdir()
        if not path.name.startswith("__") and path.suffix != ".typed"
    ]
    assert len(entries) <= MOST_ENTRIES


@pytest.mark.parametrize(
    "path", MODULES + KAFKA_MODULES, ids=lambda path: str(path.relative_to(PROJECT / "store"))
)
def test_a_module_is_not_longer_than_one_reads_at_once(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MOST_LINES


def test_the_architecture_page_shows_these_layers() -> None:
    text = (PROJECT / "store" / "ARCHITECTURE.md").read_text(encoding="utf-8")
    shown = [
        re.findall(r"`([\w.]+)`", row)
        for row in re.findall(r"^\| \d+ \| ([^|]+) \|", text, flags=re.MULTILINE)
    ]
    assert shown == LAYERS


def kafka_name(path: Path) -> str:
    return ".".join(path.relative_to(KAFKA_ROOT).with_suffix("").parts)


def kafka_layer(path: Path) -> str:
    return kafka_name(path).split(".")[0]


@pytest.mark.parametrize("path", KAFKA_MODULES, ids=kafka_name)
def test_a_module_of_kafkalog_imports_from_its_layer_and_from_those_above(path: Path) -> None:
    own = KAFKA_LEVEL[kafka_layer(path)]
    for target in imports_of(path):
        package, _, rest = target.partition(".")
        if package == "kafkalog":
            layer = rest.split(".")[0]
            is_same = kafka_layer(path) == layer
            assert is_same or KAFKA_LEVEL[layer] < own, f"{kafka_name(path)} imports {target}"


@pytest.mark.parametrize("path", KAFKA_MODULES, ids=kafka_name)
def test_kafkalog_takes_only_what_knows_nothing_about_rocketmq(path: Path) -> None:
    allowed = KAFKA_TAKES[kafka_layer(path)]
    taken = {target for target in imports_of(path) if is_part(target, "rmqstore")}
    assert not {target for target in taken if not any(is_part(target, room) for room in allowed)}


@pytest.mark.parametrize("path", KAFKA_MODULES, ids=kafka_name)
def test_kafkalog_reads_files_through_a_storage_only(path: Path) -> None:
    others = {target for target in imports_of(path) if target.startswith("rmqstore.storage.files")}
    banned = {"pyspark", "pyspark_rmqstore"}
    if kafka_layer(path) == "format":
        banned |= FILE_MODULES
    assert not {target for target in imports_of(path) for ban in banned if is_part(target, ban)}
    assert not {name for name in others if "disk" in name}


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_only_the_command_line_of_rmqstore_knows_kafkalog(path: Path) -> None:
    if module_name(path) in {"cli.kafka", "cli.exchange"}:
        return
    assert not {target for target in imports_of(path) if is_part(target, "kafkalog")}


# Calls to the file system, and who may make them: everyone else reads the files of a store through
# a Storage and changes them through a Disk.
PURE_OS = {"PathLike", "fspath", "fsencode", "getpid"}
LOOKS = {
    "absolute", "chmod", "exists", "expanduser", "glob", "is_dir", "is_file", "is_symlink",
    "iterdir", "lstat", "mkdir", "open", "read_bytes", "read_text", "readlink", "resolve", "rglob",
    "rmdir", "samefile", "stat", "symlink_to", "touch", "unlink", "write_bytes", "write_text",
}  # fmt: skip
NOT_PATHS = {
    "storage",
    "_storage",
    "LOCAL",
    "_files",
    "queue",
    "queues",
    "_queues",
    "ranges",
    "status",
}
PARTS_OF_FILES = {f"rmqstore.storage.files.{name}" for name in ("regular", "mapped_file", "sparse")}
LOOKS_AT_OTHER_FILES = {
    "cli.common": "the folder of an output file, and the null device in place of a closed pipe",
    "cli.exchange": "files that are exported to and imported from",
    "cli.output": "text above a file that exchange.files opens",
    "cli.report": "the page that is written, which must not be written into the store",
    "exchange.files": "files that are exported to",
    "exchange.json_lines": "files that are exported to",
    "exchange.parquet": "files that are imported from",
    "inspect.doctor": "the programs that are asked what they are",
    "storage.rocksdb.database": "the child process that opens a database first",
    "storage.rocksdb.snapshot": "the folder of links through which a database is opened",
}


def looks_at_files(path: Path) -> set[str]:
    """Return the places of a module that look at a file system themselves, as ``line: what``."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute):
            receiver = (
                node.value.attr
                if isinstance(node.value, ast.Attribute)
                else getattr(node.value, "id", "")
            )
            is_look = node.attr in LOOKS and receiver not in NOT_PATHS
            if is_look or (receiver == "os" and node.attr not in PURE_OS):
                found.add(f"{node.lineno}: {receiver}.{node.attr}")
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "open":
            found.add(f"{node.lineno}: open")
    banned = (FILE_MODULES - {"os", "pathlib"}) | {"fcntl", "ctypes"} | PARTS_OF_FILES
    return found | {
        f"import {target}"
        for target in imports_of(path)
        if any(is_part(target, ban) for ban in banned)
    }


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_only_storage_files_looks_at_a_file_system(path: Path) -> None:
    name = module_name(path)
    if is_part(name, "storage.files"):
        return
    found = looks_at_files(path)
    assert bool(found) == (name in LOOKS_AT_OTHER_FILES), (
        f"{name} goes round the storage: {sorted(found)}"
    )
