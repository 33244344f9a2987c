from typing import Any

import numpy as np
import numpy.typing as npt

from .slots import Slots

class Snapshots(Slots):
    def snapshot(self, known: npt.NDArray[np.uint64] | None = None) -> dict[str, Any]: ...
    def restore(self, state: dict[str, Any]) -> None: ...
    def check_invariants(self) -> None: ...
