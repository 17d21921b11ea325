"""Virtual environments beside the project, in which it is installed as users install it."""

from __future__ import annotations

import os
import subprocess
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
