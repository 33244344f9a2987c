from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from .slots import Slots

class Snapshots(Slots):
    @property
    def n_touched(self) -> int: ...
    @property
    def offsets(self) -> list[int]: ...
    def changed(self, copied: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]: ...
    def snapshot(self, known: npt.NDArray[np.uint64] | None = None) -> dict[str, Any]: ...
    def restore(
        self,
        state: dict[str, Any],
        read_rows: Callable[[npt.NDArray[np.uint8]], None] | None = None,
    ) -> None: ...
    def check_invariants(self) -> None: ...
