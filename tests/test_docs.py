"""What the documentation shows, runs: examples of docstrings, and Python blocks of the pages.

Blocks of one file run in order and share their names, as a reader would type them. Blocks in other
languages: test_docs_commands.py.
"""

import ast
import doctest
import importlib
import inspect
import re

import numpy as np
import pytest
from pages import PAGES, ROOT, blocks_of, inline_code_of, name_of

import kary_replay

PUBLIC_CLASSES = [
    "Batch",
    "Field",
    "FrameReplayBuffer",
    "FrameStackWriter",
    "NStepWriter",
    "PrioritizedReplayBuffer",
    "RateLimiter",
    "ReplayBuffer",
    "SequenceWriter",
    "SumTree",
]


def modules_with_examples():
    """Name the modules of the package, compiled ones included, whose source has examples."""
    for package, folder in (
        ("kary_replay", ROOT / "kary_replay"),
        ("kary_replay.adapters", ROOT / "adapters"),
    ):
        for path in [*folder.rglob("*.py"), *folder.rglob("*.pyx")]:
            if ">>>" in path.read_text(encoding="utf-8"):
                parts = path.relative_to(folder).with_suffix("").parts
                yield ".".join([package, *parts]).removesuffix(".__init__")


MODULES = sorted({"kary_replay.errors", *modules_with_examples()})


def documented(name):
    """Names and docstrings of a module, of its public functions and classes, and their members."""
    module = importlib.import_module(name)
    yield name, module.__doc__
    for attribute in getattr(
        module, "__all__", [one for one in vars(module) if not one.startswith("_")]
    ):
        thing = getattr(module, attribute)
        if getattr(thing, "__module__", None) != name:
            continue
        yield f"{name}.{attribute}", inspect.getdoc(thing)
        for member, value in vars(thing).items() if inspect.isclass(thing) else ():
            if not member.startswith("_") and getattr(value, "__doc__", None):
                yield f"{name}.{attribute}.{member}", inspect.getdoc(value)


def run_examples(text, name, names, path, first_line=0):
    """Run the `>>>` examples of a text; return how many there were."""
    test = doctest.DocTestParser().get_doctest(text, names, name, str(path), first_line)
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL
    report = []
    result = doctest.DocTestRunner(optionflags=flags, verbose=False).run(
        test, out=report.append, clear_globs=False
    )
    assert result.failed == 0, "".join(report)
    return len(test.examples)


def public_names():
    return {
        "np": np,
        "kr": kary_replay,
        **{name: getattr(kary_replay, name) for name in kary_replay.__all__},
    }


@pytest.mark.parametrize("module", MODULES)
def test_examples_in_docstrings(module, tmp_path, monkeypatch):
    pytest.importorskip(module, exc_type=ModuleNotFoundError)
    monkeypatch.chdir(tmp_path)  # for what they write
    n_examples = sum(
        run_examples(text, name, public_names(), module)
        for name, text in documented(module)
        if text
    )
    assert n_examples or module == "kary_replay.errors"


def test_every_public_class_shows_an_example():
    modules = {getattr(kary_replay, name).__module__ for name in PUBLIC_CLASSES}
    texts = {name: text for module in modules for name, text in documented(module)}
    for name in PUBLIC_CLASSES:
        text = texts[f"{getattr(kary_replay, name).__module__}.{name}"]
        assert name == "Batch" or ">>>" in text, name


def test_everything_public_has_a_docstring():
    for name in PUBLIC_CLASSES:
        cls = getattr(kary_replay, name)
        for member in dir(cls):
            if not member.startswith("_"):
                assert inspect.getdoc(getattr(cls, member)), f"{name}.{member}"


def run_page(page):
    """Run a page's blocks; return how many there were."""
    names = {"__name__": "__main__"}
    n_blocks = 0
    python = [
        block
        for block in blocks_of(page.read_text(encoding="utf-8"))
        if block.language in ("python", "py", "pycon")
    ]
    for n_blocks, (_, code, line) in enumerate(python, 1):  # noqa: B007
        where = f"{page.name}, line {line + 1}"
        if ">>>" in code:
            assert run_examples(code, where, names, page, line)
            continue
        exec(compile("\n" * line + code, str(page), "exec"), names)
    return n_blocks


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_blocks_of_a_page(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # for what they write
    run_page(page)


CALL = re.compile(r"kr\.[\w.]+\(.*\)")


def calls_in_text():
    """Yield the calls of the package that stand in prose and tables."""
    for page in PAGES:
        for code in inline_code_of(page.read_text(encoding="utf-8")):
            if CALL.fullmatch(code):
                yield pytest.param(code, id=f"{page.stem} {code[:40]}")


@pytest.mark.parametrize("code", list(calls_in_text()))
def test_calls_in_text_fit_what_is_called(code):
    call = ast.parse(code.replace("…", "..."), mode="eval").body
    function = eval(ast.unparse(call.func), {"kr": kary_replay})
    signature = inspect.signature(function)
    bind = signature.bind_partial if "…" in code else signature.bind
    bind(*call.args, **{keyword.arg: keyword.value for keyword in call.keywords})


def test_the_reader_of_pages_finds_what_fails(tmp_path):
    page = tmp_path / "page.md"
    fence = "```"
    page.write_text(
        f"{fence}python\nx = 1\n{fence}\ntext\n{fence}sh\nexit 1\n{fence}\n"
        f"{fence}python\n>>> x + 1\n2\n{fence}\n"
        f"1. item\n\n   {fence}python\n   y = x\n   {fence}\n"
    )
    assert run_page(page) == 3
    page.write_text(f"{fence}python\nx = 1\n\nassert x == 2\n{fence}\n")
    with pytest.raises(AssertionError):
        run_page(page)
    page.write_text(f"{fence}python\n>>> 1 + 1\n3\n{fence}\n")
    with pytest.raises(AssertionError, match="Expected"):
        run_page(page)


def test_the_readme_shows_python():
    readme = next((page for page in PAGES if name_of(page) == "README.md"), None)
    assert readme is None or any(
        block.language == "python" for block in blocks_of(readme.read_text(encoding="utf-8"))
    )
