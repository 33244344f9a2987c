"""Buffers to be saved, and what has to be equal when they come back."""

import numpy as np

import kary_replay as kr

FIELDS = {
    "number": kr.Field((), "int64"),
    "nested": {"shape": kr.Field((3,), "float32"), "dtype": {"deep": kr.Field((2, 1), "bool")}},
    "größe \U0001f642": kr.Field((5,), "uint8"),
}


def rows(first, n):
    number = np.arange(first, first + n)
    nested = {
        "shape": np.repeat(number[:, None], 3, 1),
        "dtype": {"deep": np.repeat(number[:, None, None] % 2 == 1, 2, 1)},
    }
    return {
        "number": number,
        "nested": nested,
        "größe \U0001f642": np.repeat(number[:, None] % 256, 5, 1),
    }


def used_buffer(kind=kr.PrioritizedReplayBuffer, n_rows=13, capacity=10, **options):
    """A buffer that was reset once, wrapped around, and has drawn."""
    buffer = kind(capacity, FIELDS, seed=5, **options)
    for n in (3, n_rows):
        buffer.reset()
        buffer.add(**rows(n, n))
        batch = buffer.sample(6)
        if kind is kr.PrioritizedReplayBuffer:
            buffer.update_priorities(batch.handle, np.linspace(-2.0, 3.0, 6))
    return buffer


def state(buffer):
    """Everything, as bytes. Not a pickle's: those tell equal objects from one object."""
    return b"\n".join(_parts(buffer.__getstate__()))


def _parts(value):
    if isinstance(value, dict):
        for name, part in value.items():
            yield repr(name).encode()
            yield from _parts(part)
    elif isinstance(value, np.ndarray):
        yield repr((value.dtype.str, value.shape)).encode()
        yield value.tobytes()
    else:
        yield repr(value).encode()


def same_batch(one, two):
    assert list(one.keys()) == list(two.keys())
    for name in one.keys() - {"nested"}:
        assert one[name].tobytes() == two[name].tobytes(), name
    assert one.nested["shape"].tobytes() == two.nested["shape"].tobytes()
    assert one.nested["dtype"]["deep"].tobytes() == two.nested["dtype"]["deep"].tobytes()


def listing(directory):
    """Every path below, with what it holds."""
    return {path: path.read_bytes() if path.is_file() else None for path in directory.rglob("*")}
