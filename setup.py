"""The extension modules and the package map; everything else is in pyproject.toml."""

import glob
import os
import sys

import numpy as np
from Cython.Build import cythonize
from setuptools import Extension, setup

# In the core no multiplication is fused with an addition, so that all processors draw alike
# (power.hpp).
# "thread" or "address": builds under a sanitizer, for `make sanitize`.
sanitizer = os.environ.get("KARY_REPLAY_SANITIZER", "")
flags = ["-std=c++17", "-O3", "-fno-math-errno", "-ffp-contract=off", "-fno-trapping-math"]
if sanitizer:
    flags += [f"-fsanitize={sanitizer}", "-g", "-O1", "-fno-omit-frame-pointer"]

cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
modules = {
    "kary_replay/core": [
        "block",
        "sum_tree",
        "slots",
        "snapshots",
        "reader",
        "frame_reader",
        "sharded_reader",
        "writer",
        "ordered",
        "windows",
    ],
    "kary_replay/native": ["program"],
}
# Products of matrices are what fused multiplication and addition is for (kernels.hpp).
own = {"kary_replay/core": [], "kary_replay/native": ["-ffp-contract=fast"]}
extensions = [
    Extension(
        f"{folder.replace('/', '.')}.{name}",
        [f"{folder}/{name}.pyx"],
        language="c++",
        include_dirs=[folder, np.get_include()],
        define_macros=[
            ("NPY_NO_DEPRECATED_API", "NPY_1_7_API_VERSION"),
            ("KARY_REPLAY_FLAGS", f'"{" ".join(flags)}"'),
        ],
        depends=sorted(glob.glob(f"{folder}/*.hpp")),
        # Python's own flags ask for debugging symbols, which take a fifth of the compiler's time.
        # GCC notes wherever it passes a vector that its older versions passed otherwise.
        extra_compile_args=[*flags, *own[folder], "-Wno-psabi", *([] if sanitizer else ["-g0"])],
        extra_link_args=["-pthread", *([f"-fsanitize={sanitizer}"] if sanitizer else [])],
    )
    for folder, names in modules.items()
    for name in names
]

setup(
    options={"build": {"parallel": cores}},
    ext_modules=cythonize(
        extensions,
        build_dir=os.environ.get("KARY_REPLAY_BUILD", "build/cython"),
        compiler_directives={"language_level": 3},
        # Its processes need fork, which Linux has had as the default up to Python 3.13.
        nthreads=cores if sys.platform == "linux" and sys.version_info < (3, 14) else 0,
        quiet=bool({"-q", "--quiet"} & {*sys.argv}),
    ),
)
