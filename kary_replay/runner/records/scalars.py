"""Numbers for TensorBoard, against environment steps."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["Scalars"]


class Scalars:
    """An events file in a directory.

    Parameters
    ----------
    path : Path
        The directory.
    known_until : int
        TensorBoard forgets what an earlier run wrote there after this step; 0: there is none.
    """

    available = importlib.util.find_spec("tensorboard") is not None

    def __init__(self, path: Path, known_until: int) -> None:
        self._path, self._known_until = path, known_until
        self._writer: Any = None

    def write(self, values: Mapping[str, float], env_steps: int) -> None:
        """Write some numbers; NaN is left out."""
        if not self.available:
            return
        if self._writer is None:
            self.available = False  # it is not tried again
            from torch.utils.tensorboard import SummaryWriter

            self.available = True
            purge_step = self._known_until + 1 if self._known_until else None
            self._writer = SummaryWriter(str(self._path), purge_step=purge_step)
        for name, value in values.items():
            if not math.isnan(value):
                self._writer.add_scalar(name, value, env_steps)

    def close(self) -> None:
        """Write what is left."""
        if self._writer is not None:
            self._writer.close()
