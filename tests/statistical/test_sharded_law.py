"""Sharded draws follow the masses of all shards, at rest and while others change them.

Checks at rest are by chi-square, as in test_sampling.py. Under way, every batch is compared with
what the rows' probabilities at that moment make its expectation: the mean of the differences has to
be within four standard errors of 0, which a right program misses once in 16,000 checks. Seeds are
fixed, and planted faults have to be found by the same checks.
"""

from __future__ import annotations

import numpy as np
import pytest
from chi_square import survival
from shards import Deceived, add_rows, sharded

FALSE_ALARM = 1e-6 / 50
SIZES = [1, 9, 0, 14]
BATCH_SIZE = 8
N_BATCHES = 20_000


def masses(rng: np.random.Generator) -> list[np.ndarray]:
    return [rng.gamma(2.0, size=n) + 0.05 for n in SIZES]


def expected_shares(mass: np.ndarray, stratified: bool) -> np.ndarray:
    """How likely each row is at each place of a batch: [B, rows]."""
    share = mass / mass.sum()
    if not stratified:
        return np.tile(share, (BATCH_SIZE, 1))
    ends = np.cumsum(share)
    strata = np.arange(BATCH_SIZE + 1)[:, None] / BATCH_SIZE
    overlap = np.minimum(ends, strata[1:]) - np.maximum(ends - share, strata[:-1])
    return np.maximum(overlap, 0) * BATCH_SIZE


def chance(counts: np.ndarray, share: np.ndarray) -> float:
    """How likely counts are to be as far from their expectation; rare rows are taken together."""
    due = share * counts.sum()
    if counts[due == 0].any():
        return 0.0
    rare = due < 5
    counts = np.append(counts[~rare], counts[rare].sum())
    due = np.append(due[~rare], due[rare].sum())
    counts, due = counts[due > 0], due[due > 0]
    return float(survival(((counts - due) ** 2 / due).sum(), len(due) - 1))


def least_chance(drawn: np.ndarray, mass: np.ndarray, stratified: bool) -> float:
    """The least chance of the rows at any place, and of the pairs at any two neighbours."""
    share = expected_shares(mass, stratified)
    n = len(mass)
    chances = [
        chance(np.bincount(drawn[:, place], minlength=n), share[place])
        for place in range(BATCH_SIZE)
    ]
    for place in range(BATCH_SIZE - 1):
        pairs = drawn[:, place] * n + drawn[:, place + 1]
        joint = np.outer(share[place], share[place + 1]).ravel()
        chances.append(chance(np.bincount(pairs, minlength=n * n), joint))
    return min(chances)


# rejection draws anew among all strata: places are not theirs any more
@pytest.mark.parametrize(
    ("stratified", "exact"), [(True, None), (False, None), (False, "rejection")]
)
@pytest.mark.parametrize("are_far", [[False] * 4, [True, False, True, True]])
def test_rows_and_pairs_at_rest(
    stratified: bool, are_far: list[bool], exact: str | None, rng: np.random.Generator
) -> None:
    mass = masses(rng)
    buffer, _ = sharded(mass, are_far, exact=exact)
    n_batches = N_BATCHES // (10 if any(are_far) else 1)
    drawn = np.stack(
        [buffer.sample(BATCH_SIZE, stratified=stratified).number for _ in range(n_batches)]
    )
    assert least_chance(drawn, np.concatenate(mass), stratified) > FALSE_ALARM


@pytest.mark.parametrize("share", [0.3, 1.0])
def test_rows_with_a_uniform_share(share: float, rng: np.random.Generator) -> None:
    mass = np.concatenate(masses(rng))
    buffer, _ = sharded(masses(np.random.default_rng(1)), None, uniform_share=share)
    mass = np.concatenate(masses(np.random.default_rng(1)))
    expected = (1 - share) * mass / mass.sum() + share / len(mass)
    for stratified in (True, False):
        drawn = [buffer.sample(64, stratified=stratified).number for _ in range(5000)]
        counts = np.bincount(np.concatenate(drawn), minlength=len(mass))
        assert chance(counts, expected) > FALSE_ALARM / (1 if not stratified else 1e3)


def test_equal_shares_are_found(rng: np.random.Generator) -> None:
    """As each of several servers drawing an equal part of every batch would."""
    mass = masses(rng)
    buffer, _ = sharded(mass, None)
    Deceived(buffer, age=0, equal=True)
    drawn = np.stack([buffer.sample(BATCH_SIZE, stratified=False).number for _ in range(5000)])
    assert least_chance(drawn, np.concatenate(mass), False) < FALSE_ALARM


def test_a_shard_off_by_one_is_found(rng: np.random.Generator) -> None:
    mass = masses(rng)
    right, shards = sharded(mass, [True] * 4)
    services = [shard.transport._service for shard in right._shards]
    for s, shard in enumerate(right._shards):
        shard.transport._service = services[(s + 1) % 4 if len(shards[(s + 1) % 4]) else s]
    drawn = np.stack([right.sample(BATCH_SIZE, stratified=False).number for _ in range(2000)])
    assert least_chance(drawn, np.concatenate(mass), False) < FALSE_ALARM


# ------------------------------------------------------------------------------------- under way


FUNCTIONS = {
    "how many": lambda number, mass: np.ones(len(number)),
    "a feature": lambda number, mass: np.cos(number * 0.37),
    "the masses": lambda number, mass: mass,
}


def state_of(shards: list) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of all rows, and their masses."""
    slots = [shard._slots.by_age()[0] for shard in shards]
    number = [shard.field_view("number")[at] for shard, at in zip(shards, slots, strict=True)]
    mass = [shard.tree.get(at) for shard, at in zip(shards, slots, strict=True)]
    return np.concatenate(number), np.concatenate(mass)


def churn(rng: np.random.Generator, shards: list, first: int) -> int:
    """Change some priorities, of other shards in each call, and add rows to one shard."""
    s = int(rng.integers(len(shards)))
    shard = shards[s]
    slots = shard._slots.by_age()[0]
    some = rng.choice(slots, 20)
    error = rng.gamma(0.7, size=20) * np.exp(rng.normal()) * (1 + 8 * (s == first // 40 % 4))
    shard.update_priorities(shard.take(some).handle, error)
    if rng.random() < 0.5:
        add_rows(shards[(s + 1) % len(shards)], np.arange(first, first + 3))
    return first + 3


def z_scores(age: int, exact: str | None, weigh: str, n_batches: int = 3000) -> dict[str, float]:
    """Draw while others change masses; return how many standard errors estimates are off.

    ``weigh``: "relative" divides by the probabilities that handles have, "masses" by those that
    one tree would have, "none" compares with the law of one tree without weights.
    """
    rng = np.random.default_rng(age)
    sizes = [40, 10, 80, 30]
    buffer, shards = sharded([rng.gamma(0.7, size=n) + 1e-3 for n in sizes], None, exact=exact)
    deceived = Deceived(buffer, age)
    differences: dict[str, list[float]] = {name: [] for name in FUNCTIONS}
    first = sum(sizes)
    for _ in range(n_batches):
        first = churn(rng, shards, first)
        number, mass = state_of(shards)
        batch = buffer.sample(16, stratified=False)
        n_rows = deceived.known()[1].sum()
        drawn_mass = mass[[int(np.flatnonzero(number == one)[0]) for one in batch.number]]
        probability = drawn_mass / mass.sum()
        if weigh == "relative":
            probability = batch.handle["relative"] / n_rows
        for name, function in FUNCTIONS.items():
            value, drawn = function(number, mass), function(batch.number, drawn_mass)
            if weigh == "none":
                difference = drawn.mean() - (value * mass).sum() / mass.sum()
            else:
                difference = (drawn / probability).mean() - value.sum()
            differences[name].append(difference / np.abs(value).sum())
    errors = {name: np.std(one) / np.sqrt(len(one)) for name, one in differences.items()}
    return {
        name: float(abs(np.mean(one)) / max(errors[name], 1e-15))
        for name, one in differences.items()
    }


@pytest.mark.parametrize("age", [0, 8, 64])
def test_weighted_sums_are_right_however_old_totals_are(age: int) -> None:
    assert max(z_scores(age, None, "relative").values()) < 4


def test_old_totals_without_correction_are_found() -> None:
    assert max(z_scores(64, None, "masses").values()) > 6


@pytest.mark.parametrize("age", [0, 8])
def test_accepted_rows_have_the_law_of_one_tree(age: int) -> None:
    assert max(z_scores(age, "rejection", "none").values()) < 4


def test_old_totals_without_rejection_are_found() -> None:
    assert max(z_scores(64, None, "none").values()) > 6


@pytest.mark.parametrize("is_far", [False, True])
def test_a_shard_that_grows_is_noticed_where_no_point_fell(is_far: bool) -> None:
    """It had a thousandth of all mass, then half of it: no point falls there, and none is drawn."""
    buffer, shards = sharded([[1000.0], [1.0]], [False, is_far], exact="rejection")
    n_drawn = 0
    for _ in range(500):
        shards[1].tree.set([0], [1.0])
        buffer.sample(1)
        buffer.look()
        buffer._look_around()
        if is_far:  # an answer comes as soon as it is asked for
            shards[1].tree.set([0], [1000.0])
        request = buffer._planned([8], False, False)
        shards[1].tree.set([0], [1000.0])
        n_drawn += int(buffer._receive(request, None)[0].number.sum())
    expected = 8 * 500 * 0.5
    assert abs(n_drawn - expected) < 6 * np.sqrt(expected / 2)
