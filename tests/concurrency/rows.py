"""Rows that give themselves away: every field and the mass derive from the row's insertion number.

A torn row has fields of two numbers. A priority that reached another row than its own shows as a
mass whose significand is not that row's: row n may only ever have the masses `strength(n)` · 2^k,
with a strength in [1, 2) of its own. All numbers involved are exact in float64, so at rest masses
are compared for equality.
"""

import numpy as np

import kary_replay as kr

STEPS = 4096  # strengths told apart
EPSILON = 1.0 / STEPS  # priority_epsilon: errors are exact differences with it
MAX_EXPONENT = 3
PRIME = 1_000_003


class ViolationError(AssertionError):
    """What was seen must never happen."""


def require(fine, what, *columns):
    """Raise ViolationError showing the offending rows unless all of ``fine`` holds."""
    fine = np.asarray(fine)
    if not fine.all():
        bad = np.flatnonzero(~np.atleast_1d(fine))[:5]
        raise ViolationError(
            f"{what}: rows {bad.tolist()}: "
            f"{[np.asarray(column)[bad].tolist() for column in columns]}"
        )


def strength(number):
    """The number's own significand, in [1, 2): STEPS values, well mixed."""
    mixed = np.asarray(number).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return 1.0 + (mixed >> np.uint64(52)).astype(np.float64) * EPSILON


def priority(number, exponent):
    """A priority that only this number's row may have."""
    return np.ldexp(strength(number), exponent)


def td_error(number, exponent):
    """The error that gives that priority; its sign alternates because it must not matter."""
    error = priority(number, exponent) - EPSILON
    return np.where(np.asarray(exponent) % 2, error, -error)


class Rows:
    """Rows of ``n_words`` 8-byte words and some small fields, for one thread: it reuses memory."""

    def __init__(self, n_words, max_rows, image=False):
        self.n_words = n_words
        self.image_shape = (n_words * 8 // 12, 4, 3) if image else None
        self.steps = np.arange(n_words, dtype=np.int64) * 31
        self.scratch = np.empty((max_rows, n_words), np.int64)

    def fields(self):
        body = (
            kr.Field(self.image_shape, "uint8")
            if self.image_shape
            else kr.Field((self.n_words,), "int64")
        )
        tag = {"flag": kr.Field((), "bool"), "low": kr.Field((3,), "uint8")}
        return {
            "number": kr.Field((), "int64"),
            "body": body,
            "tag": tag,
            "tail": kr.Field((), "float64"),
        }

    def words(self, number):
        """The body of each row, [B, n_words], in memory that the next call reuses."""
        body = (
            self.scratch[: len(number)]
            if len(number) <= len(self.scratch)
            else np.empty((len(number), self.n_words), np.int64)
        )
        np.add((number * PRIME)[:, None], self.steps, out=body)
        return body

    def make(self, number):
        """The fields of rows with these numbers. The body is only valid until the next call."""
        body = self.words(number)
        if self.image_shape:
            body = body.view(np.uint8).reshape(-1, *self.image_shape)
        low = (number & 255).astype(np.uint8)
        tag = {"flag": number % 2 == 1, "low": np.repeat(low[:, None], 3, 1)}
        return {"number": number, "body": body, "tag": tag, "tail": number * 0.5}

    def check_whole(self, row):
        """Every field of every row is of the row's one number."""
        number, body = row["number"], row["body"]
        if self.image_shape:
            body = np.ascontiguousarray(body).reshape(len(number), -1).view(np.int64)
        whole = (body == self.words(number)).all(1)
        whole &= (row["tag"]["low"] == (number & 255)[:, None]).all(1)
        whole &= (row["tag"]["flag"] == (number % 2 == 1)) & (row["tail"] == number * 0.5)
        require(whole, "torn row", number, row["tail"], body[:, 0], body[:, -1])


def check_masses(number, mass):
    """At rest: every row's mass is one of its own."""
    require(mass > 0, "row of mass 0", number, mass)
    significand, exponent = np.frexp(mass)
    own = (
        (2 * significand == strength(number)) & (exponent - 1 >= 0) & (exponent - 1 <= MAX_EXPONENT)
    )
    require(own, "mass of another row", number, mass, strength(number))


def check_weights(number, weight):
    """Weights with alpha = beta = 1 are 1 / mass up to one factor per batch, while others write.

    So weight · strength is 2^-k times that factor: the logarithms differ by whole numbers, and by
    no more than the exponents do.
    """
    require(
        (weight > 0) & (weight <= 1) & (weight.max() == 1), "weight out of range", number, weight
    )
    exponent = np.log2(weight * strength(number))
    exponent -= exponent[0]
    whole = np.rint(exponent)
    require(
        (np.abs(exponent - whole) < 2e-5) & (np.abs(whole) <= MAX_EXPONENT),
        "mass of another row",
        number,
        weight,
    )


class SeenSlots:
    """What one thread has seen in each slot: a generation has one number, and never comes back."""

    def __init__(self, capacity):
        self.capacity = capacity
        self.generation = np.zeros(capacity, np.uint64)
        self.number = np.full(capacity, -1, np.int64)

    def check(self, batch):
        index, generation, number = batch.index, batch.handle["generation"], batch.number
        require((index >= 0) & (index < self.capacity), "index out of range", index)
        require(
            batch.handle["index"] == index, "handle of another slot", index, batch.handle["index"]
        )
        require(
            (generation > 0) & (generation % 2 == 0), "row that is not published", index, generation
        )
        before, known = self.generation[index], self.number[index]
        require(generation >= before, "a slot's earlier row came back", index, generation, before)
        require(
            (generation == before) == (number == known),
            "generation and row do not match",
            index,
            number,
            known,
        )
        # Of a slot that came twice with different rows, keep the newer.
        order = np.argsort(generation, kind="stable")
        self.generation[index[order]] = generation[order]
        self.number[index[order]] = number[order]


def check_batch(rows, seen, batch):
    """Everything that has to hold for a batch, whatever other threads do."""
    seen.check(batch)
    rows.check_whole(batch)
    if hasattr(batch, "importance_weight"):
        check_weights(batch.number, batch.importance_weight)


def check_at_rest(rows, buffer, last_written, masses_tell=True):
    """Everything that has to hold when all threads have ended.

    ``last_written`` [n_writers, capacity]: the last number each writer put into each slot, or -1.
    One of them has to be there, with a mass of its own, where ``masses_tell``.
    """
    buffer.check_invariants()
    capacity = buffer.capacity
    require(len(buffer) == capacity, "rows missing", len(buffer))
    stored = {name: buffer.field_view(name) for name in buffer.fields}
    for start in range(0, capacity, len(rows.scratch)):
        part = slice(start, start + len(rows.scratch))
        tag = {name: view[part] for name, view in stored["tag"].items()}
        rows.check_whole(
            {**{name: view[part] for name, view in stored.items() if name != "tag"}, "tag": tag}
        )
    number = stored["number"]
    require(
        (last_written == number).any(0),
        "a row that nobody wrote last",
        number,
        last_written[0],
        last_written[-1],
    )
    if isinstance(buffer, kr.PrioritizedReplayBuffer):
        if masses_tell:
            check_masses(number, buffer.tree.get(np.arange(capacity)))
        require(
            np.isclose(buffer.total_mass, buffer.tree.get(np.arange(capacity)).sum(), rtol=1e-12),
            "total",
            buffer.total_mass,
        )
