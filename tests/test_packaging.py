"""What is built and imported: one wheel of three packages, whose core does not need the other."""

from __future__ import annotations

import ast
import configparser
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from email import message_from_string
from email.message import Message
from pathlib import Path

import pytest

import goldens
import rmqstore
from rmqstore.errors import install
from rmqstore.inspect.doctor import OPTIONAL

ROOT = Path(__file__).parents[1]
SOURCES = {
    "rmqstore": ROOT / "store" / "rmqstore",
    "kafkalog": ROOT / "store" / "kafkalog",
    "pyspark_rmqstore": ROOT / "connector" / "pyspark_rmqstore",
    "pyspark_kafkalog": ROOT / "connector" / "pyspark_kafkalog",
}
DOORS = {  # packages and modules of the core that the connector enters by
    "rmqstore.errors", "rmqstore.spans", "rmqstore.format.schema", "rmqstore.query",
    "rmqstore.read", "rmqstore.write", "rmqstore.store.opening", "rmqstore.live",
    "rmqstore.remoting", "rmqstore.storage.files",
    "rmqstore.storage.broker.store_config", "rmqstore.storage.broker.broker_run",
    "rmqstore.storage.broker.folders", "rmqstore.storage.broker.retry",
    "rmqstore.storage.recovery.store_ends",
}  # fmt: skip
CONNECTORS = ("pyspark_rmqstore", "pyspark_kafkalog")
CONNECTOR = sorted(SOURCES["pyspark_rmqstore"].glob("**/*.py"))


def run(*arguments: str, folder: Path = ROOT) -> str:
    """Run this Python in its own process, our warnings being errors; return what it printed."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run("-m", "hatchling", "build", "-t", "wheel", "-d", str(folder))
    (built,) = folder.glob("*.whl")
    return built


def _metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return message_from_string(archive.read(name).decode())


def test_the_wheel_holds_every_module_of_all_packages_and_no_other_folder(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    found = {name for name in names if ".dist-info/" not in name}
    expected = {
        f"{package}/{path.relative_to(source)}"
        for package, source in SOURCES.items()
        for path in source.rglob("*.py")
    }
    expected |= {
        *(
            f"rmqstore/inspect/templates/{name}"
            for name in ("page.html.j2", "store.html.j2", "charts.html.j2", "page.css", "page.js")
        ),
        "rmqstore/py.typed",
        "kafkalog/py.typed",
        "pyspark_rmqstore/py.typed",
    }
    assert len(expected) > 20
    assert expected <= found
    assert {name.split("/")[0] for name in found} == set(SOURCES)
    assert not [name for name in found if "__pycache__" in name]


def test_the_wheel_holds_each_page_that_the_code_refers_to(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {*archive.namelist()}
    texts = [path.read_text() for source in SOURCES.values() for path in source.rglob("*.py")]
    pages = {page for text in texts for page in re.findall(r"\bdocs/[a-z-]+\.md", text)}
    assert "docs/views.md" in pages
    assert {f"rmqstore/{page}" for page in pages} <= names


def test_links_of_the_readme_and_of_all_pages_lead_on_in_the_unpacked_wheel(
    wheel: Path, tmp_path: Path
) -> None:
    """A clone is not needed to read on; the description leads into the package beside it."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    (description,) = tmp_path.glob("*.dist-info/METADATA")
    package = tmp_path / "rmqstore"
    readme = package / "README.md"
    linked = {page for page in _links(readme) if page.suffix == ".md"}
    assert {package / "docs" / "live.md", package / "store" / "FORMAT.md"} <= linked
    assert linked == {page for page in _links(description) if page.suffix == ".md"}
    pages = [description, *package.rglob("*.md")]
    dead = [f"{page}: {link}" for page in pages for link in _links(page) if not link.exists()]
    assert dead == []


def _links(page: Path) -> list[Path]:
    """Return the files that a page links to, outside of its code."""
    text = re.sub(
        r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
    )
    links = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", re.sub(r"`[^`]*`", "", text))
    return [Path(os.path.normpath(page.parent / link)) for link in links]


def test_the_wheel_holds_the_licence_word_by_word(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("/LICENSE")]
        assert archive.read(name) == (ROOT / "LICENSE").read_bytes()
    assert _metadata(wheel)["License-Expression"] == "Apache-2.0"


def test_the_wheel_has_the_command_line_as_its_entry_point(wheel: Path) -> None:
    entries = configparser.ConfigParser()
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("entry_points.txt")]
        entries.read_string(archive.read(name).decode())
    assert dict(entries["console_scripts"]) == {"rmqstore": "rmqstore.cli:main"}
    assert run("-c", "from rmqstore.cli import main; print(callable(main))").strip() == "True"


def test_the_core_reads_every_body_without_an_extra_and_spark_is_one(wheel: Path) -> None:
    metadata = _metadata(wheel)
    needed = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    elsewhere = [line for line in needed if "sys_platform" in line]
    assert [line.partition(";")[2].strip() for line in elsewhere] == ["sys_platform == 'win32'"]
    needed = [line for line in needed if line not in elsewhere]
    libraries = ["javaproperties", "lz4", "mmh3", "numpy", "orjson", "pyarrow", "zstandard"]
    assert sorted(line.split(">")[0].strip() for line in needed) == libraries
    assert not any("<" in line for line in metadata.get_all("Requires-Dist", []))
    extras = set(metadata.get_all("Provides-Extra", []))
    assert {"spark", "cli", "fast", "rocksdb", "report", "kafka", "all", "test", "dev"} <= extras
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert (metadata["Name"], metadata["Version"]) == (project["name"], rmqstore.__version__)


def test_what_is_missing_is_installed_by_an_extra_that_there_is() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    assert install("report") == f"pip install '{project['name']}[report]'"
    named, by_hand = set(), []
    for path in (path for source in SOURCES.values() for path in source.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        named |= set(re.findall(r"""\binstall\(["']([a-z]+)["']\)""", text))
        by_hand += [(path.name, name) for name in re.findall(r"pip install ([^'\s]+)", text)]
    assert {"cli", "kafka", "metrics", "polars", "report", "rocksdb"} <= named <= set(extras)
    # pandas is in no extra, and what the core needs came with it.
    assert sorted(by_hand) == [("arrow_rows.py", 'pandas"'), ("doctor.py", '{name}")')]
    for library, (extra, _) in OPTIONAL.items():
        assert any(line.startswith(library) for line in extras[extra]), library


def test_the_version_is_the_newest_of_the_changelog() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    released = re.findall(r"^## \[(\d+\.\d+\.\d+)\] - \d{4}-\d{2}-\d{2}$", text, flags=re.MULTILINE)
    assert released[0] == rmqstore.__version__
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {rmqstore.__version__}\n" in citation


def test_each_fragment_of_the_changelog_has_a_type_that_towncrier_knows() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    settings = project["tool"]["towncrier"]
    types = {each["directory"] for each in settings["type"]}
    names = {path.name for path in (ROOT / settings["directory"]).iterdir()} - {"README.md"}
    assert [name for name in sorted(names) if name.split(".")[-2] not in types] == []


def test_the_unpacked_wheel_reads_a_store_by_itself(
    wheel: Path, golden_store: goldens.Golden, tmp_path: Path
) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); import rmqstore, pyspark_rmqstore\n"
        "with rmqstore.open(sys.argv[2]) as store: print(store.scan().read_all().num_rows)\n"
        "print(rmqstore.__file__, pyspark_rmqstore.__file__, sep='\\n')"
    )
    rows, *files = run(
        "-c", script, str(tmp_path / "site"), str(golden_store("one")), folder=tmp_path
    ).splitlines()
    assert int(rows) == len(goldens.lines("one", "expected")) == 1
    assert all(file.startswith(str(tmp_path / "site")) for file in files)


@pytest.mark.parametrize("connector", CONNECTORS)
def test_importing_a_connector_imports_nothing_of_a_core(connector: str) -> None:
    """An import that fails there would hide every other Python data source from Spark's look-up."""
    script = (
        f"import sys, {connector}; print({connector}.DefaultSource.name(), *sorted(sys.modules))"
    )
    name, *modules = run("-c", script).split()
    assert name == connector.removeprefix("pyspark_")
    cores = {"rmqstore", "kafkalog", *CONNECTORS} - {connector}
    assert not [module for module in modules if module.split(".")[0] in cores]
    ours = {module for module in modules if module.startswith(connector)}
    assert ours == {connector, f"{connector}.source"}


@pytest.mark.parametrize("connector", CONNECTORS)
def test_importing_a_connector_survives_a_core_that_cannot_be_imported(connector: str) -> None:
    script = (
        "import sys\n"
        "sys.modules.update(rmqstore=None, kafkalog=None)\n"
        f"import {connector}; print({connector}.DefaultSource.name())"
    )
    assert run("-c", script).strip() == connector.removeprefix("pyspark_")


def test_the_core_reads_a_store_where_pyspark_cannot_be_imported(
    golden_store: goldens.Golden,
) -> None:
    script = (
        "import sys\n"
        "class Blocker:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('pyspark', 'py4j', 'pyspark_rmqstore', 'pandas'):\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Blocker())\n"
        "try:\n"
        "    import pyspark\n"
        "except ModuleNotFoundError:\n"
        "    import rmqstore\n"
        "    with rmqstore.open(sys.argv[1]) as store:\n"
        "        print(store.scan(include_system_topics=True).read_all().num_rows)\n"
    )
    assert int(run("-c", script, str(golden_store("basic")))) == len(
        goldens.lines("basic", "expected")
    )


def _imports(path: Path) -> set[tuple[str, int]]:
    """Return the modules that a file imports, also in functions, each with its line.

    Of ``from a import b`` it is a.
    """
    found: set[tuple[str, int]] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {(alias.name, node.lineno) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write absolute imports"
            found.add((str(node.module), node.lineno))
    return found


def test_the_process_that_spark_starts_for_a_schema_imports_no_reader() -> None:
    script = (
        "import sys, rmqstore, pyspark_rmqstore.schema; "
        "print('rmqstore.read.store_parts' in sys.modules)"
    )
    assert run("-c", script).split() == ["False"]


@pytest.mark.parametrize(
    "modules",
    ["pyspark_rmqstore.options", "pyspark_rmqstore.batch_reader", "pyspark_kafkalog.rows"],
)
def test_reads_in_spark_import_no_writer(modules: str) -> None:
    script = f"import sys, {modules}; print('rmqstore.write.messages' in sys.modules)"
    assert run("-c", script).split() == ["False"]


def test_names_of_the_package_are_imported_lazily() -> None:
    everything = (
        "import rmqstore; "
        "print(*[getattr(rmqstore, name) is not None for name in rmqstore.__all__])"
    )
    assert set(run("-c", everything).split()) == {"True"}
    assert "StoreWriter" in run("-c", "import rmqstore; print(dir(rmqstore))")


def test_the_connector_enters_the_core_by_its_doors_only() -> None:
    outside, used = [], set()
    for path in CONNECTOR:
        for module, line in sorted(_imports(path)):
            doors = {door for door in DOORS if f"{module}.".startswith(f"{door}.")}
            used |= doors
            if module.split(".")[0] == "rmqstore" and not doors:
                outside.append(f"{path.relative_to(ROOT)}:{line}: {module}")
    unused = [f"{door} is in DOORS, and nothing enters by it" for door in sorted(DOORS - used)]
    if outside or unused:
        pytest.fail("\n".join([*outside, *unused]), pytrace=False)
