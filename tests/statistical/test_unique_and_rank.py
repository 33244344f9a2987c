"""Draws without replacement and masses by rank, by chi-square at a stated false-alarm rate.

Each check may fail a correct program with probability FALSE_ALARM; there are fewer than 30 of them.
Seeds are fixed.
"""

import copy
import itertools

import numpy as np
import pytest
from chi_square import check_counts
from shards import sharded

import kary_replay as kr

FALSE_ALARM = 1e-6 / 30
FIELDS = {"number": kr.Field((), "int64")}
N_BATCHES = 60_000
EVEN = np.array([3.0, 1.0, 4.0, 2.0, 6.0])
# once both large ones are in the batch, the rest is 1e-8 of the mass
SKEWED = np.array([1e9, 2.0, 1e9, 3.0, 4.0])


def buffer_of(masses, **options):
    options = {"alpha": 1.0, "uniform_share": 0.0, "seed": 7, **options}
    buffer = kr.PrioritizedReplayBuffer(len(masses), FIELDS, **options)
    buffer.add(number=np.arange(len(masses)), priority=masses)
    return buffer


def in_succession(masses, batch_size):
    """The probability of every ordered batch, each row drawn from those that are left."""
    chances = {}
    for batch in itertools.permutations(range(len(masses)), batch_size):
        chance, left = 1.0, masses.sum()
        for row in batch:
            chance *= masses[row] / left
            left -= masses[row]
        chances[batch] = chance
    return chances


def judge_batches(batches, masses):
    """Check ordered batches [N, B]."""
    judge(batches, in_succession(masses, batches.shape[1]))


def judge_sets(batches, masses):
    """Check batches [N, B], whatever the order of their rows."""
    chances = {}
    for batch, chance in in_succession(masses, batches.shape[1]).items():
        found = tuple(sorted(batch))
        chances[found] = chances.get(found, 0.0) + chance
    judge(np.sort(batches, axis=1), chances)


def judge(batches, chances):
    """Check batches [N, B]; what is due less than ten times is counted together."""
    found = dict.fromkeys(chances, 0)
    for batch in map(tuple, batches.tolist()):
        assert batch in found, f"a row came twice, or is none: {batch}"
        found[batch] += 1
    due = np.array(list(chances.values())) * len(batches)
    counts = np.array(list(found.values()))
    often = due >= 10
    assert counts[~often].sum() <= 10 + 3 * due[~often].sum()
    rest = [due[~often].sum()] if due[~often].sum() >= 8 else []
    rest_counts = [counts[~often].sum()] if rest else []
    expected = np.concatenate([due[often], rest])
    observed = np.concatenate([counts[often], rest_counts])
    check_counts(observed, expected * observed.sum() / expected.sum(), FALSE_ALARM)


@pytest.mark.parametrize("share", [0.0, 0.5])
@pytest.mark.parametrize(("masses", "batch_size"), [(EVEN, 3), (EVEN, 5), (SKEWED, 3), (SKEWED, 4)])
def test_without_replacement(masses, batch_size, share):
    buffer = buffer_of(masses, uniform_share=share)
    batches = np.stack([buffer.sample(batch_size, unique=True).number for _ in range(N_BATCHES)])
    judge_batches(batches, share / len(masses) + (1 - share) * masses / masses.sum())


@pytest.mark.parametrize("are_far", [[False, False], [False, True]])
@pytest.mark.parametrize(
    ("masses", "batch_size", "share"), [(EVEN, 3, 0.0), (EVEN, 3, 0.5), (SKEWED, 3, 0.5)]
)
def test_without_replacement_over_shards(masses, batch_size, share, are_far):
    buffer, _ = sharded([masses[:2], masses[2:]], are_far, uniform_share=share)
    n = N_BATCHES // (20 if any(are_far) else 3)
    batches = np.stack([buffer.sample(batch_size, unique=True).number for _ in range(n)])
    judge_sets(batches, share / len(masses) + (1 - share) * masses / masses.sum())


def test_a_heavy_row_leaves_draws_among_all_rows_alike():
    buffer, _ = sharded([np.append(1e12, np.ones(99))], uniform_share=0.5)
    for _ in range(20):
        assert len(set(buffer.sample(50, unique=True).number)) == 50


def of_the_same_kind(rng, masses):
    """Planted: what comes twice is drawn anew of its kind, by mass or among all rows alike."""
    batch = []
    for is_alike in rng.random(3) < 0.5:
        chances = np.full(len(masses), 1 / len(masses)) if is_alike else masses / masses.sum()
        row = rng.choice(len(masses), p=chances)
        while row in batch:
            row = rng.choice(len(masses), p=chances)
        batch.append(row)
    return batch


def test_rejects_draws_of_the_same_kind_without_replacement(rng):
    masses = np.array([30.0, 1.0, 4.0, 2.0, 1.0])
    batches = np.stack([of_the_same_kind(rng, masses) for _ in range(20_000)])
    with pytest.raises(AssertionError, match="chi-square"):
        judge_sets(batches, 0.5 / len(masses) + 0.5 * masses / masses.sum())


def test_uniform_without_replacement():
    buffer = kr.ReplayBuffer(6, FIELDS, seed=1)
    buffer.add(number=np.arange(5))
    judge_batches(
        np.stack([buffer.sample(3, unique=True).number for _ in range(N_BATCHES)]), np.ones(5)
    )


def rows_of_one_draw(rng, masses):
    """Planted: the batch's rows in the order of the tree, not in that of the draws."""
    return np.sort(rng.choice(len(masses), 3, replace=False, p=masses / masses.sum()))


def ignoring_what_is_gone(rng, masses):
    """Planted: after a row that is in the batch, its neighbour is taken."""
    batch = []
    for row in rng.choice(len(masses), 3, p=masses / masses.sum()):
        while row in batch:
            row = (row + 1) % len(masses)
        batch.append(row)
    return batch


def uniformly(rng, masses):
    """Planted: all rows alike."""
    return rng.permutation(len(masses))[:3]


@pytest.mark.parametrize("fault", [rows_of_one_draw, ignoring_what_is_gone, uniformly])
def test_rejects_other_draws_without_replacement(fault, rng):
    with pytest.raises(AssertionError, match="chi-square"):
        judge_batches(np.stack([fault(rng, EVEN) for _ in range(N_BATCHES)]), EVEN)


def test_more_unique_rows_than_there_are():
    buffer = buffer_of(EVEN)
    with pytest.raises(ValueError, match="batch_size must be at most the number of rows"):
        buffer.sample(6, unique=True)
    buffer.tree.set(0, 0.0)
    with pytest.raises(ValueError, match="batch_size must be at most the number of rows"):
        buffer.sample(5, unique=True)
    assert sorted(buffer.sample(4, unique=True).number) == [1, 2, 3, 4]


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("n", [1, 128, 129, 1000])
def test_large_unique_batches(n, share):
    buffer = kr.PrioritizedReplayBuffer(1000, FIELDS, seed=1, uniform_share=share)
    buffer.add(number=np.arange(1000), priority=np.linspace(0.1, 9, 1000))
    batch = buffer.sample(n, unique=True)
    assert len(set(batch.index.tolist())) == n
    assert share > 0 or batch.importance_weight.max() == 1


# ------------------------------------------------------------------------------------------ by rank

PRIORITIES = np.array([0.5, 7.0, 7.0, 0.01, 3.0, 1e6, 2.0, 0.3, 5.0, 1.0])


def by_rank(priorities, alpha):
    """1 / rank ** alpha; of equal priorities, the lower slot ranks first."""
    rank = np.empty(len(priorities))
    rank[np.lexsort((np.arange(len(priorities)), -priorities))] = np.arange(1, len(priorities) + 1)
    return rank**-alpha


def ranked(alpha=0.7, n=10, **options):
    return kr.PrioritizedReplayBuffer(
        n, FIELDS, alpha=alpha, prioritization="rank", uniform_share=0.0, seed=5, **options
    )


def judge_ranks(numbers, priorities, alpha):
    share = by_rank(priorities, alpha)
    check_counts(
        np.bincount(numbers, minlength=len(priorities)),
        len(numbers) * share / share.sum(),
        FALSE_ALARM,
    )


@pytest.mark.parametrize("alpha", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("stratified", [True, False])
def test_draws_follow_the_ranks(alpha, stratified):
    buffer = ranked(alpha)
    buffer.add(number=np.arange(10), priority=PRIORITIES)
    # places of a batch are not alike; over all of them, each row comes as often as it is due
    if stratified:
        numbers = np.concatenate([buffer.sample(1, stratified=True).number for _ in range(40_000)])
    else:
        numbers = np.concatenate([buffer.sample(100, stratified=False).number for _ in range(400)])
    judge_ranks(numbers, PRIORITIES, alpha)


@pytest.mark.parametrize(
    "share",
    [PRIORITIES**0.7, np.ones(10), by_rank(-PRIORITIES, 0.7), np.roll(by_rank(PRIORITIES, 0.7), 1)],
)
def test_rejects_other_shares(share, rng):
    with pytest.raises(AssertionError, match=r"chi-square|impossible"):
        judge_ranks(rng.choice(10, 40_000, p=share / share.sum()), PRIORITIES, 0.7)


def test_masses_are_exact_when_ranked(rng):
    buffer = ranked(alpha=0.6, n=500)
    buffer.add(number=np.arange(500))
    priorities = np.full(500, 1.0)
    for _ in range(40):
        batch = buffer.sample(64, unique=True)
        errors = rng.lognormal(size=64)
        buffer.update_priorities(batch.handle, errors)
        priorities[batch.index] = errors + buffer.priority_epsilon
        # In between, a mass is that of about the right rank.
        mass = buffer.tree.get(batch.index)
        assert (mass > 0).all() and (mass <= 1).all()
        buffer.check_invariants()
    buffer.rank()
    np.testing.assert_allclose(
        buffer.tree.get(np.arange(500)), by_rank(priorities, 0.6), rtol=1e-12
    )
    buffer.alpha = 0.9
    np.testing.assert_allclose(
        buffer.tree.get(np.arange(500)), by_rank(priorities, 0.9), rtol=1e-12
    )


def test_a_new_priority_gets_about_its_rank(rng):
    buffer = ranked(alpha=1.0, n=20_000)
    priorities = rng.lognormal(size=20_000)
    buffer.add(number=np.arange(20_000), priority=priorities)
    buffer.rank()
    chosen = rng.choice(20_000, 200, replace=False)
    handle = np.zeros(200, kr.HANDLE_DTYPE)
    handle["index"], handle["generation"] = chosen, 2
    new = rng.lognormal(size=200)
    assert buffer.update_priorities(handle, new - buffer.priority_epsilon) == 200
    rank = 1 / buffer.tree.get(chosen)
    right = np.array([(priorities > p).sum() + 1 for p in new])
    assert (np.abs(rank - right) <= 1 + 0.03 * right).all()


def test_equal_priorities_share_their_ranks():
    buffer = ranked(alpha=1.0, n=1000)
    buffer.add(number=np.arange(1000), priority=np.where(np.arange(1000) < 100, 5.0, 1.0))
    buffer.rank()
    total, top = buffer.total_mass, (1 / np.arange(1, 101)).sum()
    handle = np.zeros(400, kr.HANDLE_DTYPE)
    handle["index"], handle["generation"] = np.arange(600, 1000), 2
    epsilon = buffer.priority_epsilon
    assert buffer.update_priorities(handle, np.full(400, 1.0 - epsilon)) == 400  # as they were
    np.testing.assert_allclose(buffer.tree.get(handle["index"]), (total - top) / 900, rtol=0.025)
    handle["index"] = np.arange(400)
    assert buffer.update_priorities(handle[:100], np.full(100, 5.0 - epsilon)) == 100
    np.testing.assert_allclose(buffer.tree.get(np.arange(100)).sum(), top)
    index = buffer.add(number=np.arange(300))  # new rows come in at the top, one after the other
    assert (np.diff(buffer.tree.get(index)) < 0).all() and buffer.tree.get(index[0]) < 0.01
    assert buffer.total_mass < 2 * total


def test_rank_buffers_are_restored(tmp_path):
    buffer = ranked(alpha=0.8)
    buffer.add(number=np.arange(10), priority=PRIORITIES)
    buffer.update_priorities(buffer.sample(4).handle, [0.1, 0.2, 0.3, 0.4])
    buffer.save(tmp_path / "saved")
    others = [copy.deepcopy(buffer), kr.PrioritizedReplayBuffer.load(tmp_path / "saved")]
    for other in others:
        assert other.prioritization == "rank"
    for one in (buffer, *others):
        batch = one.sample(8)
        one.update_priorities(batch.handle, np.arange(8.0))
        one.rank()
    drawn = buffer.sample(8).index
    for other in others:
        np.testing.assert_array_equal(other.tree.get(np.arange(10)), buffer.tree.get(np.arange(10)))
        assert (other.sample(8).index == drawn).all()
    shared = ranked(shared=True)
    shared.add(number=np.arange(10), priority=PRIORITIES)
    attached = kr.PrioritizedReplayBuffer.attach(shared.descriptor)
    assert attached.prioritization == "rank" and attached.max_priority == 1e6
    attached.rank()
    shared.reset()
    shared.add(number=np.arange(2), priority=[1.0, 9.0])
    np.testing.assert_allclose(attached.tree.get([0, 1]), [0.5**0.7, 1.0])


def test_the_kind_of_prioritization_is_checked():
    with pytest.raises(
        ValueError, match="prioritization must be 'proportional' or 'rank', got 'ranks'"
    ):
        kr.PrioritizedReplayBuffer(5, FIELDS, prioritization="ranks")
    assert kr.PrioritizedReplayBuffer(5, FIELDS).prioritization == "proportional"
    kr.PrioritizedReplayBuffer(5, FIELDS).rank()
