"""Learners that have a part of every batch each train what one with the whole trains."""

import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from algorithm_runs import NAMES, make, make_batch, parameters, part  # noqa: E402

from kary_replay.algorithms import Share  # noqa: E402

N_UPDATES = 100
# The sums over rows are taken in another order, which moves the last of 24 bits: measured are
# differences up to 1e-7, for parameters of 0.15 and ways of 0.03 and more. Learners with the wrong
# rows or noise end 0.008 and more apart.
TOLERANCE = 2e-6


class Averaging:
    """Means of vectors over threads."""

    def __init__(self, n):
        self.vectors, self.barrier = [None] * n, threading.Barrier(n, timeout=60)

    def of(self, index):
        def average(vector):
            self.vectors[index] = vector.clone()
            self.barrier.wait()
            mean = sum(self.vectors) / len(self.vectors)
            self.barrier.wait()
            vector.copy_(mean)

        return average


def train(run_threaded, name, n_learners, fault=None, **options):
    """Train in threads; return each learner's parameters and all errors of the last batch."""
    averaging, n_rows = Averaging(n_learners), 12 // n_learners

    shares = [
        Share(index, n_learners, averaging.of(index) if n_learners > 1 else None)
        for index in range(n_learners)
    ]
    algorithms = [make(name, share=share, **options) for share in shares]

    def learner(index):
        algorithm = algorithms[index]
        if fault:
            fault(algorithm)
        for seed in range(N_UPDATES):
            whole = make_batch(algorithm, seed=seed)
            td_error = algorithm.update(part(whole, algorithm.share.rows(n_rows)))
        return parameters(algorithm), td_error

    results = run_threaded(learner, n_learners)
    return [flat for flat, _ in results], torch.cat([td_error for _, td_error in results])


def distance(one, many):
    return max(float((one - other).abs().max()) for other in many)


@pytest.mark.parametrize("name", NAMES)
def test_learners_equal_one(name, run_threaded):
    (one,), errors = train(run_threaded, name, 1)
    for n_learners in (2, 3):
        many, others = train(run_threaded, name, n_learners, record=n_learners == 2)
        assert all(torch.equal(many[0], other) for other in many)  # of each other they are copies
        assert distance(one, many) < TOLERANCE, distance(one, many)
        np.testing.assert_allclose(errors.numpy(), others.numpy(), rtol=0, atol=10 * TOLERANCE)
    assert distance(one, [parameters(make(name))]) > 0.02  # they have gone somewhere


def test_learners_equal_one_with_clipping_and_a_distribution(run_threaded):
    options = {
        "n_atoms": 5,
        "v_min": -3.0,
        "v_max": 3.0,
        "dueling": True,
        "max_gradient_norm": 0.05,
    }
    (one,), _ = train(run_threaded, "dqn", 1, **options)
    assert distance(one, train(run_threaded, "dqn", 2, **options)[0]) < TOLERANCE


def same_noise_for_all(algorithm):
    algorithm.noise = lambda n_rows, n_columns: torch.randn(
        n_rows, n_columns, generator=algorithm.generator
    )


def the_same_rows_for_all(algorithm):
    algorithm.share = Share(0, algorithm.share.count, algorithm.share.average)


@pytest.mark.parametrize("fault", [same_noise_for_all, the_same_rows_for_all])
@pytest.mark.parametrize("name", ["td3", "sac"])
def test_a_faulty_learner_would_be_noticed(name, fault, run_threaded):
    (one,), _ = train(run_threaded, name, 1)
    assert distance(one, train(run_threaded, name, 2, fault)[0]) > 1000 * TOLERANCE


def test_noise_is_what_one_learner_would_draw():
    whole = make("sac").noise(12, 4)
    for count in (2, 3):
        parts = [
            make("sac", share=Share(index, count)).noise(12 // count, 4) for index in range(count)
        ]
        assert torch.equal(torch.cat(parts), whole)
    assert abs(float(make("sac").noise(5000, 4).std()) - 1) < 0.03
