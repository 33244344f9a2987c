from .reader import Reader
from .slots import Slots

class FrameReader(Reader):
    def __init__(self, slots: Slots, n_frame_fields: int, width: int) -> None: ...
