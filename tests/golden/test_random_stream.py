"""The random stream, bit for bit, against programs that share no code with it.

Three independent sources: the published test vectors of Philox4x64-10 (Salmon et al. 2011,
"Parallel random numbers: as easy as 1, 2, 3"), NumPy's Philox, and batches written down once from
the reference. What is pinned here is part of the package's behaviour: a change breaks the
reproducibility of everybody's seeded runs.
"""

import pickle

import numpy as np
import pytest
from reference import ReferenceStream, ReferenceTree

import kary_replay as kr

ARITY = kr.sum_tree.DEFAULT_ARITY
FIELDS = {"number": kr.Field((), "int64")}
BATCH_SIZES = (1, 2, 3, 4, 5, 9)

# seed 2016, ten rows of priorities 1 … 10, alpha 1, batches of BATCH_SIZES in turn
STRATIFIED = [[9], [5, 8], [0, 7, 8], [2, 6, 7, 9], [4, 5, 6, 8, 9], [2, 3, 5, 6, 6, 7, 8, 8, 9]]
INDEPENDENT = [[9], [8, 7], [1, 8, 4], [5, 8, 4, 5], [9, 6, 5, 8, 4], [9, 4, 8, 7, 4, 2, 4, 5, 8]]
UNIFORM = [[9], [7, 5], [0, 6, 1], [3, 8, 2, 3], [9, 4, 3, 7, 2], [9, 2, 6, 6, 2, 1, 2, 2, 7]]

# the first eight uniforms of seed 0
UNIFORMS = [
    "0x1.5f4a17bf87d1dp-1", "0x1.200c186f38c14p-1", "0x1.bac5d7b0d5756p-2", "0x1.ac6b413680651p-1",
    "0x1.ccf2d9115c140p-7", "0x1.07f42307c03cep-2", "0x1.e2e209058bb92p-2", "0x1.76747919e0270p-4",
]  # fmt: skip


def philox4x64(counter, key, n_rounds=10):
    """One block of Philox4x64, after the paper's section 3.3 and figure 2, in Python's integers."""
    word = 2**64
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(n_rounds):
        high0, low0 = divmod(0xD2E7470EE14C6C93 * c0, word)
        high1, low1 = divmod(0xCA5A826395121157 * c2, word)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + 0x9E3779B97F4A7C15) % word, (k1 + 0xBB67AE8584CAA73B) % word
    return [c0, c1, c2, c3]


def test_the_published_vectors():
    ones = 2**64 - 1
    assert philox4x64([0] * 4, [0] * 2) == [
        0x16554D9ECA36314C, 0xDB20FE9D672D0FDC, 0xD7E772CEE186176B, 0x7E68B68AEC7BA23B,
    ]  # fmt: skip
    assert philox4x64([ones] * 4, [ones] * 2) == [
        0x87B092C3013FE90B, 0x438C3C67BE8D0224, 0x9CC7D7C69CD777B6, 0xA09CAEBF594F0BA0,
    ]  # fmt: skip


@pytest.mark.parametrize("seed", [0, 1, 2016, 2**64, [1, 2, 3]])
def test_numpys_philox_is_the_papers_at_the_counters_we_promise(seed):
    """NumPy counts up before each block; the reference starts so that the first block is 0."""
    key = [int(word) for word in np.random.SeedSequence(seed).generate_state(2, np.uint64)]
    blocks = [philox4x64([counter, 0, 0, 0], key) for counter in range(5)]
    uniforms = [(output >> 11) * 2.0**-53 for block in blocks for output in block]
    assert ReferenceStream(seed).uniforms(20).tolist() == uniforms


def test_the_first_uniforms_of_seed_zero():
    assert [float(u).hex() for u in ReferenceStream(0).uniforms(8)] == UNIFORMS


def prioritized(seed=2016):
    buffer = kr.PrioritizedReplayBuffer(10, FIELDS, alpha=1.0, seed=seed, uniform_share=0.0)
    buffer.add(number=np.arange(10), priority=np.arange(1.0, 11.0))
    return buffer


def uniform(seed=2016):
    buffer = kr.ReplayBuffer(10, FIELDS, seed=seed)
    buffer.add(number=np.arange(10))
    return buffer


def test_stratified_batches():
    buffer = prioritized()
    assert [buffer.sample(n).index.tolist() for n in BATCH_SIZES] == STRATIFIED


def test_independent_batches():
    buffer = prioritized()
    assert [buffer.sample(n, stratified=False).index.tolist() for n in BATCH_SIZES] == INDEPENDENT


def test_uniform_batches():
    buffer = uniform()
    assert [buffer.sample(n).index.tolist() for n in BATCH_SIZES] == UNIFORM


def test_the_written_batches_are_the_references():
    tree = ReferenceTree(10, ARITY)
    tree.mass[:] = np.arange(1.0, 11.0)
    for written, stratified in ((STRATIFIED, True), (INDEPENDENT, False)):
        stream = ReferenceStream(2016)
        assert [
            tree.sample(stream.uniforms(n), stratified).tolist() for n in BATCH_SIZES
        ] == written
    stream = ReferenceStream(2016)
    assert [(stream.uniforms(n) * 10).astype(int).tolist() for n in BATCH_SIZES] == UNIFORM


@pytest.mark.parametrize("seed", [0, 7, 2**63, 2**100, [1, 2, 3]])
@pytest.mark.parametrize("stratified", [True, False])
def test_long_runs_of_all_batch_sizes(seed, stratified, rng):
    """Fractional masses, sizes around the internal chunks, both kinds of batch from one stream."""
    masses = rng.random(777) * 10.0 ** rng.integers(-5, 5, 777)
    buffer = kr.PrioritizedReplayBuffer(1000, FIELDS, alpha=1.0, seed=seed, uniform_share=0.0)
    buffer.add(number=np.arange(777), priority=masses)
    tree, stream = ReferenceTree(1000, ARITY), ReferenceStream(seed)
    tree.mass[:777] = masses
    for batch_size in (1, 3, 127, 128, 129, 130, 255, 256, 257, 500, 2):
        wanted = tree.sample(stream.uniforms(batch_size), stratified)
        assert buffer.sample(batch_size, stratified=stratified).index.tolist() == wanted.tolist()


@pytest.mark.parametrize("seed", [0, 7, [1, 2, 3]])
def test_long_runs_of_uniform_batches(seed):
    buffer = kr.ReplayBuffer(1000, FIELDS, seed=seed)
    buffer.add(number=np.arange(777))
    stream = ReferenceStream(seed)
    for batch_size in (1, 3, 127, 128, 129, 130, 255, 256, 257, 500, 2):
        assert (
            buffer.sample(batch_size).index.tolist()
            == (stream.uniforms(batch_size) * 777).astype(int).tolist()
        )


def test_what_else_happens_to_a_buffer_does_not_move_its_stream():
    buffer = prioritized()
    drawn = []
    for batch_size in BATCH_SIZES:
        handle = np.zeros(0, kr.HANDLE_DTYPE)
        buffer.update_priorities(handle, [])
        buffer.alpha = 0.5
        buffer.alpha = 1.0
        buffer.reset()
        buffer.add(number=np.arange(10), priority=np.arange(1.0, 11.0))
        buffer = pickle.loads(pickle.dumps(buffer))
        buffer.check_invariants()
        drawn.append(buffer.sample(batch_size).index.tolist())
    assert drawn == STRATIFIED


def test_a_tree_draws_with_numpys_generators(rng):
    """An int is a seed for numpy.random.default_rng; its uniforms are used in order."""
    tree, reference = kr.SumTree(50), ReferenceTree(50, ARITY)
    reference.mass[:] = rng.random(50)
    tree.set(np.arange(50), reference.mass)
    for stratified in (True, False):
        wanted = reference.sample(np.random.default_rng(11).random(33), stratified)
        assert tree.sample(33, stratified=stratified, rng=11).tolist() == wanted.tolist()
        assert (
            tree.sample(33, stratified=stratified, rng=np.random.default_rng(11)).tolist()
            == wanted.tolist()
        )
