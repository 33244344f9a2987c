"""Draws follow the masses, by chi-square at a stated false-alarm rate; planted faults are caught.

Each check may fail a correct program with probability FALSE_ALARM, and the file makes fewer than 50
checks that a correct program has to pass: below 1e-6 over the file. Seeds are fixed. What is
counted is which leaf came at which place of the batch: a stratified draw owes each place its own
stratum's leaves, in proportion to their overlap with it, an independent draw owes every place the
same distribution.
"""

import numpy as np
import pytest
from chi_square import check_counts, survival
from reference import ReferenceTree

import kary_replay as kr

FALSE_ALARM = 1e-6 / 50
SEED = 1511_05952
ARITIES = (2, 4, 8, 16, 32, 64)
BATCH_SIZE = 16
N_BATCHES = 3000

# Whole numbers that sum to 160, so that each of 16 strata is 10 wide and every overlap with one is
# at least 1.
MASSES = np.array(
    [
        1,
        2,
        3,
        5,
        8,
        0,
        13,
        21,
        0,
        0,
        1,
        30,
        2,
        4,
        7,
        1,
        1,
        0,
        12,
        3,
        5,
        6,
        9,
        10,
        11,
        0,
        1,
        3,
        0,
        1,
        0,
    ],
    float,
)
PLACES = [True, False]


def expected_counts(masses, stratified, batch_size=BATCH_SIZE, n_batches=N_BATCHES):
    """How often each leaf is due at each place of the batch: [B, n_leaves]."""
    total = masses.sum()
    if not stratified:
        return np.tile(n_batches * masses / total, (batch_size, 1))
    ends = np.cumsum(masses)
    strata = np.arange(batch_size + 1)[:, None] * (total / batch_size)
    overlap = np.minimum(ends, strata[1:]) - np.maximum(ends - masses, strata[:-1])
    return n_batches * overlap.clip(0) / (total / batch_size)


def judge(drawn, masses, stratified):
    """Check index [n_batches, B] against the masses it should follow."""
    n_batches, batch_size = drawn.shape
    counts = np.stack([np.bincount(place, minlength=len(masses)) for place in drawn.T])
    check_counts(counts, expected_counts(masses, stratified, batch_size, n_batches), FALSE_ALARM)


def draw_many(sample, n_batches=N_BATCHES):
    return np.stack([sample() for _ in range(n_batches)])


def pick(masses, rng, stratified, n_batches=N_BATCHES, batch_size=BATCH_SIZE):
    """A picker that is right, without a tree; the planted faults are made from it."""
    prefix = rng.random((n_batches, batch_size))
    prefix = (np.arange(batch_size) + prefix) / batch_size if stratified else prefix
    return np.searchsorted(np.cumsum(masses), prefix * masses.sum(), side="right")


def pick_uniformly(masses, rng, stratified):
    return pick((masses > 0).astype(float), rng, stratified)


def pick_the_leaf_after(masses, rng, stratified):
    full = np.flatnonzero(masses)
    following = np.zeros(len(masses), np.int64)
    following[full] = np.roll(full, -1)
    return following[pick(masses, rng, stratified)]


def pick_with_a_stale_parent(masses, rng, stratified):
    """Walk a tree whose upper levels missed one update of one leaf."""
    tree = ReferenceTree(len(masses), 4)
    tree.mass[:] = masses
    tree.mass[np.argmax(masses)] -= 15.0
    stale, leaves = tree.levels()[:-1], tree.levels
    tree.mass[:] = masses
    tree.levels = lambda: stale + leaves()[-1:]
    return np.stack([tree.sample(rng.random(BATCH_SIZE), stratified) for _ in range(N_BATCHES)])


def pick_ignoring_alpha(masses, rng, stratified):
    return pick(masses**2, rng, stratified)


def pick_with_alpha_twice(masses, rng, stratified):
    return pick(masses**0.5, rng, stratified)


def pick_the_other_way(masses, rng, stratified):
    """Independent draws where stratified ones are due, and the other way round."""
    return pick(masses, rng, not stratified)


FAULTS = [
    pick_uniformly,
    pick_the_leaf_after,
    pick_with_a_stale_parent,
    pick_ignoring_alpha,
    pick_with_alpha_twice,
    pick_the_other_way,
]


@pytest.mark.parametrize("stratified", PLACES)
@pytest.mark.parametrize("fault", FAULTS)
def test_the_judge_rejects_a_planted_fault(fault, stratified):
    drawn = fault(MASSES, np.random.default_rng(SEED), stratified)
    with pytest.raises(AssertionError, match=r"chi-square|impossible"):
        judge(drawn, MASSES, stratified)


@pytest.mark.parametrize("stratified", PLACES)
def test_the_judge_accepts_what_is_right(stratified):
    judge(pick(MASSES, np.random.default_rng(SEED), stratified), MASSES, stratified)


@pytest.mark.parametrize(
    ("statistic", "n_freedom", "chance"),
    [
        (3.841459, 1, 0.05),
        (32.841253, 1, 1e-8),
        (57.663962, 10, 1e-8),
        (82.528727, 63, 0.05),
        (1271.632287, 1000, 1e-8),
    ],
)
def test_the_chi_square_law_against_published_quantiles(statistic, n_freedom, chance):
    assert survival(statistic, n_freedom) == pytest.approx(chance, rel=1e-5)


@pytest.mark.parametrize("stratified", PLACES)
@pytest.mark.parametrize("arity", ARITIES)
def test_tree_follows_its_masses(arity, stratified):
    tree = kr.SumTree(len(MASSES), arity=arity)
    rng = np.random.default_rng(SEED + arity)
    tree.set(np.arange(len(MASSES)), rng.random(len(MASSES)))  # the masses drawn from are updates
    tree.set(np.arange(len(MASSES)), MASSES)
    judge(
        draw_many(lambda: tree.sample(BATCH_SIZE, stratified=stratified, rng=rng)),
        MASSES,
        stratified,
    )


def scalar_buffer(capacity, **options):
    options = {"uniform_share": 0.0, "seed": SEED, **options}
    return kr.PrioritizedReplayBuffer(capacity, {"number": kr.Field((), "int64")}, **options)


def buffer_with_masses(alpha, epsilon=2.0**-20):
    """A buffer that wrapped around and whose rows got the masses that are not zero, by updates."""
    wanted = MASSES[MASSES > 0]
    buffer = scalar_buffer(len(wanted), alpha=alpha, priority_epsilon=epsilon)
    buffer.add(number=np.arange(2 * len(wanted) + 5))
    handles = np.unique(draw_many(lambda: buffer.sample(64).handle, 20).ravel())
    assert len(handles) == len(wanted)
    priority = wanted[handles["index"]] ** (1 / alpha)
    signs = np.where(np.arange(len(handles)) % 2, 1.0, -1.0)
    assert buffer.update_priorities(handles, signs * (priority - epsilon)) == len(handles)
    return buffer, wanted


@pytest.mark.parametrize("stratified", PLACES)
@pytest.mark.parametrize("alpha", [0.5, 1.0])
def test_buffer_follows_updated_priorities(alpha, stratified):
    buffer, wanted = buffer_with_masses(alpha)
    judge(
        draw_many(lambda: buffer.sample(BATCH_SIZE, stratified=stratified).index),
        wanted,
        stratified,
    )


@pytest.mark.parametrize("stratified", PLACES)
def test_a_priority_exponent_of_zero_means_uniform(stratified):
    buffer = scalar_buffer(20, alpha=0.0)
    buffer.add(number=np.arange(20), priority=np.arange(1.0, 21.0))
    judge(
        draw_many(lambda: buffer.sample(BATCH_SIZE, stratified=stratified).index),
        np.ones(20),
        stratified,
    )


@pytest.mark.parametrize("n_rows", [20, 40, 64])
def test_uniform_buffer_is_uniform(n_rows):
    buffer = kr.ReplayBuffer(40, {"number": kr.Field((), "int64")}, seed=SEED)
    buffer.add(number=np.arange(n_rows))
    judge(
        draw_many(lambda: buffer.sample(BATCH_SIZE).index),
        np.ones(min(n_rows, 40)),
        stratified=False,
    )


@pytest.mark.parametrize("fault", ["twice as often", "never", "strata"])
def test_the_uniform_judge_rejects_a_planted_fault(fault):
    weight = np.ones(20)
    weight[19] = {"twice as often": 2.0, "never": 0.0, "strata": 1.0}[fault]
    drawn = pick(weight, np.random.default_rng(SEED), stratified=fault == "strata")
    with pytest.raises(AssertionError, match="chi-square"):
        judge(drawn, np.ones(20), stratified=False)


def judge_pairs(bits):
    """Check that four values of consecutive draws [n, 2] in {0, 1} come equally often."""
    counts = np.bincount(bits[:, 0] * 2 + bits[:, 1], minlength=4)
    check_counts(counts, np.full(4, len(bits) / 4), FALSE_ALARM)


@pytest.mark.parametrize("batch_size", [1, 2, 5])
def test_consecutive_batches_are_independent(batch_size):
    buffer = scalar_buffer(2)
    buffer.add(number=[0, 1])
    last = draw_many(lambda: buffer.sample(batch_size, stratified=False).index[-1], 20_000)
    judge_pairs(last.reshape(-1, 2))


def test_a_stream_that_repeats_itself_is_rejected():
    bits = np.random.default_rng(SEED).integers(0, 2, 20_000)
    bits[1::2] = np.where(np.arange(10_000) % 10 == 0, bits[::2], bits[1::2])
    with pytest.raises(AssertionError, match="chi-square"):
        judge_pairs(bits.reshape(-1, 2))


def judge_pooled(drawn, masses):
    """Check independent draws, whatever their place in the batch."""
    counts = np.bincount(drawn.ravel(), minlength=len(masses))
    check_counts(counts, drawn.size * masses / masses.sum(), FALSE_ALARM)


def sample_beside(work, sample, run_threaded, n_batches):
    """Draw n_batches while another thread repeats ``work``."""
    finished = []

    def draw():
        try:
            return draw_many(sample, n_batches)
        finally:
            finished.append(True)

    def disturb():
        while not finished:
            work()

    return run_threaded([draw, disturb])[0]


def test_updates_that_change_nothing_leave_the_frequencies_alone(run_threaded):
    """Every node is rewritten all the time, with the value it has: the draws have to stay exact."""
    tree = kr.SumTree(len(MASSES))
    every = np.arange(len(MASSES))
    tree.set(every, MASSES)
    rng = np.random.default_rng(SEED)
    drawn = sample_beside(
        lambda: tree.set(every, MASSES),
        lambda: tree.sample(64, stratified=False, rng=rng),
        run_threaded,
        N_BATCHES,
    )
    judge_pooled(drawn, MASSES)


def test_rows_drawn_again_are_drawn_by_mass():
    """Half of the mass is on slots without a row, so that half of the draws are made again.

    In use, a draw fails because another thread is overwriting the row, too rarely to be counted.
    Where no row is, a draw fails as well, every time; the rows drawn instead have to follow their
    masses as if nothing had happened.
    """
    n_rows = len(MASSES)
    buffer = scalar_buffer(2 * n_rows, alpha=1.0)
    buffer.add(number=np.arange(n_rows))
    buffer.tree.set(np.arange(2 * n_rows), np.append(MASSES, MASSES[::-1]))
    judge_pooled(draw_many(lambda: buffer.sample(BATCH_SIZE, stratified=False).index), MASSES)


@pytest.mark.parametrize("favourite", ["the first row", "the row before", "any row"])
def test_a_biased_second_draw_is_rejected(favourite):
    rng = np.random.default_rng(SEED)
    full = np.flatnonzero(MASSES)
    drawn, failed = pick(MASSES, rng, False), rng.random((N_BATCHES, BATCH_SIZE)) < 0.5
    second = {
        "the first row": np.zeros_like(drawn),
        "the row before": full[np.searchsorted(full, drawn) - 1],
    }
    drawn = np.where(failed, second.get(favourite, rng.choice(full, drawn.shape)), drawn)
    with pytest.raises(AssertionError, match="chi-square"):
        judge_pooled(drawn, MASSES)


# --------------------------------------------------------------------- with a share of uniform ones


def expected_of_a_mixture(masses, share, stratified):
    """How often each row is due at each place, [B, n], where a share of the draws is uniform.

    The first places of a stratified batch are those of uniform draws, each of which may be any row.
    """
    has_mass = masses > 0
    both = np.append(share, (1 - share) * masses / masses.sum())
    alike, by_mass = np.split(expected_counts(both, stratified), [1], axis=1)
    return by_mass + alike * has_mass / has_mass.sum()


def judge_mixture(drawn, masses, share, stratified):
    counts = np.stack([np.bincount(place, minlength=len(masses)) for place in drawn.T])
    check_counts(counts, expected_of_a_mixture(masses, share, stratified), FALSE_ALARM)


@pytest.mark.parametrize("stratified", PLACES)
@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_a_share_of_the_draws_is_uniform(share, stratified):
    buffer = scalar_buffer(len(MASSES), alpha=1.0, beta=1.0, uniform_share=share)
    buffer.add(number=np.arange(len(MASSES)))
    buffer.tree.set(np.arange(len(MASSES)), MASSES)
    batches = [buffer.sample(BATCH_SIZE, stratified=stratified) for _ in range(N_BATCHES)]
    judge_mixture(np.stack([batch.index for batch in batches]), MASSES, share, stratified)
    n_rows = np.count_nonzero(MASSES)
    chance = share / n_rows + (1 - share) * MASSES / MASSES.sum()
    for batch in batches[:100]:
        wanted = 1 / (n_rows * chance[batch.index])
        np.testing.assert_allclose(batch.importance_weight, wanted, rtol=1e-6)


def pick_a_mixture(rng, share, stratified, alike):
    """Batches of which a share is picked by `alike`, given the random stream and a shape."""
    both = np.append(share, (1 - share) * MASSES / MASSES.sum())
    drawn = pick(both, rng, stratified) - 1
    return np.where(drawn < 0, alike(rng, drawn.shape), drawn)


def rows_alike(rng, shape):
    return rng.choice(np.flatnonzero(MASSES), shape)


def rows_with_the_luck_of_neighbours(rng, shape):
    full, drawn = np.flatnonzero(MASSES), rng.integers(len(MASSES), size=shape)
    following = full[np.searchsorted(full, drawn) % len(full)]
    return np.where(MASSES[drawn] == 0, following, drawn)


def rows_in_strata(rng, shape):
    """As the other draws are, from parts of their own: half of a batch has half of the places."""
    full, n = np.flatnonzero(MASSES), shape[1] // 2
    place = np.minimum((np.arange(shape[1]) + rng.random(shape)) / n, 1 - 1e-9)
    return full[(place * len(full)).astype(np.int64)]


@pytest.mark.parametrize("stratified", PLACES)
@pytest.mark.parametrize(
    ("share", "alike"),
    [
        (0.0, rows_alike),
        (0.4, rows_alike),
        (0.5, rows_with_the_luck_of_neighbours),
        (0.5, rows_in_strata),
    ],
    ids=["no share", "another share", "neighbours gain", "strata"],
)
def test_another_mixture_is_rejected(share, alike, stratified):
    drawn = pick_a_mixture(np.random.default_rng(SEED), share, stratified, alike)
    with pytest.raises(AssertionError, match=r"chi-square|impossible"):
        judge_mixture(drawn, MASSES, 0.5, stratified)


@pytest.mark.parametrize("stratified", PLACES)
def test_the_judge_accepts_the_mixture(stratified):
    drawn = pick_a_mixture(np.random.default_rng(SEED), 0.5, stratified, rows_alike)
    judge_mixture(drawn, MASSES, 0.5, stratified)


@pytest.mark.parametrize("share", [0.1, 1.0])
@pytest.mark.parametrize("n_without", [20, 100, 99_997])
def test_a_share_of_draws_among_slots_of_which_few_have_a_row(share, n_without):
    """Draws are made again until they hit a row; where they hardly ever do, rows are counted."""
    masses = np.array([1.0, 3.0, 9.0])
    buffer = scalar_buffer(n_without + 3, alpha=1.0, beta=1.0, uniform_share=share)
    buffer.add(number=np.arange(n_without + 3))
    buffer.tree.set(np.arange(n_without + 3), np.append(masses, np.zeros(n_without)))
    n = 200 if n_without > 1_000 else 500
    drawn = draw_many(lambda: buffer.sample(64, stratified=False).index, n)
    chance = (1 - share) * masses / masses.sum() + share / 3
    judge_pooled(drawn, chance)
    with pytest.raises(AssertionError, match="chi-square"):
        judge_pooled(drawn, masses)  # the share goes by the masses as well
    batch = buffer.sample(64)
    np.testing.assert_allclose(batch.importance_weight, 1 / (3 * chance[batch.index]), rtol=1e-5)
