from collections.abc import Callable
from typing import Any

import numpy.typing as npt

__all__ = ["SETS", "WORDS", "Program", "adam", "approach", "in_use", "use"]

SETS: tuple[str, ...]
WORDS: int

def use(name: str) -> str: ...
def in_use() -> str: ...

class Program:
    def __init__(self, words: npt.ArrayLike, numbers: npt.ArrayLike, n_pieces: int) -> None: ...
    @property
    def n_operations(self) -> int: ...
    @property
    def n_pieces(self) -> int: ...
    def run(self, pieces: list[Callable[[], int]]) -> None: ...
    def __reduce__(self) -> Any: ...

def adam(
    parameters: int,
    gradient: int,
    mean: int,
    square: int,
    n: int,
    n_steps: int,
    learning_rate: float,
    beta1: float,
    beta2: float,
    eps: float,
) -> None: ...
def approach(to: int, source: int, n: int, share: float) -> None: ...
