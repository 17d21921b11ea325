"""What the file of an image does, without a container: a folder stands for its root."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from versions.environments import ROOT, run_command

# What a RUN line may have beside: it concerns the users of the image.
_OF_THE_IMAGE = ("useradd", "install")
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "_build")


class Image:
    """A folder that stands for the root of an image, and what its file says of it."""

    def __init__(self, file: Path, root: Path) -> None:
        self.root = root
        self.variables: dict[str, str] = {}
        text = file.read_text(encoding="utf-8").replace("\\\n", " ")
        lines = [line for line in text.splitlines() if line and not line.startswith("#")]
        self.steps = [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]

    def build(self, *tools: Path) -> None:
        path = os.pathsep.join([*map(str, tools), os.environ["PATH"]])
        act: dict[str, Callable[[str], None]] = {
            "COPY": self._copy, "ENV": self._set, "RUN": lambda rest: self._run(rest, path),
        }  # fmt: skip
        for word, rest in self.steps:
            if word in act:
                act[word](rest)

    def inside(self, text: str) -> str:
        """Return a text whose absolute paths are below the root of the image."""
        return re.sub(r"(?<![\w./])/(?=\w)", f"{self.root}/", text)

    def only(self, word: str) -> str:
        """Return what follows a word that stands there once."""
        (rest,) = (rest for step, rest in self.steps if step == word)
        return rest

    def _copy(self, rest: str) -> None:
        *sources, target = rest.split()
        if sources[0].startswith("--from="):  # a tool of another image
            return
        for source in (ROOT / name for name in sources):
            into = Path(self.inside(target))
            if source.is_dir():
                shutil.copytree(source, into, dirs_exist_ok=True, ignore=_LEFT_OUT)
                continue
            if target.endswith("/"):
                into /= source.name
            into.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, into)

    def _set(self, rest: str) -> None:
        name, _, value = rest.partition("=")
        self.variables[name] = self.inside(value)

    def _run(self, rest: str, path: str) -> None:
        for command in rest.split("&&"):
            if not command.split()[0].startswith(_OF_THE_IMAGE):
                run_command("sh", "-ec", self.inside(command), folder=self.root, PATH=path)
