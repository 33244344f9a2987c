"""The errors users can meet, each raised before anything has changed."""

__all__ = [
    "AttachError",
    "CheckpointError",
    "ClosedError",
    "EmptyBufferError",
    "FieldError",
    "IndexRangeError",
    "KaryReplayError",
    "RateLimiterTimeoutError",
]


class KaryReplayError(Exception):
    """Base class of the errors below."""


class AttachError(KaryReplayError, OSError):
    """A shared buffer cannot be reached: it is gone, another one, on another machine, or of another version."""


class CheckpointError(KaryReplayError, ValueError):
    """A saved buffer is damaged, or is none."""


class ClosedError(KaryReplayError, ValueError):
    """The buffer has been closed."""


class EmptyBufferError(KaryReplayError, ValueError):
    """Nothing to draw from: no row has been added yet, or every mass is zero."""


class FieldError(KaryReplayError, TypeError, ValueError):
    """The fields handed to ``add`` do not fit the buffer.

    A field is unknown or missing, has the wrong shape, or a dtype that cannot be cast safely. It is
    both a TypeError (the keywords of the call are wrong) and a ValueError (the data are).
    """


class IndexRangeError(KaryReplayError, IndexError, ValueError):
    """An index is negative, or not below the capacity."""


class RateLimiterTimeoutError(KaryReplayError, TimeoutError):
    """Whoever adds or draws waited too long for the other side, which lags behind the ratio or has stopped."""
