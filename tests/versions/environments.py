"""Virtual environments beside the project, in which it is installed as users install it."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".versions"


def run_command(*command: str | Path, folder: Path | None = None, **more: str) -> str:
    """Run a command without what would lead it to this project's own code; return its output."""
    variables = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "SPARK_HOME")
    }
    done = subprocess.run(
        command, cwd=folder, env=variables | more, capture_output=True, text=True, timeout=1800,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-8000:]}"
    return done.stdout


@cache
def interpreter(version: str) -> Path | None:
    """Return a Python of a version, from PATH or pyenv; a shim without one does not count."""
    found = shutil.which(f"python{version}")
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    candidates = [Path(found)] if found else []
    candidates += sorted(pyenv.glob(f"{version}.*/bin/python"))
    code = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
    for candidate in candidates:
        done = subprocess.run([candidate, "-c", code], capture_output=True, text=True, check=False)
        if done.returncode == 0 and done.stdout.strip() == version:
            return candidate
    return None


def fresh_environment(name: str, *requirements: str) -> Path:
    """Return the Python of a new environment of this name, which has what is required."""
    folder = FOLDER / name
    run_command("python3", "-m", "venv", "--clear", folder)
    python = folder / "bin" / "python"
    if requirements:
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        run_command(*pip, *requirements)
    return python
