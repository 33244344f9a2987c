"""What ``import kary_replay`` brings along, in a fresh interpreter."""

import importlib
import pickle
import subprocess
import sys

import pytest

import kary_replay
from kary_replay import former_names

SLOW = ["asyncio", "hashlib", "multiprocessing", "socket", "subprocess", "tempfile", "unittest"]


def test_the_core_imports_nothing_slow():
    code = (
        "import sys, numpy; old = set(sys.modules); import kary_replay; "
        f"print(*(set({SLOW}) & set(sys.modules) - old))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not done.stdout.split()


@pytest.mark.parametrize("former", sorted(former_names.FORMER))
def test_a_former_name_leads_to_the_same_module(former):
    # the package, too: of one that could not be imported, modules may be there all the same
    for name in (former.rpartition(".")[0], former_names.FORMER[former]):
        pytest.importorskip(name, exc_type=ModuleNotFoundError)
    today = importlib.import_module(former_names.FORMER[former])
    assert importlib.import_module(former) is today
    assert sys.modules[former] is today


def test_a_former_module_is_an_attribute_of_the_package():
    code = "import kary_replay as kr; print(kr.sum_tree.SumTree is kr.SumTree)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"
    with pytest.raises(AttributeError, match="no attribute 'sum_forest'"):
        kary_replay.sum_forest  # noqa: B018


def test_a_pickle_of_before_is_read():
    """Of a class that was ``kary_replay.schedules.LinearSchedule`` then."""
    schedule = kary_replay.LinearSchedule(0.4, 1.0, 100)
    now = pickle.dumps(schedule, protocol=0)
    before = now.replace(b"kary_replay.buffers.schedules", b"kary_replay.schedules")
    assert before != now
    assert pickle.loads(before)(50) == schedule(50)
