from typing import Any

import numpy as np
import numpy.typing as npt

from .slots import Slots

class Writer:
    def __init__(self, slots: Slots) -> None: ...
    def add(
        self,
        values: dict[str, Any],
        priority: npt.ArrayLike | None = None,
        *,
        checked: npt.NDArray[np.float64] | None = None,
        handles: npt.NDArray[np.void] | None = None,
    ) -> npt.NDArray[np.int64]: ...
    def priorities(self, priority: npt.ArrayLike, n: int) -> npt.NDArray[np.float64]: ...
    def update(self, handle: npt.NDArray[np.void], td_error: npt.ArrayLike) -> int: ...
