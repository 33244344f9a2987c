import numpy as np
import numpy.typing as npt

def fold(
    streams: npt.NDArray[np.int64],
    n_steps: npt.NDArray[np.int64],
    returns: npt.NDArray[np.float64],
    power: npt.NDArray[np.float64],
    limit: float,
    reward: npt.NDArray[np.float64],
    terminated: npt.NDArray[np.bool_],
    truncated: npt.NDArray[np.bool_],
) -> tuple[
    npt.NDArray[np.int64],
    npt.NDArray[np.float64],
    npt.NDArray[np.int64],
    npt.NDArray[np.int64],
    npt.NDArray[np.int64],
    npt.NDArray[np.float64],
    npt.NDArray[np.float64],
]: ...
