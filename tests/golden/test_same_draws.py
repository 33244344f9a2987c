"""Draws, masses and weights are the same bits on every processor, whatever instructions it has.

`same_draws.cpp` follows buffers for thousands of batches, and prints a digest. It is compiled here
as the core is, without vector instructions, and, where there are a compiler and an emulator for it,
for ARM.
"""

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from kary_replay.core.block import BUILD

SOURCE = Path(__file__).with_name("same_draws.cpp")
HEADERS = SOURCE.parents[2] / "kary_replay" / "core"
DIGEST = "8bfa653dc1333985"
ARM_COMPILER, ARM_EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"

pytestmark = pytest.mark.skipif(
    not HEADERS.is_dir() or shutil.which("g++") is None, reason="needs the sources, and g++"
)


def digest(folder, *flags, compiler="g++", emulator=()):
    """Compile with more flags, run, and return the digest and the instructions in use."""
    program = folder / "same_draws"
    flags = [flag for flag in BUILD["flags"].split() if "sanitize" not in flag] + [*flags]
    subprocess.run(
        [compiler, *flags, f"-I{HEADERS}", SOURCE, "-o", program, "-lpthread"], check=True
    )
    run = subprocess.run([*emulator, program], check=True, capture_output=True, text=True)
    return run.stdout.split()


def has_fma():
    known = Path("/proc/cpuinfo")
    return platform.machine() == "x86_64" and known.exists() and " fma " in known.read_text()


def test_with_the_instructions_of_this_processor(tmp_path):
    assert digest(tmp_path)[0] == DIGEST


@pytest.mark.parametrize("optimization", ["-O1", "-O3"])
def test_without_vector_instructions(tmp_path, optimization):
    assert digest(tmp_path, "-DKARY_PORTABLE", optimization) == [DIGEST, "portable"]


@pytest.mark.skipif(
    shutil.which(ARM_COMPILER) is None or shutil.which(ARM_EMULATOR) is None,
    reason=f"needs {ARM_COMPILER} and {ARM_EMULATOR}",
)
def test_on_arm(tmp_path):
    found = digest(tmp_path, "-static", compiler=ARM_COMPILER, emulator=[ARM_EMULATOR])
    assert found == [DIGEST, "portable"]


@pytest.mark.skipif(not has_fma(), reason="needs an x86-64 processor with FMA")
def test_fused_products_would_be_noticed(tmp_path):
    assert digest(tmp_path, "-mfma", "-ffp-contract=fast", "-DKARY_PORTABLE")[0] != DIGEST
