"""Builds the kernels into _build/ when their sources change; `python -m bench.ablation.build`."""

from __future__ import annotations

import importlib.util
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).resolve().parent
BUILD = HERE / "_build"
FLAGS = ("-std=c++17", "-O3", "-fno-math-errno")  # those of the package: portable


@dataclass(frozen=True)
class Kernels:
    """A module: NAME.pyx, what it includes, and how it is compiled."""

    headers: tuple[str, ...]
    flags: tuple[str, ...] = FLAGS


SHARED = ("tree_kernels.hpp", "lock_kernels.hpp", "race.hpp")
MODULES = {
    "kernels": Kernels((*SHARED, "update_kernels.hpp")),
    # The limit is that of this machine, so its loops may use all that this machine has.
    "limit": Kernels((*SHARED, "limit.hpp"), (*FLAGS, "-march=native")),
}


def build(name: str) -> Path:
    """Compiles if a source is newer than the module; returns the module's path."""
    module = f"kary_replay_ablation_{name}"
    target = BUILD / f"{module}{sysconfig.get_config_var('EXT_SUFFIX')}"
    sources = [HERE / file for file in (f"{name}.pyx", "build.py", *MODULES[name].headers)]
    if target.exists() and all(
        target.stat().st_mtime > source.stat().st_mtime for source in sources
    ):
        return target
    from Cython.Build import cythonize
    from setuptools import Distribution, Extension

    BUILD.mkdir(exist_ok=True)
    (BUILD / ".gitignore").write_text("*\n")
    # A module's C name is its file's name: cythonize a copy that has the name of the module.
    source = BUILD / f"{module}.pyx"
    source.write_text((HERE / f"{name}.pyx").read_text())
    extension = Extension(
        module,
        [str(source)],
        language="c++",
        include_dirs=[str(HERE)],
        extra_compile_args=list(MODULES[name].flags),
        extra_link_args=["-pthread"],
    )
    distribution = Distribution({"ext_modules": cythonize([extension], quiet=True, force=True)})
    command = distribution.get_command_obj("build_ext")
    command.build_lib, command.build_temp = str(BUILD), str(BUILD / "objects")
    command.ensure_finalized()
    command.run()
    return target


def load(name: str = "kernels") -> ModuleType:
    """Return the compiled kernels, built first where they are missing or old."""
    path = build(name)
    spec = importlib.util.spec_from_file_location(path.name.split(".")[0], path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    for name in MODULES:
        print(f"built {build(name).name}")
