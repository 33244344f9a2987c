"""Numbers that change as training goes on."""

from __future__ import annotations

from dataclasses import dataclass

from ..validation import as_count, as_real

__all__ = ["LinearSchedule"]


@dataclass(frozen=True)
class LinearSchedule:
    """From ``start`` to ``end`` in a straight line over ``duration`` steps, then ``end``.

    Parameters
    ----------
    start, end : float
        First and last value.
    duration : int
        Steps in between, at least 1; what a step is, the caller says (for the beta of a buffer: a
        transition drawn).

    Raises
    ------
    ValueError, TypeError
        If a value is not a finite number, or the duration not an integer of at least 1.

    Notes
    -----
    A call costs O(1), has no state and may come from any thread. Schaul et al. (2016),
    arXiv:1511.05952, section 3.4, anneal beta like this.

    Examples
    --------
    >>> beta = LinearSchedule(0.4, 1.0, duration=1000)
    >>> beta(0), beta(500), beta(2000)
    (0.4, 0.7, 1.0)
    """

    start: float
    end: float
    duration: int

    def __post_init__(self) -> None:
        for name in ("start", "end"):
            number = as_real(name, getattr(self, name))
            if not -float("inf") < number < float("inf"):
                raise ValueError(f"{name} must be finite, got {number}")
            object.__setattr__(self, name, number)
        object.__setattr__(self, "duration", as_count("duration", self.duration))

    def __call__(self, step: int) -> float:
        """Return the value at ``step``, 0 being the first."""
        fraction = min(max(step / self.duration, 0.0), 1.0)
        return (1.0 - fraction) * self.start + fraction * self.end
