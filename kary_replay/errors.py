"""The errors that users can meet. Each is raised before anything has changed."""

__all__ = [
    "AttachError",
    "CheckpointError",
    "ClosedError",
    "EmptyBufferError",
    "FieldError",
    "IndexRangeError",
    "KaryReplayError",
    "RateLimiterTimeoutError",
    "ShardError",
    "ShardLostError",
]


class KaryReplayError(Exception):
    """The base class of all errors of buffers and their shards."""


class AttachError(KaryReplayError, OSError):
    """A shared buffer cannot be attached to.

    The buffer is gone, the descriptor belongs to another one, the buffer is on another machine or
    in another container, or another version of kary-replay made it.
    """


class CheckpointError(KaryReplayError, ValueError):
    """A checkpoint is damaged, or the directory holds no checkpoint that can be loaded here."""


class ClosedError(KaryReplayError, ValueError):
    """The buffer or the prefetcher has been closed."""


class EmptyBufferError(KaryReplayError, ValueError):
    """There is nothing to draw: no row has been added yet, or every mass is zero."""


class FieldError(KaryReplayError, TypeError, ValueError):
    """The fields handed to ``add`` do not fit the buffer.

    A field is unknown, is missing, has the wrong shape, or has a dtype that cannot be cast safely.
    The error is a TypeError, for wrong keywords, and a ValueError, for wrong data.
    """


class IndexRangeError(KaryReplayError, IndexError, ValueError):
    """An index is negative or is not below the capacity."""


class RateLimiterTimeoutError(KaryReplayError, TimeoutError):
    """A caller that adds or draws has waited too long for the other side.

    The other side lags behind the ratio that the rate limiter holds, or has stopped.
    """


class ShardError(KaryReplayError, ValueError):
    """A shard refuses what it was asked, or does not speak as shards of this version do."""


class ShardLostError(KaryReplayError, ConnectionError):
    """A shard cannot be reached any more, or has come back without its rows."""
