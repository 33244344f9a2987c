"""The short form of stress_saves.py, and proof that its checks see what they are there for."""

import os

import pytest
import stress_saves
from rows import ViolationError

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="sharing needs Linux")


def test_killed_during_a_save(capsys):
    assert stress_saves.run_stress(24, seed=2) >= 24
    print(capsys.readouterr().out)


def at_rest(directory):
    """A run whose one save came to its end."""
    run = stress_saves.Stress(directory, 0, False)
    buffer = stress_saves.new_buffer(0, False)
    for first in range(0, 4_000, stress_saves.BATCH):
        stress_saves.add(
            buffer, stress_saves.Rows(stress_saves.N_WORDS, stress_saves.BATCH), first, 1
        )
    run.begun.value = run.finished.value = 1
    run.digests[1] = stress_saves.digest(buffer)
    buffer.save(run.directory)
    return run, buffer


def tear_a_row(buffer):
    buffer.field_view("body")[17, -1] ^= 1


def lose_a_mass(buffer):
    buffer.tree.set(17, 0.0)


def swap_masses(buffer):
    buffer.tree.set([17, 18], buffer.tree.get([18, 17]))


def an_older_row(buffer):
    for name in ("number", "body", "tail"):
        buffer.field_view(name)[17] = buffer.field_view(name)[18]
    for part in buffer.field_view("tag").values():
        part[17] = part[18]


def draw(buffer):
    buffer.sample(1)


@pytest.mark.parametrize(
    ("fault", "what"),
    [
        (tear_a_row, "torn row"),
        (lose_a_mass, "row of mass 0"),
        (swap_masses, "mass of another row"),
        (an_older_row, "mass of another row|several moments"),
        (draw, "not what came back"),
    ],
)
def test_a_planted_fault_is_seen(fault, what, tmp_path):
    run, buffer = at_rest(tmp_path)
    run.check()
    fault(buffer)
    buffer.save(run.directory)
    with pytest.raises(ViolationError, match=what):
        run.check()


def test_leftovers_that_gather_are_seen(tmp_path):
    run, _ = at_rest(tmp_path)
    for number in range(2):
        (run.directory / f"data-{number:016x}").mkdir()
    with pytest.raises(ViolationError, match="leftovers gather"):
        run.check()


def test_the_program_reports_and_ends_with_its_status(capsys, monkeypatch):
    assert stress_saves.main(["--kills", "2"]) == 0
    assert "killed during a save, no violation" in capsys.readouterr().out
    monkeypatch.setattr(
        stress_saves, "check_masses", lambda number, mass: stress_saves.require(mass < 0, "planted")
    )
    assert stress_saves.main(["--kills", "2"]) == 1
    assert "VIOLATION: planted" in capsys.readouterr().err
