"""Sphinx's settings: ``make docs`` builds these pages and those of docstrings in build/docs."""

import re

import kary_replay

project = "kary-replay"
author = copyright = "The kary-replay developers"
release = version = kary_replay.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "numpydoc"]

html_theme = "furo"
html_title = f"kary-replay {release}"
html_copy_source = False
html_static_path = ["static"]
html_css_files = ["pages.css"]

myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # docstrings state types, with shapes and units
numpydoc_show_class_members = False  # autodoc does
# `load` in a docstring is a link where there is such a name, and code where there is none
default_role = "py:obj"
# Types in docstrings are prose ("int64 [B]"), and other projects' names have no page here.
nitpick_ignore_regex = [
    ("py:(class|obj)", ".*"),
    ("py:(meth|func|attr|exc|data)", r"(?!kary_replay\.).*"),
]

# Pages that stand outside this folder, where GitHub's readers find them, and the pages that bring
# them here.
ELSEWHERE = {
    "../CONTRIBUTING.md": "contributing.md",
    "../CHANGELOG.md": "changelog.md",
    "../bench/README.md": "measuring.md",
}


def lead_to_pages(_app: object, _name: str, source: list[str]) -> None:
    """Let links to those pages stay within the site."""
    for outside, page in ELSEWHERE.items():
        for up in ("", "../"):  # from here, and from a folder
            source[0] = source[0].replace(f"]({up}{outside}", f"]({up}{page}")


def keep_bars(
    _app: object, _what: str, _name: str, _thing: object, _options: object, lines: list[str]
) -> None:
    """Let |TD error| be an absolute value, not a substitution of reStructuredText."""
    for i, line in enumerate(lines):
        parts = re.split(r"(`[^`]*`)", line)
        lines[i] = "".join(
            part if part.startswith("`") else part.replace("|", r"\|") for part in parts
        )


def setup(app):
    """Connect what is above."""
    app.connect("source-read", lead_to_pages)
    app.connect("autodoc-process-docstring", keep_bars, priority=900)  # after numpydoc
