"""What a wheel and a source distribution need is there: every module typed, every folder packed."""

import importlib
import re
from pathlib import Path

import pytest

import kary_replay
from kary_replay import cli, version

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "kary_replay"
PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
COMPILED = sorted(
    (path.parent.name, path.stem)
    for folder in ("core", "native")
    for path in (PACKAGE / folder).glob("*.pyx")
)


def test_the_package_says_that_it_is_typed():
    assert (PACKAGE / "py.typed").is_file()


@pytest.mark.parametrize(("folder", "name"), COMPILED)
def test_a_compiled_module_is_compiled_and_has_stubs(folder, name):
    module = importlib.import_module(f"kary_replay.{folder}.{name}")
    assert not module.__file__.endswith(".py")
    assert (PACKAGE / folder / f"{name}.pyi").is_file()
    assert f'"{name}"' in (ROOT / "setup.py").read_text(encoding="utf-8")


def test_there_are_no_stubs_of_nothing():
    stubs = [(path.parent.name, path.stem) for path in PACKAGE.rglob("*.pyi")]
    assert sorted(stubs) == COMPILED


def test_every_folder_of_the_package_is_packed():
    listed = set(
        re.findall(
            r'"(kary_replay[.\w]*)",', PROJECT.partition("packages = [")[2].partition("]")[0]
        )
    )
    folders = {path.parent.relative_to(ROOT) for path in PACKAGE.rglob("__init__.py")}
    folders |= {
        Path("kary_replay") / path.parent.relative_to(ROOT)
        for path in (ROOT / "adapters").rglob("__init__.py")
    }
    assert listed == {".".join(folder.parts) for folder in folders}


def test_there_is_one_version():
    assert f'version = "{version.VERSION}"' in PROJECT
    assert kary_replay.__version__ == version.VERSION
    assert version.VERSION in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_command_line_looks_for_what_its_extra_brings():
    extra = PROJECT.partition("runner = [")[2].partition("\n]")[0]
    names = {"PIL": "pillow"}
    assert all(f'"{names.get(name, name)}' in extra for name in cli.PACKAGES)
