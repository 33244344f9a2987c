import os
from typing import Any

import numpy as np
import numpy.typing as npt

from ..types import Field
from .reader import Reader
from .slots import Slots
from .writer import Writer

class Storage:
    def __init__(
        self,
        capacity: int,
        names: list[str],
        fields: list[Field],
        selection: int,
        seed: int | None,
        shared: bool = False,
        directory: str | os.PathLike[str] | None = None,
        file: int = -1,
        frames: tuple[int, int] | None = None,
    ) -> None: ...
    @property
    def slots(self) -> Slots: ...
    @property
    def reader(self) -> Reader: ...
    @property
    def writer(self) -> Writer: ...
    def add(
        self,
        columns: list[npt.NDArray[Any]],
        n: int,
        priorities: npt.NDArray[np.float64] | None,
        handles: npt.NDArray[np.void] | None = None,
    ) -> npt.NDArray[np.int64]: ...
