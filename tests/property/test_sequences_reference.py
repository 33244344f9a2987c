"""SequenceWriter against the reference: any environments, ends, lengths, periods, burn-ins."""

from hypothesis import given
from hypothesis import strategies as st
from sequence_writers import check_against_reference

import kary_replay as kr

EVENT = st.sampled_from(["step"] * 9 + ["skip", "reset", "terminated", "truncated", "both"])
ROUNDS = st.integers(1, 4).flatmap(
    lambda n: st.lists(st.lists(EVENT, min_size=n, max_size=n), min_size=1, max_size=40)
)
SHAPE = st.integers(1, 9).flatmap(
    lambda n: st.tuples(st.just(n), st.integers(1, n), st.integers(0, n - 1))
)


@given(shape=SHAPE, pad_start=st.booleans(), events=ROUNDS, backwards=st.booleans())
def test_any_streams_against_the_reference(shape, pad_start, events, backwards):
    check_against_reference(kr.SequenceWriter, *shape, pad_start, events, backwards)
