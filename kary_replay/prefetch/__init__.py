"""The prefetcher, whose thread draws the next batch while the learner trains on the last one.

Importing this package imports torch; ``import kary_replay`` does not.
"""

from .prefetcher import Prefetcher

__all__ = ["Prefetcher"]
