from typing import Any

import numpy as np
import numpy.typing as npt

from .slots import Slots
from .types import Field

def as_columns(values: list[Any], names: list[str], fields: list[Field]) -> tuple[list[npt.NDArray[Any]], int]: ...

class Storage(Slots):
    def add(
        self, columns: list[npt.NDArray[Any]], n: int, priorities: npt.NDArray[np.float64] | None
    ) -> npt.NDArray[np.int64]: ...
    def update(self, handles: npt.NDArray[np.void], td_errors: npt.NDArray[np.float64], epsilon: float) -> int: ...
    def sample(self, batch_size: int, stratified: bool, beta: float) -> dict[str, Any]: ...
