"""Commands in the documentation name what exists, and quoted messages are those of the source.

Commands stand in ``sh`` blocks and in inline code: `make TARGET` must be a target, `kary-replay …`
must parse, a module must be there and know its options, an extra must exist. ``text`` blocks are
messages.
"""

import ast
import builtins
import importlib.util
import re
import shlex
from functools import cache
from unittest import mock

import pytest
from pages import PAGES, ROOT, blocks_of, inline_code_of, name_of

COMMANDS = ("make", "pip", "python", "kary-replay", "tensorboard")
PYTEST_OPTIONS = {"--benchmark-only", "--benchmark-disable"}
# Who adds the options of several modules: how they call it, and where it is.
SHARED_OPTIONS = {
    "campaign.command(": "bench/harness/campaign.py",
    "campaign.add_going_on(": "bench/harness/campaign.py",
    "convergence.add_options(": "bench/runs/convergence/__main__.py",
}


def words_of(command):
    """Return the words of a command, without variables, comments and dots that stand for more."""
    words = [word for word in shlex.split(command, comments=True) if word not in ("…", "...")]
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words.pop(0)
    return words


def check_command(command):
    """Fail unless a command names things that exist."""
    words = words_of(command)
    if not words:
        return
    assert words[0] in COMMANDS, f"{command!r}: who checks {words[0]}?"
    {
        "make": check_make,
        "pip": check_pip,
        "python": check_python,
        "kary-replay": check_command_line,
        "tensorboard": lambda rest: (
            importlib.util.find_spec("tensorboard") or pytest.fail("there is no tensorboard")
        ),
    }[words[0]](words[1:])


def check_make(words):
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    for word in words:
        assert word in targets or re.fullmatch(r"[A-Z]+=.+", word), f"make has no {word}"


def check_pip(words):
    extras = re.search(
        r"\[project.optional-dependencies\]\n(.*?)\n\n",
        (ROOT / "pyproject.toml").read_text("utf-8"),
        re.S,
    )[1]
    known = set(re.findall(r"^(\w+) = ", extras, re.M))
    assert words[0] == "install"
    for word in words[1:]:
        found = re.fullmatch(r"(\.|[a-z0-9-]+)(?:\[([\w,]+)\])?", word)
        assert found, f"pip install {word}"
        assert not found[2] or set(found[2].split(",")) <= known, f"there is no extra {found[2]}"


def check_python(words):
    if words[0] == "-m":
        name, rest = words[1], words[2:]
        if name == "kary_replay":
            return check_command_line(rest)
        spec = importlib.util.find_spec(name)
        assert spec, f"there is no module {name}"
        if name == "pytest":
            source = (ROOT / "bench" / "conftest.py").read_text(encoding="utf-8")
            assert (ROOT / rest[0]).exists(), rest[0]
        else:
            path = ROOT.joinpath(*name.split("."))
            path = path / "__main__.py" if path.is_dir() else path.with_suffix(".py")
            source = path.read_text(encoding="utf-8")
            for call, shared in SHARED_OPTIONS.items():
                if call in source:
                    source += (ROOT / shared).read_text(encoding="utf-8")
    else:
        source, rest = (ROOT / words[0]).read_text(encoding="utf-8"), words[1:]
    for word in rest:
        if word.startswith("--"):
            assert f'"{word}"' in source or word in PYTEST_OPTIONS, (
                f"{' '.join(words)}: who knows {word}?"
            )
    return None


def check_command_line(words):
    """Parse what follows `kary-replay`; words in capitals and options in brackets stand for any."""
    pytest.importorskip("tyro")
    from kary_replay import cli
    from kary_replay.algorithms import ALGORITHMS

    with mock.patch.dict(ALGORITHMS):  # for what a recipe registers
        return _check_command_line(cli, words)


def _check_command_line(cli, words):
    from kary_replay.runner.resumption import check_changeable

    words = [word for word in words if word != "[OPTIONS]"]
    if not words or words == ["--version"]:
        return
    command, *rest = words
    assert command in ("train", "play", "export", "presets"), command
    if command == "train":
        if not rest or rest == ["--help"] or (rest[0] == "--resume" and len(rest) <= 2):
            return
        if rest[0] == "--resume":
            check_changeable(cli._given(rest[2:]))
        elif not all(word.isupper() for word in rest):
            algorithm, env, *options = rest
            try:
                cli._config([algorithm, env, *(option for option in options if option != "--help")])
            except Exception as error:
                raise AssertionError(f"kary-replay {' '.join(words)}: {error}") from error
    else:
        options = {word for word in rest if word.startswith("--")}
        assert cli.main([command, "--help"]) == 0
        help_text = check_command_line.capsys.readouterr().out
        assert options <= set(re.findall(r"--[\w-]+", help_text)), options


@pytest.fixture(autouse=True)
def here(monkeypatch, capsys):
    """Commands are typed in the root of the repository."""
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(ROOT)
    monkeypatch.setattr(check_command_line, "capsys", capsys, raising=False)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_of_a_page(page):
    text = page.read_text(encoding="utf-8")
    commands = [
        line
        for block in blocks_of(text)
        if block.language == "sh"
        for line in block.code.splitlines()
    ]
    for code in inline_code_of(text):
        if re.match(r"(?:[A-Z_]+=\S+ )*(?:make|pip install|python -m|kary-replay) \S", code):
            commands.append(code)
    for command in commands:
        check_command(command)


@pytest.mark.parametrize(
    "command",
    [
        "make nonsense",
        'pip install ".[nonsense]"',
        "python -m bench.nonsense",
        "python -m bench.harness.report --nonsense",
        "kary-replay nonsense",
        "kary-replay train dqn CartPole-v1 --nonsense 3",
        "kary-replay train nonsense CartPole-v1",
        "kary-replay play DIRECTORY --nonsense",
        "rm -rf nonsense",
    ],
)
def test_commands_that_do_not_exist_are_found(command):
    with pytest.raises(AssertionError):
        check_command(command)


# ----------------------------------------------------------------------------------------- messages


def pattern_of(node):
    """Return what the strings that an expression makes look like, as a regular expression."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return re.escape(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(map(pattern_of, node.values))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return pattern_of(node.left) + pattern_of(node.right)
    return ".*?"


@cache
def messages_of_source():
    """Patterns of all longer strings of the package."""
    patterns = set()
    for path in [*(ROOT / "kary_replay").rglob("*.py*"), *(ROOT / "adapters").rglob("*.py")]:
        if path.suffix == ".py":
            trees = [ast.parse(path.read_text(encoding="utf-8"))]
        elif (
            path.suffix == ".pyx"
        ):  # the strings alone are Python; those next to each other are one
            found = re.findall(r'(?:(?<!\w)f?"[^"\n]*"\s*)+', path.read_text(encoding="utf-8"))
            trees = [ast.parse(f"({text})") for text in found]
        else:
            continue
        for tree in trees:
            patterns |= {
                pattern_of(node)
                for node in ast.walk(tree)
                if isinstance(node, (ast.Constant, ast.JoinedStr, ast.BinOp))
            }
    return [
        re.compile(pattern, re.S) for pattern in patterns if len(pattern.replace(".*?", "")) > 15
    ]


def classes_of_source():
    sources = [
        path.read_text("utf-8")
        for folder in ("kary_replay", "adapters")
        for path in (ROOT / folder).rglob("*.py")
    ]
    return {name for source in sources for name in re.findall(r"^class (\w+)", source, re.M)} | set(
        dir(builtins)
    )


def test_messages_are_those_of_the_source():
    patterns, classes = messages_of_source(), classes_of_source()
    texts = [
        block.code.rstrip("\n").replace("\n", " ") + "\n"  # long messages are wrapped
        for page in PAGES
        for block in blocks_of(page.read_text("utf-8"))
        if block.language == "text"
    ]
    assert len(texts) > 40
    for text in texts:
        kind, message = re.fullmatch(r"(?:(\w+): )?(.*)\n", text, re.S).groups()
        assert kind is None or kind in classes | {"warning"}, kind
        # as an OSError shows itself
        message = re.sub(r"^\[Errno \d+\] (.*): '.*'$", r"\1", message)
        message = re.sub(r"^\w+-\d failed: ", "", message)  # who failed is put before why
        assert any(pattern.fullmatch(message) for pattern in patterns), message


def test_messages_that_do_not_exist_are_found():
    patterns = messages_of_source()
    for message in (
        "there is no row to draw: buy some first",
        "n must be at most error, 256; got 512",
    ):
        assert not any(pattern.fullmatch(message) for pattern in patterns)
