"""Who may import whom: import-linter's contracts (pyproject.toml), and what they cannot see."""

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import kary_replay

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = [ROOT / folder for folder in ("adapters", "bench", "docs/recipes")]
BELOW_THE_CORE = {"errors", "fields", "types", "validation"}


def test_imports_keep_the_contracts():
    command = shutil.which("lint-imports", path=Path(sys.executable).parent)
    if command is None:
        pytest.skip("needs import-linter")
    done = subprocess.run([command, "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("suffix", ["pyx", "pxd", "pyi"])
def test_compiled_modules_import_what_is_below_them(suffix):
    """Contracts do not see them."""
    for path in (ROOT / "kary_replay" / "core").glob(f"*.{suffix}"):
        text = path.read_text(encoding="utf-8")
        above = set(re.findall(r"^\s*from \.\.+(\w*)", text, re.M)) - BELOW_THE_CORE
        assert not above, f"{path.name} imports {above}"


def private_uses(path):
    """Uses of the core's private names in a file that stands outside it."""
    text = path.read_text(encoding="utf-8")
    if path.suffix in (".pyx", ".pxd"):
        return []
    public = {"about", "errors", "types", "sum_tree", "prefetch", "shards"}
    public |= {"adapters", "algorithms", "runner"}
    aliases, found = set(), []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                parts = alias.name.split(".")
                if parts[0] == "kary_replay":
                    aliases.add(alias.asname or "kary_replay")
                    found += [alias.name] * (len(parts) > 1 and parts[1] not in public)
        elif (
            isinstance(node, ast.ImportFrom)
            and not node.level
            and (node.module or "").split(".")[0] == "kary_replay"
        ):
            parts = node.module.split(".")
            found += [node.module] * (len(parts) > 1 and parts[1] not in public)
            found += [
                f"{node.module}.{alias.name}" for alias in node.names if alias.name.startswith("_")
            ]
            if len(parts) == 1:
                known = set(kary_replay.__all__) | public | {"__version__"}
                found += [
                    f"kary_replay.{alias.name}" for alias in node.names if alias.name not in known
                ]
    for node in ast.walk(ast.parse(text)):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id in aliases
        ):
            found += [node.attr] * (node.attr.startswith("_") and node.attr != "__version__")
    return found


def test_adapters_and_bench_use_public_names_only():
    paths = [path for folder in OUTSIDE for path in folder.rglob("*.py")]
    found = {str(path.relative_to(ROOT)): private_uses(path) for path in paths}
    assert not {path: names for path, names in found.items() if names}


def test_only_the_ablation_compiles_against_the_core():
    for folder in OUTSIDE:
        assert folder.is_dir()
        for path in folder.rglob("*.pyx"):
            assert "ablation" in str(path.relative_to(ROOT)), f"{path} is no ablation"


def test_the_reader_of_private_names_sees_them(tmp_path):
    source = tmp_path / "adapter.py"
    source.write_text(
        "import kary_replay as kr\n"
        "from kary_replay.core.writer import Writer\n"
        "from kary_replay import _hidden, SumTree\n"
        "kr._secret(kr.SumTree)\nfrom kary_replay.types import _shape\n"
    )
    assert sorted(private_uses(source)) == [
        "_secret",
        "kary_replay._hidden",
        "kary_replay._hidden",
        "kary_replay.core.writer",
        "kary_replay.types._shape",
    ]


def test_the_public_names_are_there():
    fixed = {"Batch", "Field", "HANDLE_DTYPE", "SumTree", "errors"}
    fixed |= {"ReplayBuffer", "PrioritizedReplayBuffer"}
    assert fixed <= set(kary_replay.__all__)
    assert all(hasattr(kary_replay, name) for name in kary_replay.__all__)
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*", kary_replay.__version__)


def test_importing_the_core_imports_no_framework():
    """In a fresh interpreter, so that other tests do not matter."""
    import subprocess

    frameworks = "torch", "gymnasium", "stable_baselines3", "tianshou", "scipy"
    code = f"import sys, kary_replay; print([name for name in {frameworks} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
