"""What is built and imported: one wheel of three packages, whose core does not need the other."""

from __future__ import annotations

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
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SOURCES = {
    "rmqstore": ROOT / "store" / "rmqstore",
    "kafkalog": ROOT / "store" / "kafkalog",
    "pyspark_rmqstore": ROOT / "connector" / "pyspark_rmqstore",
    "pyspark_kafkalog": ROOT / "connector" / "pyspark_kafkalog",
}
CONNECTORS = ("pyspark_rmqstore", "pyspark_kafkalog")


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
    """Return the folder of an unpacked wheel."""
    folder = tmp_path_factory.mktemp("dist")
    run("-m", "hatchling", "build", "-t", "wheel", "-d", str(folder))
    (built,) = folder.glob("*.whl")
    with zipfile.ZipFile(built) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def _info(wheel: Path, name: str) -> Path:
    (found,) = wheel.glob(f"*.dist-info/{name}")
    return found


def _metadata(wheel: Path) -> Message:
    return message_from_string(_info(wheel, "METADATA").read_text(encoding="utf-8"))


def test_the_wheel_holds_every_module_of_all_packages_and_no_other_folder(wheel: Path) -> None:
    expected = {
        Path(package, path.relative_to(source))
        for package, source in SOURCES.items()
        for path in source.rglob("*")
        if path.suffix in (".py", ".j2", ".css", ".js") or path.name == "py.typed"
    }
    assert len(expected) > 20
    assert [path for path in expected if not (wheel / path).exists()] == []
    folders = {path.name for path in wheel.iterdir() if path.suffix != ".dist-info"}
    assert folders == set(SOURCES)
    assert not [*wheel.rglob("__pycache__")]


def test_the_wheel_holds_each_page_that_the_code_refers_to(wheel: Path) -> None:
    texts = [path.read_text() for source in SOURCES.values() for path in source.rglob("*.py")]
    pages = {page for text in texts for page in re.findall(r"\bdocs/[a-z-]+\.md", text)}
    assert "docs/views.md" in pages
    assert [page for page in pages if not (wheel / "rmqstore" / page).exists()] == []


def test_links_of_the_readme_and_of_all_pages_lead_on_in_the_unpacked_wheel(wheel: Path) -> None:
    """A clone is not needed to read on; the description leads into the package beside it."""
    description, package = _info(wheel, "METADATA"), wheel / "rmqstore"
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
    assert _info(wheel, "**/LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    assert _metadata(wheel)["License-Expression"] == "Apache-2.0"


def test_the_wheel_has_the_command_line_as_its_entry_point(wheel: Path) -> None:
    entries = configparser.ConfigParser()
    entries.read_string(_info(wheel, "entry_points.txt").read_text(encoding="utf-8"))
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
    assert metadata["Name"] == PROJECT["project"]["name"]
    assert metadata["Version"] == rmqstore.__version__


def test_what_is_missing_is_installed_by_an_extra_that_there_is() -> None:
    project = PROJECT["project"]
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
    settings = PROJECT["tool"]["towncrier"]
    types = {each["directory"] for each in settings["type"]}
    names = {path.name for path in (ROOT / settings["directory"]).iterdir()} - {"README.md"}
    assert [name for name in sorted(names) if name.split(".")[-2] not in types] == []


def test_the_unpacked_wheel_reads_a_store_by_itself(
    wheel: Path, golden_store: goldens.Golden, tmp_path: Path
) -> None:
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); import rmqstore, pyspark_rmqstore\n"
        "with rmqstore.open(sys.argv[2]) as store: print(store.scan().read_all().num_rows)\n"
        "print(rmqstore.__file__, pyspark_rmqstore.__file__, sep='\\n')"
    )
    rows, *files = run(
        "-c", script, str(wheel), str(golden_store("one")), folder=tmp_path
    ).splitlines()
    assert int(rows) == len(goldens.lines("one", "expected")) == 1
    assert all(file.startswith(str(wheel)) for file in files)


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


def test_the_test_files_that_ci_names_exist() -> None:
    """A pattern of the shell that names one that is gone ends the run at its last step."""
    text = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    (names,) = re.findall(r"tests/interop/test_\{([\w,]+)\}\.py", text)
    files = [ROOT / "tests" / "interop" / f"test_{name}.py" for name in names.split(",")]
    assert [file.name for file in files if not file.is_file()] == []
