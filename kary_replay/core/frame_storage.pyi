from .storage import Storage

class FrameStorage(Storage):
    def set_frames(self, n_frame_fields: int, width: int) -> None: ...
