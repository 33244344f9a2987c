"""What ``import kary_replay`` costs beyond NumPy, in fresh interpreters."""

import os
import resource
import statistics
import subprocess
import sys

MAX_SECONDS = 0.060
N_PAIRS = 7
SLOW = ["asyncio", "hashlib", "multiprocessing", "socket", "subprocess", "tempfile", "unittest"]


def start(code, folder):
    """Run code in a fresh interpreter that keeps its bytecode, as an installed package does; return its processor seconds."""
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(folder)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=60)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def test_the_core_is_imported_in_60_milliseconds_beyond_numpy(tmp_path):
    """Processor time, not the clock's: of pairs that alternate, the median difference."""
    numpy_alone, both = "import numpy", "import numpy, kary_replay"
    start(both, tmp_path)  # writes the bytecode
    beyond = [start(both, tmp_path) - start(numpy_alone, tmp_path) for _ in range(N_PAIRS)]
    assert statistics.median(beyond) <= MAX_SECONDS, [round(1000 * seconds, 1) for seconds in beyond]


def test_the_core_imports_nothing_slow():
    code = f"import sys, numpy; old = set(sys.modules); import kary_replay; print(*(set({SLOW}) & set(sys.modules) - old))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not done.stdout.split()
