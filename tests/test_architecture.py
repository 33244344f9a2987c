"""The floors of the house: who may import whom, read off the sources.

Core modules import only from lower floors, and from outside only NumPy and the standard library; torch enters at
prefetch. What stands outside the core (adapters, bench, recipes) uses public names.
"""

import ast
import re
import sys
from pathlib import Path

import pytest

import kary_replay

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "kary_replay"
OUTSIDE = [ROOT / folder for folder in ("adapters", "bench", "docs/recipes")]

# Lower floors first; modules of one floor do not import each other.
FLOORS = [
    {"errors", "version"},
    {"validation"},
    {"types"},
    {"fields", "block"},
    {"sum_tree", "checkpoint_files", "shared_memory", "steps", "sequences"},
    {"slots"},
    {"snapshots"},
    {"reader"},
    {"storage", "schedules", "rate_limiter", "n_step", "sequence_writer"},
    {"checkpoint", "frame_storage"},
    {"replay_buffer", "transfer"},
    {"prioritized_replay_buffer"},
    {"frame_replay_buffer"},
    {"frame_stack_writer"},
    {"__init__", "prefetch"},
    {"algorithms"},
    {"runner"},
    {"cli", "about"},
    {"__main__"},
]
FLOOR = {module: number for number, modules in enumerate(FLOORS) for module in modules}
FROM_OUTSIDE = {"numpy", "cpython", "libc", "libcpp", "cython"} | set(sys.stdlib_module_names)
PEOPLE = {"tyro", "rich", "matplotlib", "imageio", "PIL"}  # what shows things to people
FRAMEWORKS = {  # what else a module, or a folder of modules, may import
    "transfer": {"torch"},
    "prefetch": {"torch"},
    "algorithms": {"torch"},
    "runner": {"torch", "gymnasium", "stable_baselines3", *PEOPLE},
    "cli": PEOPLE,
}

CYTHON_IMPORT = re.compile(r"^\s*(?:from\s+(\S+)\s+)?c?import\s+(.+)$")
SOURCES = sorted(path for suffix in ("py", "pyx", "pxd", "pyi") for path in PACKAGE.rglob(f"*.{suffix}"))


def imports_of(path):
    """Pairs (module, names) of every import in a file, relative ones with their leading dots."""
    text = path.read_text(encoding="utf-8")
    if path.suffix in (".py", ".pyi"):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                yield from ((alias.name, ()) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield "." * node.level + (node.module or ""), tuple(alias.name for alias in node.names)
        return
    text = re.sub(r'"""[\s\S]*?"""', "", text)  # docstrings have examples
    text = re.sub(r"\([^()]*\)", lambda found: found.group().replace("\n", " "), text)
    for line in text.splitlines():
        found = CYTHON_IMPORT.match(line.split("#")[0].rstrip())
        if found:
            module, names = found.groups()
            names = tuple(re.split(r"\s+as\s+", name.strip())[0] for name in names.strip("() ").split(",") if name.strip())
            yield from [(module, names)] if module else [(name, ()) for name in names]


def module_of(path):
    """The module that stands on a floor: a file of the package, or the folder at its top that a file lies in."""
    parts = path.relative_to(PACKAGE).parts if path.is_relative_to(PACKAGE) else (path.name,)
    return parts[0] if len(parts) > 1 else path.stem


def modules_imported(path):
    """Modules of our own package that a file imports, by their names in it; and top names from outside."""
    depth = len(path.relative_to(PACKAGE).parts) if path.is_relative_to(PACKAGE) else 1
    own, outside = set(), set()
    for module, names in imports_of(path):
        if module.startswith(".") and len(module) - len(module.lstrip(".")) < depth:
            own.add(module_of(path))
        elif module.startswith(".") and not module.strip("."):
            own |= {name if name in FLOOR else "__init__" for name in names}
        elif module.startswith("."):
            own.add(module.strip(".").split(".")[0])
        elif module.split(".")[0] == "kary_replay":
            own.add([*module.split("."), "__init__"][1])
        else:
            outside.add(module.split(".")[0])
    return own, outside


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_run_one_way(path):
    module = module_of(path)
    assert module in FLOOR, f"{path.name} has no floor in {Path(__file__).name}"
    own, outside = modules_imported(path)
    own.discard(module)  # a .pyx and its .pxd
    upward = {other for other in own if FLOOR.get(other, len(FLOORS)) >= FLOOR[module]}
    assert not upward, f"{path.name} imports {upward} from its own floor or above"
    outside -= FROM_OUTSIDE | FRAMEWORKS.get(module, set())
    assert not outside, f"{path.name} imports {outside}: the core needs NumPy only"


def test_the_reader_of_imports_sees_them(tmp_path):
    """The check is worth nothing if the regular expressions see nothing."""
    source = tmp_path / "storage.pyx"
    source.write_text(
        '"""from torch import nothing"""\nfrom libc.math cimport pow, sqrt\nimport torch, os as system\n'
        "from .block cimport (\n    Block, Header,\n)\nfrom . import replay_buffer\ncimport numpy as cnp\n"
    )
    assert modules_imported(source) == ({"block", "replay_buffer"}, {"libc", "torch", "os", "numpy"})
    module = tmp_path / "errors.py"
    module.write_text(
        "import numpy as np\nfrom .types import Field\nfrom kary_replay.storage import Storage\ndef f():\n    import gym\n"
    )
    assert modules_imported(module) == ({"types", "storage"}, {"numpy", "gym"})
    assert {"block", "sum_tree"} <= modules_imported(PACKAGE / "storage.pyx")[0]


def private_uses(path):
    """Uses of the core's private names in a file that stands outside it."""
    text = path.read_text(encoding="utf-8")
    if path.suffix in (".pyx", ".pxd"):
        return []
    public = {"about", "errors", "types", "sum_tree", "prefetch", "adapters", "algorithms", "runner"}
    aliases, found = set(), []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                parts = alias.name.split(".")
                if parts[0] == "kary_replay":
                    aliases.add(alias.asname or "kary_replay")
                    found += [alias.name] * (len(parts) > 1 and parts[1] not in public)
        elif isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").split(".")[0] == "kary_replay":
            parts = node.module.split(".")
            found += [node.module] * (len(parts) > 1 and parts[1] not in public)
            found += [f"{node.module}.{alias.name}" for alias in node.names if alias.name.startswith("_")]
            if len(parts) == 1:
                known = set(kary_replay.__all__) | public | {"__version__"}
                found += [f"kary_replay.{alias.name}" for alias in node.names if alias.name not in known]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in aliases:
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
        "import kary_replay as kr\nfrom kary_replay.storage import Storage\nfrom kary_replay import _hidden, SumTree\n"
        "kr._secret(kr.SumTree)\nfrom kary_replay.types import _shape\n"
    )
    assert sorted(private_uses(source)) == [
        "_secret",
        "kary_replay._hidden",
        "kary_replay._hidden",
        "kary_replay.storage",
        "kary_replay.types._shape",
    ]


def test_the_public_names_are_there():
    fixed = {"Batch", "Field", "HANDLE_DTYPE", "PrioritizedReplayBuffer", "ReplayBuffer", "SumTree", "errors"}
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
