"""Configuration of the manual: `make docs` builds it, and warnings are errors."""

import sys
from pathlib import Path

import rmqstore

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "rmqstore"
author = "The rmqstore authors"
copyright = "The rmqstore authors; Apache License 2.0"  # noqa: A001 - Sphinx's name
release = version = rmqstore.__version__

extensions = [
    "myst_nb",  # myst_parser, and notebooks
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "command_reference",
]
exclude_patterns = ["_build", "_ext", "changelog.d"]

# What is copied of a block are its commands, without the prompt and what they print.
copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True
copybutton_remove_prompts = True
copybutton_line_continuation_character = "\\"

html_theme = "furo"
html_title = f"rmqstore {release}"
html_static_path = ["_static"]
html_css_files = ["manual.css", "notebook.css"]
html_search_scorer = str(Path(__file__).parent / "_ext" / "scorer.js")

# A notebook is shown as it was committed; tests/test_tour.py runs it.
nb_execution_mode = "off"
nb_output_stderr = "remove"

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_default_options = {"members": True, "show-inheritance": True}
# Docstrings name exceptions of the package by their bare names, and types of pyarrow without its
# inventory at hand.
nitpicky = False
