"""``python -m kary_replay``: what it shows, and what it says when sharing fails."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kary_replay import about, shared_memory
from kary_replay.version import VERSION

linux_only = pytest.mark.skipif(not shared_memory.is_supported(), reason="sharing needs Linux")


def run(*command):
    return subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, check=True, timeout=60
    ).stdout


def as_dict(text):
    return dict(line.split("  ", 1) for line in text.splitlines())


def test_every_line_has_a_name_and_a_value():
    shown = as_dict(run("-m", "kary_replay"))
    assert shown["kary-replay"].strip().startswith(VERSION)
    assert shown["numpy"].strip() == np.__version__
    assert {
        "Python",
        "compiled with",
        "system",
        "processor",
        "features",
        "powers",
        "native programs",
        "cores",
        "shared memory",
    } <= set(shown)
    assert all(value.strip() for value in shown.values())
    assert "-O3" in shown["compiled with"] or "sanitize" in shown["compiled with"]


def test_arguments_are_for_the_command_line():
    assert run("-m", "kary_replay", "--version") == f"kary-replay {VERSION}\n"


def test_it_needs_numpy_alone():
    others = "torch", "gymnasium", "stable_baselines3", "tianshou", "tyro", "rich"
    code = (
        "import sys, kary_replay.about as a; a.about(); "
        f"print([name for name in {others} if name in sys.modules])"
    )
    assert run("-c", code) == "[]\n"


def test_what_is_not_installed_is_named(monkeypatch):
    monkeypatch.setattr(about, "PACKAGES", ("numpy", "no-such-package"))
    shown = as_dict(about.about())
    assert shown["not installed"].strip() == "no-such-package"


@linux_only
def test_sharing_works():
    assert about._shared_memory() == "works"


def test_why_sharing_does_not_work(monkeypatch):
    monkeypatch.setattr(shared_memory, "is_supported", lambda: False)
    assert about._shared_memory().startswith(
        "does not work: NotImplementedError: shared buffers need Linux"
    )


@linux_only
def test_another_process_that_fails_is_quoted(monkeypatch):
    monkeypatch.setattr(about, "SECOND_PROCESS", "raise OSError('no way in')")
    assert (
        about._shared_memory()
        == "does not work: RuntimeError: another process could not add: OSError: no way in"
    )


@linux_only
def test_rows_that_do_not_arrive_are_noticed(monkeypatch):
    monkeypatch.setattr(about, "SECOND_PROCESS", about.SECOND_PROCESS.replace("[1, 2]", "[3, 4]"))
    assert "another process added 1 and 2, and [" in about._shared_memory()


@pytest.mark.parametrize(
    ("cpuinfo", "expected"),
    [
        (
            "processor\t: 0\nmodel name\t: Some CPU\nflags\t\t: fpu sse4_2 avx2\n",
            ("Some CPU", "sse4_2 avx2"),
        ),
        ("processor\t: 0\nFeatures\t: fp asimd atomics sve\n", (None, "asimd atomics sve")),
        (None, (None, "unknown")),
    ],
)
def test_the_processor(monkeypatch, cpuinfo, expected):
    def read_text(*_, **__):
        if cpuinfo is None:
            raise FileNotFoundError
        return cpuinfo

    monkeypatch.setattr(Path, "read_text", read_text)
    model, features = about._processor()
    assert model == expected[0] or (expected[0] is None and model)
    assert features == expected[1]
