"""Builds the kernels into _build/ when their sources change; `python -m bench.ablation.build`."""

from __future__ import annotations

import importlib.util
import sysconfig
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).resolve().parent
BUILD = HERE / "_build"
SOURCES = ("kernels.pyx", "tree_kernels.hpp", "lock_kernels.hpp", "race.hpp", "update_kernels.hpp")
FLAGS = ["-std=c++17", "-O3", "-fno-math-errno"]  # those of the package: portable, no -march=native
MODULE = "kary_replay_ablation_kernels"


def _target() -> Path:
    return BUILD / f"{MODULE}{sysconfig.get_config_var('EXT_SUFFIX')}"


def build() -> Path:
    """Compiles if a source is newer than the module; returns the module's path."""
    target = _target()
    if target.exists() and all(
        target.stat().st_mtime > (HERE / source).stat().st_mtime for source in SOURCES
    ):
        return target
    from Cython.Build import cythonize
    from setuptools import Distribution, Extension

    BUILD.mkdir(exist_ok=True)
    (BUILD / ".gitignore").write_text("*\n")
    # A module's C name is its file's name: cythonize a copy that has the name of the module.
    source = BUILD / f"{MODULE}.pyx"
    source.write_text((HERE / "kernels.pyx").read_text())
    extension = Extension(
        MODULE,
        [str(source)],
        language="c++",
        include_dirs=[str(HERE)],
        extra_compile_args=FLAGS,
        extra_link_args=["-pthread"],
    )
    distribution = Distribution({"ext_modules": cythonize([extension], quiet=True, force=True)})
    command = distribution.get_command_obj("build_ext")
    command.build_lib, command.build_temp = str(BUILD), str(BUILD / "objects")
    command.ensure_finalized()
    command.run()
    return target


def load() -> ModuleType:
    """Return the compiled kernels, built first where they are missing or old."""
    spec = importlib.util.spec_from_file_location(MODULE, build())
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    print(f"built {build().name}")
