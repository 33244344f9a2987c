from typing import Any

import numpy as np
import numpy.typing as npt

from .slots import Slots

class Writer:
    def __init__(self, slots: Slots) -> None: ...
    def columns(self, values: dict[str, Any]) -> tuple[list[npt.NDArray[Any]], int]: ...
    def add(
        self,
        columns: list[npt.NDArray[Any]],
        n: int,
        priorities: npt.NDArray[np.float64] | None,
        handles: npt.NDArray[np.void] | None = None,
    ) -> npt.NDArray[np.int64]: ...
    def update(self, handle: npt.NDArray[np.void], td_error: npt.ArrayLike) -> int: ...
