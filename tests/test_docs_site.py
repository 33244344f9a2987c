"""The site is built without a warning, its links lead somewhere, and it shows all public names."""

import importlib
import re
import subprocess
import sys

import pytest
from pages import PAGES, ROOT, anchors_of, inline_code_of, links_of, name_of

import kary_replay

DOCS = ROOT / "docs"
PUBLIC = [
    "kary_replay",
    "kary_replay.errors",
    "kary_replay.prefetch",
    "kary_replay.shards",
    "kary_replay.adapters.sb3",
    "kary_replay.adapters.tianshou",
    "kary_replay.adapters.rllib",
    "kary_replay.algorithms",
    "kary_replay.runner",
    "kary_replay.runner.tune",
]


def test_the_site_builds_without_a_warning(tmp_path):
    for module in ("sphinx", "myst_parser", "furo", "numpydoc"):
        pytest.importorskip(module, reason=f'the site needs {module}: pip install ".[docs]"')
    for module in PUBLIC:
        pytest.importorskip(module, exc_type=ModuleNotFoundError)
    sphinx = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-n", "-q"]
    folders = ["-d", tmp_path / "trees", DOCS, tmp_path / "site"]
    built = subprocess.run([*sphinx, *folders], capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    for page in DOCS.rglob("*.md"):
        assert (tmp_path / "site" / page.relative_to(DOCS)).with_suffix(".html").is_file()
    shown = set(
        re.findall(
            r'id="(kary_replay[\w.]+)"',
            "".join(p.read_text("utf-8") for p in (tmp_path / "site/api").iterdir()),
        )
    )
    for module in PUBLIC:
        names = {f"{module}.{name}" for name in importlib.import_module(module).__all__}
        assert names - {"kary_replay.errors"} <= shown
    signature = re.search(
        r'id="kary_replay.SumTree.sample">.*?</dt>',
        (tmp_path / "site/api/buffers.html").read_text("utf-8"),
        re.S,
    )
    assert "stratified" in signature[0]  # compiled modules show their signatures


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=name_of)
def test_links_lead_somewhere(page):
    text = page.read_text(encoding="utf-8")
    for link in links_of(text):
        if re.match(r"https?://|mailto:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{link}: there is no {target}"
        assert target.is_relative_to(ROOT), link
        if anchor:
            assert anchor in anchors_of(target.read_text(encoding="utf-8")), (
                f"{link}: no such heading"
            )


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_names_in_the_text_exist(page):
    """`kr.Name`, `buffer.name(` and files of the repository, as inline code has them."""
    for code in inline_code_of(page.read_text(encoding="utf-8")):
        for name in re.findall(r"\bkr\.(\w+)", code):
            assert hasattr(kary_replay, name), code
        for name in re.findall(r"\bkr\.PrioritizedReplayBuffer\.(\w+)", code):
            assert hasattr(kary_replay.PrioritizedReplayBuffer, name), code
        if re.fullmatch(
            r"(?:tests|bench|docs|adapters|kary_replay)/(?:[\w/.]*\w\.\w+|[\w/]*)", code
        ):
            assert (ROOT / code).exists(), code
