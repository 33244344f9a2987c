from typing import Any

import numpy.typing as npt

def gather(arrays: list[npt.NDArray[Any]], index: npt.ArrayLike) -> list[npt.NDArray[Any]]: ...
