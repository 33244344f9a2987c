"""How the cores of a machine are split between actors and learners.

Public are `Allocation` and its `Split`s, which `RunResult.allocation` has.
"""

from .cores import Allocation, Split

__all__ = ["Allocation", "Split"]
