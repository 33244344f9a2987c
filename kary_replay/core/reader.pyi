from typing import Any

import numpy.typing as npt

from .slots import Slots

class Reader:
    def __init__(self, slots: Slots) -> None: ...
    def sample(
        self,
        batch_size: int,
        stratified: bool,
        unique: bool = False,
        out: dict[str, Any] | None = None,
    ) -> dict[str, Any]: ...
    def take(self, index: npt.ArrayLike) -> dict[str, Any]: ...
