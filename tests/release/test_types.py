"""Type checkers accept a user's program and find mistakes, and the stubs say what is there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mypy")

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
MISTAKE = re.compile(r"# mistake: (\S+)")
ERROR = re.compile(r"^(.+):(\d+): error: .*\[(\S+)\]$", re.M)


def run(module, *arguments):
    """Run a module of mypy on the sources, which it does not find as an editable installation."""
    environment = {**os.environ, "MYPYPATH": str(ROOT)}
    command = [sys.executable, "-m", module, *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=1000
    )


def test_mypy_accepts_a_users_program_and_finds_a_users_mistakes():
    done = run("mypy", "--strict", "--config-file=", HERE / "user.py", HERE / "mistakes.py")
    found = {(Path(path).name, int(line), code) for path, line, code in ERROR.findall(done.stdout)}
    lines = enumerate((HERE / "mistakes.py").read_text(encoding="utf-8").splitlines(), 1)
    expected = {
        ("mistakes.py", number, mark[1]) for number, line in lines if (mark := MISTAKE.search(line))
    }
    assert found == expected and len(expected) > 20, done.stdout + done.stderr


def test_the_users_program_runs():
    subprocess.run([sys.executable, "-W", "error", HERE / "user.py"], check=True, timeout=300)


def test_the_stubs_say_what_is_there():
    compiled = [
        f"kary_replay.{folder}.{path.stem}"
        for folder in ("core", "native")
        for path in sorted((ROOT / "kary_replay" / folder).glob("*.pyi"))
    ]
    done = run(
        "mypy.stubtest",
        *compiled,
        "--ignore-disjoint-bases",
        "--allowlist",
        HERE / "stubtest_allowlist.txt",
    )
    assert done.returncode == 0, done.stdout + done.stderr
