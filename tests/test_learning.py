"""Prioritized replay learns faster on Blind Cliffwalk (Schaul et al. 2016, section 3.1)."""

import importlib.util
from pathlib import Path
from statistics import median

import numpy as np
import pytest

PATH = Path(__file__).resolve().parents[1] / "bench/runs/learning/cliffwalk.py"
SEEDS, LIMIT = range(5), 100_000


@pytest.fixture(scope="module")
def cliffwalk():
    """The benchmark's module; it imports nothing but NumPy and kary_replay."""
    spec = importlib.util.spec_from_file_location("cliffwalk", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def updates(cliffwalk, method, n_states, **options):
    task = cliffwalk.Cliffwalk(n_states)
    return median(
        method(task, np.random.default_rng([n_states, seed]), LIMIT, **options) for seed in SEEDS
    )


@pytest.mark.parametrize("n_states", [2, 3, 5])
def test_the_memory_holds_what_all_action_sequences_meet(cliffwalk, n_states):
    """Against a simulation of every sequence."""
    task = cliffwalk.Cliffwalk(n_states)
    expected = np.zeros((n_states, 2), int)
    for sequence in range(2**n_states):
        for state in range(n_states):
            action = sequence >> state & 1
            expected[state, action] += 1
            if action != task.right[state]:
                break
    states, actions = task.memory(np.random.default_rng(0))
    counted = np.zeros_like(expected)
    np.add.at(counted, (states, actions), 1)
    np.testing.assert_array_equal(counted, expected)
    assert len(states) == 2 ** (n_states + 1) - 2


def test_the_true_values_are_those_of_value_iteration(cliffwalk):
    task = cliffwalk.Cliffwalk(6)
    learner = cliffwalk.Learner(task, np.random.default_rng(0))
    for _ in range(2000):
        for state in range(6):
            learner.update(state, 0)
            learner.update(state, 1)
    np.testing.assert_allclose(learner.values, task.truth(), atol=1e-6)
    assert learner.solved


# Measured over 10 seeds: 4.3, 6.3 and 9.2 times fewer updates, the oracle 9, 23 and 65 times.
@pytest.mark.parametrize(("n_states", "factor"), [(6, 2.5), (8, 4.0), (10, 6.0)])
def test_prioritized_needs_fewer_updates_than_uniform(cliffwalk, n_states, factor):
    uniform = updates(cliffwalk, cliffwalk.uniform, n_states)
    prioritized = updates(cliffwalk, cliffwalk.prioritized, n_states)
    oracle = updates(cliffwalk, cliffwalk.oracle, n_states)
    assert uniform >= factor * prioritized
    assert prioritized > oracle


def test_priorities_are_what_helps(cliffwalk):
    """With alpha 0 the same buffer is uniform, and no longer faster: the test above would fail."""
    uniform = updates(cliffwalk, cliffwalk.uniform, 8)
    assert uniform < 2 * updates(cliffwalk, cliffwalk.prioritized, 8, alpha=0.0)


def test_weighted_batches_have_the_gradient_of_the_whole_buffer():
    """With beta = 1; the test rejects weights that are divided by a number of each batch."""
    gradients = pytest.importorskip("bench.runs.learning.gradients")
    model = gradients.built(gradients.TASKS["cartpole"], gradients.FIRST, 0).learn(1536)
    model.replay_buffer.alpha = 0.2  # under which no weight is so rare that few batches miss it
    found = {one["kind"]: one for one in gradients.measured(model, 64, 300)}
    apart = {kind: one["distance"] / one["distance_by_chance"] for kind, one in found.items()}
    assert apart["uniform"] < 1.5 and apart["beta = 1"] < 1.5  # 0.6 and 0.3, measured
    assert apart["beta = 1 over the largest in the batch"] > 5  # 15
