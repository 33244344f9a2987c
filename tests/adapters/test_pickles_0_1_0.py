"""Pickles of the adapters' buffers that 0.1.0 wrote go on as they did there.

Each buffer holds ten transitions and has had three updates of its priorities. `expected.json` has
what 0.1.0 drew from it next, by its own random stream, and the weights of these draws.
"""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).parent / "version_0_1_0"
EXPECTED = json.loads((HERE / "expected.json").read_text())


def load(name):
    return pickle.loads((HERE / f"{name}.pickle").read_bytes())


@pytest.mark.parametrize("name", ["array", "dict", "n_step", "optimized"])
def test_sb3_buffers_always_prioritize_by_td_error(name):
    torch = pytest.importorskip("torch")
    pytest.importorskip("stable_baselines3")
    buffer, expected = load(name), EXPECTED[name]
    assert (buffer.uniform_share, buffer.prioritize_by, buffer.alpha) == (0.0, "td_error", 0.6)
    masses = buffer.native.tree.get(np.arange(10))
    np.testing.assert_allclose(masses, expected["masses"], rtol=1e-15)
    before = np.random.get_state()[1].copy()
    samples = buffer.sample(6)
    np.testing.assert_array_equal(np.random.get_state()[1], before)
    batch = samples.rewards.batch
    assert batch.handle["index"].tolist() == expected["slots"]
    np.testing.assert_allclose(batch.importance_weight.ravel(), expected["weights"], rtol=1e-6)
    torch.nn.functional.smooth_l1_loss(torch.full((6, 1), 99.0), samples.rewards)
    assert buffer.native.max_priority > 80


@pytest.mark.parametrize("name", ["tianshou", "tianshou_vector"])
def test_tianshous_buffers_always_prioritize(name):
    pytest.importorskip("tianshou")
    buffer, expected = load(name), EXPECTED[name]
    assert buffer.uniform_share == 0.0
    batch, index = buffer.sample(6)
    assert index.tolist() == expected["slots"]
    np.testing.assert_allclose(batch.weight, expected["weights"], rtol=1e-6)
