"""The short form of stress.py, and proof that its checks see what they are there for."""

import faulty
import numpy as np
import pytest
import stress
from rows import (
    Rows,
    SeenSlots,
    ViolationError,
    check_at_rest,
    check_batch,
    check_masses,
    check_weights,
    priority,
    strength,
)

import kary_replay as kr

OPERATIONS = 150_000
SECONDS = 3_000.0  # against hanging: it is over after so many operations


def test_no_violation(capsys):
    n_done = stress.run_stress(OPERATIONS, SECONDS, seed=1)
    print(capsys.readouterr().out)
    assert n_done > OPERATIONS / 2


def test_the_program_reports_and_ends_with_its_status(capsys, monkeypatch):
    assert stress.main(["--operations", "500", "--scenario", "tiny"]) == 0
    assert "no violation" in capsys.readouterr().out
    monkeypatch.setattr(stress, "priority", lambda number, exponent: priority(number + 1, exponent))
    assert stress.main(["--operations", "500", "--scenario", "tiny"]) == 1
    assert "VIOLATION: mass of another row" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("fault", "name", "what"),
    [
        (faulty.AppliesStaleHandles, "tiny", "mass of another row|mass 0|I4"),
        (faulty.ChecksHandlesTooEarly, "tiny", "mass of another row|mass 0|I4"),
        (faulty.ReadsWithoutLooking, "images", "torn row"),
    ],
)
def test_a_faulty_buffer_fails_under_threads(fault, name, what, monkeypatch):
    monkeypatch.setattr(kr, "PrioritizedReplayBuffer", fault)
    scenario = next(one for one in stress.SCENARIOS if one.name == name)
    with pytest.raises(AssertionError, match=what):
        stress.Stress(scenario, seed=0).run(operations=1e9, seconds_limit=SECONDS)


def at_rest(name="small"):
    """A buffer of a scenario, filled, with no thread on it."""
    scenario = next(one for one in stress.SCENARIOS if one.name == name)
    return stress.Stress(scenario, seed=3)


def check_everything(run):
    """Check what a sampler checks, over enough batches to meet every row, and the end's checks."""
    rows, seen = run.new_rows(), SeenSlots(run.scenario.capacity)
    for _ in range(200):
        check_batch(rows, seen, run.buffer.sample(32))
    check_at_rest(rows, run.buffer, run.last_written)


MASSES_TELL = [one.name for one in stress.SCENARIOS if not one.ranked and one is not stress.FRAMES]


@pytest.mark.parametrize("name", MASSES_TELL)
def test_a_sound_buffer_passes(name):
    check_everything(at_rest(name))


def tear_words(run):
    run.buffer.field_view("body")[17, -1] ^= 1


def tear_the_last_field(run):
    run.buffer.field_view("tail")[17] += 1.0


def tear_a_nested_field(run):
    run.buffer.field_view("tag")["low"][17, 2] ^= 1


def change_the_number(run):
    run.buffer.field_view("number")[17] += 2


def apply_a_stale_update(run):
    run.buffer.tree.set(17, priority(np.array([123_456]), 2))


def halve_a_mass(run):
    run.buffer.tree.set(17, run.buffer.tree.get(17) / 16)


def lose_a_mass(run):
    run.buffer.tree.set(17, 0.0)


def lose_the_last_write(run):
    run.last_written[:, 17] = 99


@pytest.mark.parametrize(
    ("fault", "sampled"),
    [
        (tear_words, True),
        (tear_the_last_field, True),
        (tear_a_nested_field, True),
        (change_the_number, True),
        (apply_a_stale_update, True),
        (halve_a_mass, True),
        (lose_a_mass, False),
        (lose_the_last_write, False),
    ],
)
def test_a_planted_fault_is_seen(fault, sampled):
    """Faults show at the end, and those that a sampler can see also in a batch."""
    run = at_rest()
    fault(run)
    with pytest.raises((ViolationError, AssertionError)):
        check_at_rest(run.new_rows(), run.buffer, run.last_written)
    rows, seen = run.new_rows(), SeenSlots(run.scenario.capacity)
    batches = [run.buffer.sample(32) for _ in range(200)]
    violations = 0
    for batch in batches:
        try:
            check_batch(rows, seen, batch)
        except ViolationError:
            violations += 1
    assert (violations > 0) == sampled


def test_a_row_that_changes_under_its_generation_is_seen():
    run = at_rest()
    rows, seen = run.new_rows(), SeenSlots(run.scenario.capacity)
    check_batch(rows, seen, run.buffer.sample(1000))
    other = run.new_rows().make(np.arange(5_000, 5_200))
    for name in ("number", "body", "tail"):
        run.buffer.field_view(name)[:] = other[name]
    for name in ("flag", "low"):
        run.buffer.field_view("tag")[name][:] = other["tag"][name]
    batch = run.buffer.sample(32)
    rows.check_whole(batch)
    with pytest.raises(ViolationError, match="generation and row do not match"):
        seen.check(batch)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda batch: batch.handle["generation"].__iadd__(np.uint64(1)), "not published"),
        (lambda batch: batch.handle["generation"].fill(0), "not published"),
        (lambda batch: batch.handle["index"].__isub__(1), "another slot"),
        (lambda batch: batch.index.fill(200), "out of range"),
    ],
)
def test_handles_that_do_not_fit_are_seen(change, what):
    run = at_rest()
    batch = run.buffer.sample(8)
    change(batch)
    with pytest.raises(ViolationError, match=what):
        SeenSlots(run.scenario.capacity).check(batch)


def test_strengths_tell_rows_apart_and_are_exact():
    number = np.arange(100_000)
    assert len(np.unique(strength(number))) == 4096
    exponent = number % 4
    mass = priority(number, exponent)
    check_masses(number, mass)
    check_weights(number, (mass.min() / mass).astype(np.float32))
    with pytest.raises(ViolationError):
        check_masses(number, np.roll(mass, 1))
    with pytest.raises(ViolationError):
        check_weights(number[:2], np.array([1.0, 0.9], np.float32))


def test_a_short_run_ends_in_time():
    total, _ = stress.Stress(stress.SCENARIOS[1], seed=0).run(operations=1e12, seconds_limit=0.3)
    assert set(total.calls) >= {"add", "update_priorities"}


def test_rows_are_whole_when_made():
    for image in (False, True):
        rows = Rows(12, 50, image)
        made = rows.make(np.arange(50) * 7)
        Rows(12, 50, image).check_whole(made)
