"""The smoke check for representative versions of Python, PySpark, numpy and pyarrow.

Each combination has a virtual environment of its own under ``.versions``, made by pip from the
registry and kept.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

import goldens
from versions.environments import FOLDER, ROOT, interpreter, run_command

pytestmark = pytest.mark.versions

STORE = "basic"
PARTS = (
    "core_reads", "batch_read", "filters", "append", "stream_read", "stream_read_limited",
    "stream_write", "views", "tables",
)  # fmt: skip
NEWEST = ""  # what pyproject allows and pip finds
OLDEST_NUMPY, OLDEST_PYARROW = "==2.0.0", "==18.0.0"


class Combination(NamedTuple):
    """Versions: of Python by its name on PATH, of the others as pip takes them."""

    python: str
    pyspark: str
    numpy: str = NEWEST
    pyarrow: str = NEWEST

    @property
    def name(self) -> str:
        joined = "-".join(f"{name}{value or 'newest'}" for name, value in self._asdict().items())
        return joined.replace("=", "").replace("*", "x")


COMBINATIONS = (
    Combination("3.11", "==4.0.0", OLDEST_NUMPY, OLDEST_PYARROW),
    Combination("3.13", "==4.0.*"),
    Combination("3.12", "==4.1.0"),
    Combination("3.13", "==4.1.*"),
    Combination("3.12", "==4.2.0", OLDEST_NUMPY, OLDEST_PYARROW),
    Combination("3.13", "==4.2.*"),
    Combination("3.11", "==4.3.*", OLDEST_NUMPY, OLDEST_PYARROW),
    Combination("3.12", "==4.3.*"),
    Combination("3.13", "==4.3.*"),
    Combination("3.14", "==4.3.*"),
)


def environment(combination: Combination) -> Path:
    """Return the Python of a combination's environment, with this project as it is now."""
    python = interpreter(combination.python)
    if python is None:
        pytest.skip(f"not run: no python{combination.python} on PATH and none of pyenv")
    folder = FOLDER / combination.name
    own = folder / "bin" / "python"
    pip = [own, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if not (folder / ".ready").exists():
        run_command(python, "-m", "venv", "--clear", folder)
        requirements = [
            f"{name}{value}" for name, value in combination._asdict().items() if name != "python"
        ]
        run_command(*pip, *requirements, f"{ROOT}[spark,cli]", "pandas>=2.2")
        (folder / ".ready").touch()
    run_command(*pip, "--no-deps", "--force-reinstall", ROOT)
    return own


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return goldens.unpack(STORE, tmp_path_factory.mktemp("store"))


@pytest.mark.parametrize("combination", COMBINATIONS, ids=lambda one: one.name)
def test_a_combination_passes_the_smoke_check(
    combination: Combination, store: Path, tmp_path: Path
) -> None:
    python = environment(combination)
    n_messages = str(len(goldens.lines(STORE, "expected")))
    output = run_command(
        python, Path(__file__).with_name("smoke.py"), store, n_messages, tmp_path / "scratch"
    )
    lines = output.splitlines()  # of the JVM, too
    (versions,) = [line for line in lines if line.startswith("python ")]
    print(versions)  # noqa: T201 - what `pytest -rP` shows
    assert versions.startswith(f"python {combination.python}.")
    assert [line for line in lines if line.endswith(" passed")] == [
        f"{part} passed" for part in PARTS
    ]
