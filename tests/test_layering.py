"""What must hold for all modules at once: each rule is one test, which names every offender.

Which package may import which is said by the contracts of import-linter in pyproject.toml, and the
table in store/ARCHITECTURE.md shows the same order. Here stands what such contracts cannot say.
"""

from __future__ import annotations

import ast
import re
import tomllib
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import pytest

import simulated

pytestmark = pytest.mark.xdist_group("layers")  # they share what is parsed

PROJECT = Path(__file__).parents[1]
SOURCES = [
    PROJECT / "store" / "rmqstore", PROJECT / "store" / "kafkalog",
    PROJECT / "connector" / "pyspark_rmqstore", PROJECT / "connector" / "pyspark_kafkalog",
]  # fmt: skip
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
DEFINITIONS = (ast.Module, ast.ClassDef, *FUNCTIONS)

# The classes of queues, and the modules outside storage.queue that are for one kind of queue only.
QUEUE_KINDS: dict[str, set[str]] = {
    "BatchConsumeQueue": {"rmqstore.write.queue_files", "rmqstore.write.truncation"},
    "ConsumeQueue": {
        "rmqstore.read.views.consumequeue", "rmqstore.storage.queue.tiered",
        "rmqstore.storage.recovery.queues", "rmqstore.write.queue_files",
        "rmqstore.write.truncation",
    },
    "RecoveredQueue": {"rmqstore.storage.recovery.queues"},
    "RocksDbQueue": set(),
    "SparseConsumeQueue": {"rmqstore.storage.queue.tiered"},
}  # fmt: skip
# The names of rmqstore and of kafkalog are imported when they are first asked for.
LAZY_PACKAGES = {"rmqstore", "kafkalog"}
LAZY_NAMES = {"if TYPE_CHECKING", "def __getattr__(name", "def __dir__() -> list[str]"}

# Packages and modules of the core that the connector enters by.
DOORS = {
    "rmqstore.errors", "rmqstore.format.schema", "rmqstore.query", "rmqstore.read",
    "rmqstore.source", "rmqstore.write", "rmqstore.store.opening", "rmqstore.live",
    "rmqstore.storage.files", "rmqstore.storage.broker.store_config",
    "rmqstore.storage.broker.folders",
}  # fmt: skip

# Calls to the file system, and who may make them: everyone else reads the files of a store through
# a Storage and changes them through a Disk.
PURE_OS = {"PathLike", "fspath", "fsencode", "getpid"}
LOOKS = {
    "absolute", "chmod", "exists", "expanduser", "glob", "is_dir", "is_file", "is_symlink",
    "iterdir", "lstat", "mkdir", "open", "read_bytes", "read_text", "readlink", "resolve", "rglob",
    "rmdir", "samefile", "stat", "symlink_to", "touch", "unlink", "write_bytes", "write_text",
}  # fmt: skip
NOT_PATHS = {
    "storage", "_storage", "LOCAL", "_files", "queue", "queues", "_queues", "ranges", "self",
    "source", "status", "tier",
}  # fmt: skip
MODULES_OF_FILES = {"ctypes", "fcntl", "glob", "io", "mmap", "shutil", "tempfile"} | {
    f"rmqstore.storage.files.{name}" for name in ("regular", "mapped_file", "sparse")
}
LOOKS_AT_OTHER_FILES = {
    "rmqstore.cli.common": "the folder of an output file, and the null device for a closed pipe",
    "rmqstore.cli.exchange": "files that are exported to and imported from",
    "rmqstore.cli.output": "text above a file that exchange.files opens",
    "rmqstore.cli.report": "the page that is written, which must not be written into the store",
    "rmqstore.exchange.files": "files that are exported to and imported from",
    "rmqstore.inspect.doctor": "the programs that are asked what they are",
    "rmqstore.platforms": "calls that only some systems have",
    "rmqstore.query.times": "the time zone of the computer",
    "rmqstore.storage.rocksdb": "the process that opens a database first, and the folder of links",
}

# What one of Linux, macOS and Windows lacks: `rmqstore.platforms` asks for it and has another way.
# Here it is used where that system does not come, which each entry says.
LACKED_MODULES = {"fcntl", "grp", "posix", "pwd", "resource", "termios", "ctypes"}
USES_WHAT_IS_LACKED = {
    "rmqstore.cli.common.os.set_blocking": "the signals that end `follow`, which is for Linux",
    "rmqstore.replica.follower.select.POLLIN": "`follow` is for Linux",
    "rmqstore.replica.follower.select.poll": "`follow` is for Linux",
    "rmqstore.storage.files.disk.os.pwrite": "Windows changes no store",
    "rmqstore.storage.rocksdb.os.pread": "Windows reads no RocksDB",
    "rmqstore.storage.rocksdb_trial.resource": "Windows reads no RocksDB",
    "rmqstore.storage.rocksdb_trial.sys.platform": "a program that imports nothing of ours",
    "pyspark_rmqstore.worker.ctypes": "another C library than that of Linux is left as it is",
}

# How large things may become, counted in lines that hold code: no docstring, comment or blank line.
MOST_LINES_OF_A_MODULE = 600
MOST_LINES_OF_A_FUNCTION = 60
MOST_PUBLIC_METHODS = 15
# What is larger today, and how large: it may shrink, and leaves the list when it fits.
LONG_FUNCTIONS = {
    "rmqstore.copying.copier.copy": 68,
}
LARGE_CLASSES = {
    "kafkalog.partition.Partition": 19,
    "rmqstore.read.queue_ranges.QueueRanges": 17,
    "rmqstore.read.store_parts.StoreParts": 20,
    "rmqstore.read.store_queues.StoreQueues": 18,
    "rmqstore.storage.files.disk.Disk": 20,
    "rmqstore.storage.queue.batch_consumequeue.BatchConsumeQueue": 19,
    "rmqstore.storage.queue.consumequeue.ConsumeQueue": 16,
    "rmqstore.storage.queue.queue.Queue": 19,
    "rmqstore.storage.queue.queue_set.RecoveredQueue": 17,
    "rmqstore.storage.queue.sparse_consumequeue.SparseConsumeQueue": 16,
    "rmqstore.storage.files.remote_storage.RemoteStorage": 18,
    "rmqstore.store.message_store.MessageStore": 18,
}


class Module(NamedTuple):
    """A file of ours; a package is the module of its ``__init__.py``."""

    name: str
    path: Path
    is_package: bool
    tree: ast.Module
    nodes: list[ast.AST]
    code: list[int]  # the lines that hold code

    def at(self, line: int) -> str:
        return f"{self.path.relative_to(PROJECT)}:{line}"


class Import(NamedTuple):
    target: str
    line: int


class Size(NamedTuple):
    name: str
    place: str
    number: int


def lines_of_code(text: str, nodes: list[ast.AST]) -> list[int]:
    """Return the numbers of lines that are not blank, no comment and in no docstring."""
    docstrings: set[int] = set()
    for node in nodes:
        if isinstance(node, DEFINITIONS) and ast.get_docstring(node, clean=False) is not None:
            first = node.body[0]
            docstrings.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return [
        number
        for number, line in enumerate(text.splitlines(), 1)
        if line.strip() and not line.lstrip().startswith("#") and number not in docstrings
    ]


@cache
def all_modules() -> list[Module]:
    """Return every file of the four packages, parsed once for all tests."""
    found = []
    for source in SOURCES:
        for path in sorted(source.rglob("*.py")):
            is_package = path.name == "__init__.py"
            place = (path.parent if is_package else path.with_suffix("")).relative_to(source.parent)
            text = path.read_text(encoding="utf-8")
            tree = ast.parse(text)
            nodes = list(ast.walk(tree))
            code = lines_of_code(text, nodes)
            found.append(Module(".".join(place.parts), path, is_package, tree, nodes, code))
    return found


def modules_of(*packages: str) -> list[Module]:
    """Return the modules in packages, without the packages themselves."""
    return [
        module
        for module in all_modules()
        if not module.is_package and any(is_part(module.name, package) for package in packages)
    ]


def is_part(target: str, module: str) -> bool:
    return target == module or target.startswith(module + ".")


def imports_of(module: Module) -> Iterator[Import]:
    """Yield what a module imports, also inside functions; `from a import b` is a.b."""
    for node in module.nodes:
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = "." * node.level + (node.module or "")
            yield from (Import(f"{package}.{alias.name}", node.lineno) for alias in node.names)


def assert_none(offences: Iterable[str]) -> None:
    """Name every offence, one a line."""
    if found := list(offences):
        pytest.fail("\n".join([f"{len(found)} found:", *found]), pytrace=False)


def test_an_import_names_a_module_and_not_a_package() -> None:
    """A package holds nothing, and the contracts speak of modules."""
    known = {module.name for module in modules_of("rmqstore", "kafkalog")}
    assert_none(
        f"{module.at(found.line)}: {found.target} is in no module"
        for module in modules_of("rmqstore", "kafkalog")
        for found in imports_of(module)
        if any(is_part(found.target, package) for package in ("rmqstore", "kafkalog"))
        if found.target not in known and found.target.rpartition(".")[0] not in known
    )


def test_the_architecture_page_shows_the_layers_of_the_contract() -> None:
    """Every package of rmqstore, and every module in its root, is in one of them."""
    text = (PROJECT / "store" / "ARCHITECTURE.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d) \| ([^|]+) \|", text, flags=re.MULTILINE)
    shown = [set(re.findall(r"`([\w.]+)`", packages)) for _, packages in rows]
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))
    contract = project["tool"]["importlinter"]["contracts"][0]
    assert contract["exhaustive"]
    top, *layers = [set(re.split(r" [|:] ", names)) for names in contract["layers"]]
    assert top == {"__main__"}
    assert shown == layers[::-1]
    assert [int(number) for number, _ in rows] == [*range(1, 9)]


def test_the_index_of_helpers_names_each_of_them() -> None:
    tests = PROJECT / "tests"
    text = (tests / "README.md").read_text(encoding="utf-8")
    indexed = re.findall(r"^\| `([\w/]+)` \|", text, flags=re.MULTILINE)
    helpers = [file.relative_to(tests).with_suffix("") for file in tests.rglob("*.py")]
    others = ("test_", "conftest", "__init__")
    assert sorted(indexed) == sorted(
        str(helper) for helper in helpers if not helper.name.startswith(others)
    )


def test_the_connector_enters_the_core_by_its_doors_only() -> None:
    outside, used = [], set()
    for module in all_modules():
        if is_part(module.name, "pyspark_rmqstore"):
            for found in imports_of(module):
                doors = {door for door in DOORS if is_part(found.target, door)}
                used |= doors
                if is_part(found.target, "rmqstore") and not doors:
                    outside.append(f"{module.at(found.line)}: {found.target}")
    unused = [f"{door} is in DOORS, and nothing enters by it" for door in sorted(DOORS - used)]
    assert_none([*outside, *unused])


def test_modules_of_formats_open_no_file() -> None:
    """What they must not import for it stands in a contract."""
    assert_none(
        f"{module.at(node.lineno)}: open"
        for module in modules_of("rmqstore.format", "kafkalog.format")
        for node in module.nodes
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "open"
    )


def kinds_that_are_named(module: Module) -> Iterator[str]:
    for node in module.nodes:
        if isinstance(node, (ast.Name, ast.Attribute)):
            name = node.id if isinstance(node, ast.Name) else node.attr
            if name in QUEUE_KINDS and module.name not in QUEUE_KINDS[name]:
                yield f"{module.at(node.lineno)}: {name}"
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("isinstance", "type"):
            names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
            for kind in sorted(names & set(QUEUE_KINDS)):
                yield f"{module.at(node.lineno)}: asks whether a queue is a {kind}"


def test_only_the_package_of_queues_knows_their_kinds() -> None:
    """Others use the queue's protocol, so a new kind is known only where it is opened."""
    assert_none(
        offence
        for module in modules_of("rmqstore")
        if module.name.rpartition(".")[0] != "rmqstore.storage.queue"
        for offence in kinds_that_are_named(module)
    )


def test_the_kinds_of_queues_do_not_inherit() -> None:
    found = {
        node.name: [ast.unparse(base) for base in node.bases]
        for module in modules_of("rmqstore.storage.queue")
        for node in module.tree.body
        if isinstance(node, ast.ClassDef) and node.name in QUEUE_KINDS
    }
    assert found == {kind: [] for kind in QUEUE_KINDS}


def test_packages_hold_nothing_but_names() -> None:
    def is_name(module: Module, node: ast.stmt) -> bool:
        is_docstring = node is module.tree.body[0] and isinstance(node, ast.Expr)
        is_lazy = module.name in LAZY_PACKAGES and ast.unparse(node).split(":")[0] in LAZY_NAMES
        return is_docstring or is_lazy or isinstance(node, (ast.ImportFrom, ast.Assign))

    assert_none(
        f"{module.at(node.lineno)}: {ast.unparse(node).splitlines()[0]}"
        for module in all_modules()
        if module.is_package
        for node in module.tree.body
        if not is_name(module, node)
    )


def looks_at_files(module: Module) -> Iterator[str]:
    """Yield the places of a module that look at a file system themselves."""
    for node in module.nodes:
        if isinstance(node, ast.Attribute):
            of = node.value
            receiver = of.attr if isinstance(of, ast.Attribute) else getattr(of, "id", "")
            is_look = node.attr in LOOKS and receiver not in NOT_PATHS
            if is_look or (receiver == "os" and node.attr not in PURE_OS):
                yield f"{module.at(node.lineno)}: {receiver}.{node.attr}"
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "open":
            yield f"{module.at(node.lineno)}: open"
    for found in imports_of(module):
        if any(is_part(found.target, name) for name in MODULES_OF_FILES):
            yield f"{module.at(found.line)}: import of {found.target}"


def test_only_storage_files_looks_at_a_file_system() -> None:
    found = {
        module.name: list(looks_at_files(module))
        for module in modules_of("rmqstore")
        if not is_part(module.name, "rmqstore.storage.files")
    }
    others = [places for name, places in found.items() if name not in LOOKS_AT_OTHER_FILES]
    needless = [name for name in LOOKS_AT_OTHER_FILES if not found.get(name)]
    assert_none(
        [*chain.from_iterable(others)]
        + [f"{name} need not be in LOOKS_AT_OTHER_FILES" for name in needless]
    )


def names_that_a_system_lacks() -> dict[str, set[str]]:
    """Return the names that Linux, macOS or Windows does not have, by module."""
    lacked = {"os": {"set_blocking", "name", "uname"}, "sys": {"platform"}, "platform": {"system"}}
    for table in simulated.LACKS.values():
        for module, names in table.items():
            lacked.setdefault(module, set()).update(names)
    return lacked


def uses_of_what_a_system_lacks(module: Module) -> Iterator[tuple[str, str]]:
    """Yield what a module uses, and where."""
    lacked = names_that_a_system_lacks()
    for node in module.nodes:
        if isinstance(node, ast.Attribute):
            of = getattr(node.value, "id", "")
            if node.attr in lacked.get(of, ()):
                yield f"{of}.{node.attr}", module.at(node.lineno)
    for found in imports_of(module):
        package, _, name = found.target.rpartition(".")
        if found.target.partition(".")[0] in LACKED_MODULES:
            yield found.target.partition(".")[0], module.at(found.line)
        elif name in lacked.get(package, ()):
            yield found.target, module.at(found.line)


def test_only_one_module_knows_what_a_system_lacks() -> None:
    found = {
        f"{module.name}.{name}": place
        for module in all_modules()
        if module.name != "rmqstore.platforms"
        for name, place in uses_of_what_a_system_lacks(module)
    }
    assert_none(
        [f"{place}: {use}" for use, place in found.items() if use not in USES_WHAT_IS_LACKED]
        + [f"{use} is not used" for use in USES_WHAT_IS_LACKED if use not in found]
    )


def definitions_in(
    node: ast.AST, name: str
) -> Iterator[tuple[str, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Yield classes and functions with their full names, those inside of others too."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.ClassDef, *FUNCTIONS)):
            full_name = f"{name}.{child.name}"
            yield full_name, child
            yield from definitions_in(child, full_name)
        else:
            yield from definitions_in(child, name)


def too_large(sizes: Iterable[Size], most: int, unit: str, known: dict[str, int]) -> Iterator[str]:
    """Yield what is larger than it may be, and what is known to be too large but no longer is."""
    fitting = set(known)
    for name, place, number in sizes:
        bound = known.get(name, most)
        if number > bound:
            yield f"{place}: {name} has {number} {unit}, and {bound} are allowed"
        if number > most:
            fitting.discard(name)
    yield from (f"{name} need not be listed: {most} {unit} are enough" for name in sorted(fitting))


def test_no_module_is_too_long() -> None:
    sizes = [Size(module.name, module.at(1), len(module.code)) for module in all_modules()]
    assert_none(too_large(sizes, MOST_LINES_OF_A_MODULE, "lines of code", {}))


def test_no_function_is_too_long() -> None:
    """Decorators do not count: those of verbs declare options."""
    sizes = []
    for module in all_modules():
        for name, node in definitions_in(module.tree, module.name):
            if isinstance(node, FUNCTIONS):
                last = node.end_lineno or node.lineno
                number = bisect_right(module.code, last) - bisect_left(module.code, node.lineno)
                sizes.append(Size(name, module.at(node.lineno), number))
    assert_none(too_large(sizes, MOST_LINES_OF_A_FUNCTION, "lines of code", LONG_FUNCTIONS))


def test_no_class_has_too_many_public_methods() -> None:
    """Properties count as well, what is inherited does not."""
    sizes = []
    for module in all_modules():
        for name, node in definitions_in(module.tree, module.name):
            if isinstance(node, ast.ClassDef):
                methods = {part.name for part in node.body if isinstance(part, FUNCTIONS)}
                number = sum(not method.startswith("_") for method in methods)
                sizes.append(Size(name, module.at(node.lineno), number))
    assert_none(too_large(sizes, MOST_PUBLIC_METHODS, "public methods", LARGE_CLASSES))
