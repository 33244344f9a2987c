from collections.abc import Callable
from typing import Any

import numpy.typing as npt

__all__ = ["CODES", "SETS", "WORDS", "Program", "Sequence", "adam", "approach", "in_use", "use"]

CODES: tuple[str, ...]
SETS: tuple[str, ...]
WORDS: int

def use(name: str) -> str: ...
def in_use() -> str: ...

class Program:
    def __init__(
        self, words: npt.ArrayLike, numbers: npt.ArrayLike, n_pieces: int, n_threads: int = 1
    ) -> None: ...
    @property
    def n_operations(self) -> int: ...
    @property
    def n_pieces(self) -> int: ...
    @property
    def n_threads(self) -> int: ...
    def run(self, pieces: list[Callable[[], int]]) -> None: ...
    def __reduce__(self) -> Any: ...

class Sequence:
    def add_program(self, program: Program, places: list[tuple[int, int]]) -> None: ...
    def add_adam(
        self,
        places: list[tuple[int, int]],
        n: int,
        beta1: float,
        beta2: float,
        eps: float,
        n_threads: int = 1,
    ) -> None: ...
    def add_approach(
        self, places: list[tuple[int, int]], n: int, share: float, n_threads: int = 1
    ) -> None: ...
    def run(self, pieces: list[Callable[[], int]], learning_rates: list[float]) -> None: ...
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
    n_threads: int = 1,
) -> None: ...
def approach(to: int, source: int, n: int, share: float, n_threads: int = 1) -> None: ...
