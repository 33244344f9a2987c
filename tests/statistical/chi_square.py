"""Pearson's chi-square test of counts, with a stated false-alarm rate and no dependency.

`check_counts` is the one judge of tests/statistical: what is right and every planted fault go
through it.
"""

import math

import numpy as np


def survival(statistic, n_freedom):
    """P(X > statistic), X chi-square with n_freedom degrees: the incomplete gamma function Q."""
    a, x = n_freedom / 2, statistic / 2
    if x <= 0:
        return 1.0
    scale = math.exp(-x + a * math.log(x) - math.lgamma(a))
    if x < a + 1:  # the series of P converges fast here
        term = total = 1 / a
        n = a
        while term > total * 1e-17:
            n += 1
            term *= x / n
            total += term
        return 1 - scale * total
    b = x + 1 - a  # Lentz's continued fraction of Q
    c, d = 1e300, 1 / b
    fraction = d
    for i in range(1, 10_000):
        numerator = -i * (i - a)
        b += 2
        d = 1 / (numerator * d + b)
        c = b + numerator / c
        fraction *= d * c
        if abs(d * c - 1) < 1e-15:
            break
    return scale * fraction


def check_counts(counts, expected, false_alarm):
    """Raise AssertionError, with all counts, if counts [..., cells] are implausible.

    Each row of cells is one multinomial draw with its own expected counts; rows are independent and
    their statistics add up. A cell that cannot occur must not. Expected counts below 8 would make
    the chi-square law a poor approximation, and are refused.
    """
    counts, expected = np.atleast_2d(counts), np.atleast_2d(expected)
    possible = expected > 0
    assert (expected[possible] >= 8).all(), "too few draws for this test"
    assert np.allclose(counts.sum(1), expected.sum(1), rtol=1e-9), (
        "counts and expectation have different sums"
    )
    table = f"counts\n{counts.tolist()}\nexpected\n{expected.round(2).tolist()}"
    assert not counts[~possible].any(), f"something impossible was drawn\n{table}"
    statistic = float(((counts - expected)[possible] ** 2 / expected[possible]).sum())
    n_freedom = int(possible.sum()) - len(counts)
    chance = survival(statistic, n_freedom)
    assert chance >= false_alarm, (
        f"chi-square {statistic:.1f} with {n_freedom} degrees of freedom "
        f"has chance {chance:.2g}\n{table}"
    )
