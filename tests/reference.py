"""The executable specification: a naive tree, a naive buffer, and the random stream they draw from.

Nothing here is clever or fast. Sums are recomputed from the leaves whenever somebody asks, searches
are linear scans, rows are dicts in a list. What the package does in one thread has to equal what
this does, bit for bit where this says so.
"""

import math
from fractions import Fraction

import numpy as np

BLOCK = 8  # siblings added left to right before their sums are added up


def left_to_right(columns):
    """Sum of [n, k] over k, one addition after the other: [n]."""
    total = columns[:, 0].copy()
    for column in range(1, columns.shape[1]):
        total += columns[:, column]
    return total


def group_sums(children):
    """Sum each group of K siblings [n, K], blocks of 8 from left to right, then the blocks: [n]."""
    blocks = [
        left_to_right(children[:, start : start + BLOCK])
        for start in range(0, children.shape[1], BLOCK)
    ]
    return left_to_right(np.stack(blocks, axis=1))


def choose(masses, prefix):
    """First of the masses whose cumulative sum exceeds prefix, and the prefix left inside it."""
    cumulative = 0.0
    for child, mass in enumerate(masses):
        before, cumulative = cumulative, cumulative + mass
        if prefix < cumulative:
            return child, prefix - before
    # Rounding carried prefix to the end or past it: the last one, or, if that is empty, the last
    # that is not and its last.
    if mass > 0:
        return child, prefix - before
    child = int(np.flatnonzero(masses)[-1])
    return child, masses[child]


def choose_child(group, prefix):
    """The same among K siblings, by the sums of `group_sums`: the block of 8, then the child."""
    blocks = [group[start : start + BLOCK] for start in range(0, len(group), BLOCK)]
    block, prefix = choose([left_to_right(block[None, :])[0] for block in blocks], prefix)
    child, prefix = choose(blocks[block], prefix)
    return block * BLOCK + child, prefix


def strata(uniforms):
    """One number in each of as many equal parts of [0, 1)."""
    return (np.arange(len(uniforms)) + uniforms) * (1.0 / len(uniforms))


class ReferenceTree:
    """K-ary sum tree without a tree: `levels` builds all of it from the leaves, every time."""

    def __init__(self, capacity, arity):
        self.capacity = capacity
        self.arity = arity
        self.mass = np.zeros(capacity)

    def set(self, index, mass):
        index = np.atleast_1d(index)
        for leaf, value in zip(index, np.broadcast_to(mass, index.shape), strict=True):
            self.mass[leaf] = value

    def get(self, index):
        return self.mass[index]

    def levels(self):
        """Masses of every level, root first, each padded with empty nodes to whole groups."""
        levels = [self.mass]
        while len(levels[0]) > 1:
            padding = -len(levels[0]) % self.arity
            levels[0] = np.append(levels[0], np.zeros(padding))
            levels.insert(0, group_sums(levels[0].reshape(-1, self.arity)))
        return levels

    @property
    def total(self):
        return float(self.levels()[0][0])

    def find(self, prefix, levels=None):
        """Find the leaf that holds prefix, in the float arithmetic that the package promises."""
        node = 0
        for level in (levels or self.levels())[1:]:
            group = level[node * self.arity : (node + 1) * self.arity]
            child, prefix = choose_child(group, prefix)
            node = node * self.arity + child
        return node

    def find_exact(self, prefix):
        """Smallest i with prefix < mass[0] + … + mass[i], in rationals; None past the end."""
        prefix = Fraction(float(prefix))
        cumulative = Fraction(0)
        for leaf, mass in enumerate(self.mass):
            cumulative += Fraction(float(mass))
            if prefix < cumulative:
                return leaf
        return None

    def sample(self, uniforms, stratified=True):
        """The leaves that uniforms in [0, 1) pick: one each, or one in each of B equal strata."""
        levels = self.levels()
        total = float(levels[0][0])
        prefixes = strata(uniforms) * total if stratified else uniforms * total
        return np.array([self.find(prefix, levels) for prefix in prefixes], dtype=np.int64)


class ReferenceStream:
    """Uniforms of one seed, made by NumPy's Philox: an independent program for the same stream."""

    def __init__(self, seed):
        key = np.random.SeedSequence(seed).generate_state(2, np.uint64)
        # NumPy counts up before it makes a block, so its first block after all ones is counter 0.
        self.philox = np.random.Philox(key=key, counter=[2**64 - 1] * 4)

    def uniforms(self, n_draws):
        """The next n_draws uniforms; a block of four outputs that is not used up is thrown away."""
        outputs = self.philox.random_raw(4 * math.ceil(n_draws / 4))
        return (outputs[:n_draws] >> np.uint64(11)) * 2.0**-53


class ReferenceBuffer:
    """Prioritized replay as a list of rows. A handle is (slot, how often the slot was written)."""

    def __init__(
        self,
        capacity,
        arity,
        alpha=0.6,
        beta=0.4,
        priority_epsilon=1e-6,
        seed=None,
        uniform_share=0.0,
    ):
        self.capacity = capacity
        self.uniform_share = uniform_share
        self.alpha, self.beta, self.priority_epsilon = alpha, beta, priority_epsilon
        self.tree = ReferenceTree(capacity, arity)
        self.stream = ReferenceStream(seed)
        self.rows = [None] * capacity
        self.priority = [None] * capacity
        self.generation = [0] * capacity
        self.position = 0
        self.max_priority = 1.0

    def __len__(self):
        return sum(row is not None for row in self.rows)

    def add(self, rows, priorities=None):
        """Adds one row after the other; returns their slots."""
        slots = []
        newcomer = self.max_priority
        for number, row in enumerate(rows):
            slot = self.position
            self.position = (self.position + 1) % self.capacity
            self.generation[slot] += 1
            self.rows[slot] = row
            self.set_priority(slot, newcomer if priorities is None else priorities[number])
            slots.append(slot)
        return slots

    def set_priority(self, slot, priority):
        self.priority[slot] = priority
        self.max_priority = max(self.max_priority, priority)
        self.tree.mass[slot] = priority**self.alpha

    def handles(self, slots):
        return [(slot, self.generation[slot]) for slot in slots]

    def sample(self, batch_size, stratified=True):
        """Slots and importance weights of the next batch."""
        uniforms, share = self.stream.uniforms(batch_size), self.uniform_share
        if share == 0:
            slots = self.tree.sample(uniforms, stratified)
            return slots, self.weights(slots)
        levels, n_rows = self.tree.levels(), len(self)
        total = float(levels[0][0])
        points = strata(uniforms) * total if stratified else uniforms * total
        slots = np.empty(batch_size, np.int64)
        for i, point in enumerate(points):
            if share == 1 or point < share * total:
                at, end = point / (share * total), 1.0
                if stratified:  # where it is in its stratum, as far as that is of the share
                    at = point / total * batch_size
                    at, end = at - math.floor(at), share * batch_size - math.floor(at)
                slots[i] = min(int(at / min(1.0, end) * n_rows), n_rows - 1)
            else:
                slots[i] = self.tree.find((point - share * total) / (1 - share), levels)
        return slots, self.weights(slots)

    def weights(self, slots):
        """Importance weights of rows that make a batch."""
        mass, share = self.tree.mass[slots], self.uniform_share
        if share == 0:
            return (mass.min() / mass) ** self.beta
        total = float(self.tree.levels()[0][0])
        return ((1 - share) * len(self) * (mass / total) + share) ** -self.beta

    def update_priorities(self, handles, td_errors):
        """Number of handles that were still current; the others change nothing."""
        applied = 0
        for (slot, generation), td_error in zip(handles, td_errors, strict=True):
            if self.generation[slot] == generation and self.rows[slot] is not None:
                self.set_priority(slot, abs(td_error) + self.priority_epsilon)
                applied += 1
        return applied

    def set_alpha(self, alpha):
        """Gives every row the mass of its priority."""
        for slot, row in enumerate(self.rows):
            if row is not None:
                self.tree.mass[slot] = self.priority[slot] ** alpha
        self.alpha = alpha

    def reset(self):
        self.rows = [None] * self.capacity
        self.priority = [None] * self.capacity
        self.generation = [generation + 1 for generation in self.generation]
        self.tree.mass[:] = 0.0
        self.position = 0
        self.max_priority = 1.0


def stretches(log):
    """Steps of one stream that belong together, and whether the last of them ended an episode.

    A log is a list of steps, dicts with at least terminated and truncated; None stands for a reset
    in between.
    """
    steps = []
    for step in [*log, None]:
        if step is not None:
            steps.append(step)
        if step is None or step["terminated"] or step["truncated"]:
            yield steps, step is not None
            steps = []


def reference_n_step(log, n_step, gamma):
    """The windows of one stream, in order: steps, exact return, and discount."""
    gamma, windows = Fraction(gamma), []
    for steps, ended in stretches(log):
        for start in range(len(steps)):
            window = steps[start : start + n_step]
            if len(window) == n_step or ended:
                reward = sum(
                    gamma**i * Fraction(float(step["reward"])) for i, step in enumerate(window)
                )
                discount = gamma ** len(window) * (not window[-1]["terminated"])
                windows.append((window, reward, discount))
    return windows


def reference_sequences(log, length, period, burn_in, pad_start=False):
    """The sequences of one stream, lists of at most `length` steps; none only repeats another.

    Where an episode is padded at its start, these steps are None.
    """
    sequences = []
    for steps, ended in stretches(log):
        steps = [None] * (burn_in if pad_start else 0) + steps
        n_covered = 0
        for start in range(0, len(steps), period):
            window = steps[start : start + length]
            brings_new = start + len(window) > n_covered
            if brings_new and (len(window) == length or (ended and len(window) > burn_in)):
                sequences.append(window)
                n_covered = start + len(window)
    return sequences
