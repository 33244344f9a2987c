import os

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
