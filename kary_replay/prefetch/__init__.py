"""Batches as torch tensors, drawn and brought to their device by a thread, while the learner trains on the one before.

Importing this package imports torch; ``import kary_replay`` does not.
"""

from .prefetcher import Prefetcher

__all__ = ["Prefetcher"]
