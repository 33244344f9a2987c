from typing import Any

import numpy as np
import numpy.typing as npt

from .slots import Slots

class Reader:
    def __init__(self, slots: Slots) -> None: ...
    def sample(self, batch_size: int, stratified: bool, unique: bool = False) -> dict[str, Any]: ...
    def gather(
        self, handles: npt.NDArray[np.void], f: int
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]: ...
    def copy_rows(self, first: int, into: npt.NDArray[np.uint8]) -> None: ...
