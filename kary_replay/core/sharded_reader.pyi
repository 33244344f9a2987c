from typing import Any

import numpy as np
import numpy.typing as npt

from .reader import Reader

class Plan:
    n: int
    n_missing: int
    is_unique: bool
    was_stratified: bool
    is_broken: bool
    headroom: float
    def drop_repeated(self) -> None: ...
    def end_round(self) -> None: ...

class ShardedReader:
    n_shards: int
    share: float
    distance: float
    def __init__(
        self, readers: list[Reader | None], template: Reader, n_fields: int, seed: int | None
    ) -> None: ...
    def take_over(self, readers: list[Reader | None]) -> None: ...
    def set_share(self, share: float, adapts: bool) -> None: ...
    def noise(self) -> tuple[float, float]: ...
    def state(self) -> list[Any]: ...
    def restore(self, state: list[Any]) -> None: ...
    def learn_errors(
        self, handles: npt.NDArray[np.void], priorities: npt.NDArray[np.float64]
    ) -> None: ...
    def split(
        self, handles: npt.NDArray[np.void], values: npt.NDArray[np.float64]
    ) -> tuple[list[tuple[int, npt.NDArray[np.void], npt.NDArray[np.float64]]], int]: ...
    def learn(self, s: int, total: float, n_rows: float, capacity: int, epoch: int) -> None: ...
    def known(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]: ...
    def has_mass(self) -> bool: ...
    def look(self) -> None: ...
    def plan(
        self, batch_size: int, stratified: bool, unique: bool = False, headroom: float = 0.0
    ) -> Plan: ...
    def assign(self, plan: Plan) -> None: ...
    def columns(self, plan: Plan, out: dict[str, Any] | None = None) -> dict[str, Any]: ...
    def read(self, plan: Plan, arrays: dict[str, Any]) -> None: ...
    def points_for(
        self, plans: list[Plan], s: int
    ) -> tuple[npt.NDArray[np.float64], int, float, float]: ...
    def place(
        self,
        plans: list[Plan],
        s: int,
        columns: list[npt.NDArray[Any]],
        by_mass: npt.NDArray[np.float64],
        by_count: npt.NDArray[np.float64],
        handles: npt.NDArray[np.void],
        arrays: list[dict[str, Any]],
        total: float,
        n_rows: float,
    ) -> None: ...
    def serve(
        self,
        points: npt.NDArray[np.float64],
        n_alike: int,
        planned: float,
        planned_rows: float,
        headroom: float,
    ) -> tuple[
        dict[str, Any],
        npt.NDArray[np.float64],
        npt.NDArray[np.float64],
        npt.NDArray[np.void],
        bool,
    ]: ...
    def finish(self, plan: Plan, beta: float, arrays: dict[str, Any]) -> None: ...
