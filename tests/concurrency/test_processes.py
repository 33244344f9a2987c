"""Short forms of stress_processes.py and kill_points.py, and proof that their checks see faults."""

import gc
import os

import kill_points
import numpy as np
import pytest
import stress_processes
from rows import ViolationError, priority

import kary_replay as kr

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="sharing needs Linux")

HANG_SECONDS = 10 * stress_processes.HANG_SECONDS

traced = pytest.mark.skipif(
    not kill_points.is_possible(), reason="this system lets nobody trace a child"
)


def mappings():
    """Memory of shared buffers that this process has open, and that somebody uses."""
    gc.collect()
    links = [os.path.join("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
    return [link for link in links if os.path.exists(link) and "kary-replay" in os.readlink(link)]


def test_processes_killed_at_random(capsys, no_shared_memory_is_left):
    """Fifty of them: nobody hangs, no row is torn, no priority stale, and nothing is left."""
    before = mappings()
    total, killed = stress_processes.run_stress(100_000, 50, HANG_SECONDS, seed=3)
    print(capsys.readouterr().out)
    assert killed == 50 and total >= 100_000
    assert mappings() == before


@traced
@pytest.mark.parametrize("kind", kill_points.TRIALS)
def test_killed_at_chosen_instructions(kind, capsys):
    killed, locked = kill_points.run(211, kind)
    print(capsys.readouterr().out)
    assert killed > (5 if kind == "buried" else 20)
    assert locked > (0 if kind in ("frames", "buried") else 4)


def test_a_violation_ends_the_program(capsys, monkeypatch):
    """This process gives rows the priorities of others, and nobody overwrites them."""
    monkeypatch.setattr(stress_processes, "ROLES", ["sampler"] * 2)
    monkeypatch.setattr(
        stress_processes, "priority", lambda number, exponent: priority(number + 1, exponent)
    )
    with pytest.raises(ViolationError, match=r"mass of another row|(ended with|did not stop:) 1"):
        stress_processes.run_stress(
            2_000,
            0,
            HANG_SECONDS,
            scenarios=[one for one in stress_processes.SCENARIOS if one.name == "many slots"],
        )


@traced
def test_what_repair_is_for():
    """A lock whose holder died is taken over by each of the calls, not only by those that check."""
    trial = kill_points.Trial()
    calls = {
        "sample": lambda buffer, handle: buffer.sample(4),
        "add": lambda buffer, handle: trial.add(1),
        "update": lambda buffer, handle: buffer.update_priorities(handle, np.ones(4)),
        "alpha": lambda buffer, handle: setattr(buffer, "alpha", 1.0),
        "tree": lambda buffer, handle: buffer.tree.set(0, 1.0),
        "pickle": lambda buffer, handle: buffer.__getstate__(),
        "attach": lambda buffer, handle: kr.PrioritizedReplayBuffer.attach(
            buffer.descriptor
        ).close(),
        "reset": lambda buffer, handle: buffer.reset(),
    }
    places = kill_points.Victim(trial.calls()["add"]).places()
    for call in calls.values():
        repaired = trial.buffer._slots.n_repaired
        handle = trial.buffer.sample(4).handle
        kill_points.Victim(trial.calls()["add"]).kill_at(places[len(places) // 5])
        call(trial.buffer, handle)
        trial.buffer.check_invariants()
        assert trial.buffer._slots.n_repaired in (repaired, repaired + 1)
        trial.fill()
