"""What the package has beside its modules: the manual, and a README whose links lead into it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

_CARRIED = (
    "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs/*.md", "docs/*.ipynb", "docs/*.svg",
    "docs/*.png", "docs/decisions/*.md", "store/*.md", "examples/*", "examples/follow/*",
    "examples/cluster/*", "conf/*",
)  # fmt: skip
_LINK = re.compile(r"\]\((?!https?:|#)")
_WHERE = """
In a package that is installed, these pages are in the folder of `rmqstore`, which
`python -c "import rmqstore; print(*rmqstore.__path__)"` prints.
"""


class CarriedPages(BuildHookInterface):
    """The build hook that puts the pages into the package, as they lie in the repository."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the pages to a wheel; an editable installation has them where they are."""
        if version == "editable":
            return
        root = Path(self.root)
        pages = [page for pattern in _CARRIED for page in root.glob(pattern) if page.is_file()]
        for page in pages:
            build_data["force_include"][str(page)] = f"rmqstore/{page.relative_to(root)}"


class Description(MetadataHookInterface):
    """The metadata hook that makes the description of the README.

    Links lead from ``METADATA`` to the pages in the package beside it.
    """

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the description."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        text = _LINK.sub("](../rmqstore/", text) + _WHERE
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
