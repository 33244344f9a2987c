from typing import Any

import numpy as np
import numpy.typing as npt

from .reader import Reader
from .types import Field

def as_columns(values: list[Any], names: list[str], fields: list[Field]) -> tuple[list[npt.NDArray[Any]], int]: ...

class Storage(Reader):
    def add(
        self,
        columns: list[npt.NDArray[Any]],
        n: int,
        priorities: npt.NDArray[np.float64] | None,
        handles: npt.NDArray[np.void] | None = None,
    ) -> npt.NDArray[np.int64]: ...
    def update(self, handles: npt.NDArray[np.void], td_errors: npt.NDArray[np.float64], epsilon: float) -> int: ...
