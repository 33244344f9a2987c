from typing import Any

from .slots import Slots

class Reader:
    def __init__(self, slots: Slots) -> None: ...
    def sample(self, batch_size: int, stratified: bool, unique: bool = False) -> dict[str, Any]: ...
