"""Plays with a trained policy, and films it."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...fields import map_leaves
from ..config import ConfigError
from ..environments.vector import Environments
from ..records.run_directory import PolicyName
from ..workers.evaluator import FIRST_SEED, n_together
from .checkpoint_policy import CheckpointPolicy, checkpoint_policy
from .output import NewFile, check_output, say
from .player import Player

__all__ = ["play"]

GIF_FRAMES_PER_SECOND = 25  # viewers slow down what is faster
GIF_WIDTH, GIF_COLOURS, MOST_GIF_FRAMES = 400, 128, 1500  # for a file that a page can show


def play(
    directory: Path,
    /,
    *,
    which: PolicyName = "best",
    episodes: int = 3,
    seed: int = FIRST_SEED,
    window: bool = False,
    output: Path | None = None,
) -> list[float]:
    """Play with a policy of a run, without exploring; film it, and print the returns.

    Parameters
    ----------
    directory
        Folder of the run.
    which
        best or last: of the run's evaluations; without any it is that of the last checkpoint.
    episodes
        How many to play.
    seed
        Seed of the first episode, the next ones following; by default those of the run's
        evaluations.
    window
        Show it in a window instead of filming it; without output.
    output
        The film, .gif or .mp4; by default DIRECTORY/play.gif.

    Returns
    -------
    list of float
        The return of each episode.
    """
    if episodes < 1 or seed < 0:
        raise ConfigError(
            f"episodes must be at least 1 and seed at least 0, got {episodes} and {seed}"
        )
    if window and output is not None:
        raise ConfigError(f"a window is not filmed: leave window or output={output} out")
    shown = output or directory / "play.gif"
    path = shown.absolute()  # the environment may change the working directory
    found = checkpoint_policy(directory, which)
    if not window:
        _check_output(path)
    env, trouble = _rendered(found.env_factory.evaluation, "human" if window else "rgb_array", seed)
    if trouble and (window or output):
        raise ConfigError(f"{found.config.env_name} cannot be shown: {trouble}")
    film = None if window or trouble else _Film(path, env.metadata.get("render_fps") or 30)
    environments = Environments(lambda: env, 1, np.random.default_rng(seed), found.config.env_name)
    n_rows, max_steps = n_together(found.config), found.config.evaluation_max_steps

    def look() -> None:
        nonlocal trouble
        if film is None or trouble:
            return
        try:
            frame = env.render()
            _check_frame(frame)
        except Exception as error:  # of any graphics library
            trouble = f"rendering failed with {type(error).__name__}: {error}"
            film.give_up()
            return
        film.add(frame)

    returns: list[float] = []
    try:
        say(found.described)
        for episode in range(episodes):
            act = _act_as_in_evaluations(found, episode % n_rows, n_rows)
            played, n_cut = environments.play(act, [seed + episode], max_steps, look)
            look()
            returns += played
            cut = f", cut off after evaluation_max_steps={max_steps:,} steps" if n_cut else ""
            say(f"episode {episode + 1}: return {returns[-1]:.1f}{cut}")
    except BaseException:
        if film is not None:
            with contextlib.suppress(ConfigError):  # what comes first is what is to be said
                film.close()
        raise
    finally:
        environments.close()
    if film is not None and not trouble:
        film.close()
    say(f"mean return {np.mean(returns):.1f} of {episodes} episode{'s' * (episodes > 1)}")
    if trouble and output:
        raise ConfigError(f"{found.config.env_name} cannot be shown: {trouble}")
    if trouble:
        say(f"no film: {trouble}")
    elif film is not None:
        say(
            f"wrote {shown}"
            + (f", the first {MOST_GIF_FRAMES} frames of it" if film.is_full else "")
        )
    return returns


def _check_frame(frame: Any) -> None:
    """Raise TypeError unless a film can have the frame."""
    is_array = isinstance(frame, np.ndarray)
    is_picture = is_array and (frame.ndim == 2 or (frame.ndim == 3 and frame.shape[2] in (3, 4)))
    if not is_picture or frame.dtype != np.uint8:
        what = f"{frame.dtype} {frame.shape}" if is_array else repr(frame)
        raise TypeError(f"a frame must be uint8 [height, width, 3], got {what}")


def _act_as_in_evaluations(
    policy: CheckpointPolicy, row: int, n_rows: int
) -> Callable[[Any], npt.NDArray[Any]]:
    """Return what acts for one environment as it did in the row of a batch.

    How sums are rounded depends on how many rows there are.
    """
    player = Player(policy.algorithm, n_rows)  # whose actions the environments scale

    def act(observation: Any) -> npt.NDArray[Any]:
        batch = map_leaves(observation, lambda part: part.repeat(n_rows, axis=0))
        return player.act(batch)[row : row + 1]

    return act


def _check_output(path: Path) -> None:
    """Raise ConfigError if no film can be written there."""
    check_output(path, ".gif", ".mp4")
    if path.suffix == ".mp4":
        try:
            import imageio_ffmpeg

            imageio_ffmpeg.get_ffmpeg_exe()
        except (ImportError, RuntimeError):
            raise ConfigError(
                f"{path} needs ffmpeg: pip install imageio-ffmpeg, or choose a name that ends in "
                ".gif"
            ) from None


def _rendered(make: Callable[..., Any], mode: str, seed: int) -> tuple[Any, str]:
    """Return an environment that can be seen, and nothing; or one that cannot, and why."""
    env = make()
    if mode not in (env.metadata.get("render_modes") or ()):
        return env, f"it has no render mode {mode}"
    try:
        seen = make(render_mode=mode)
        seen.reset(seed=seed)
        frame = seen.render()
        if mode == "rgb_array":
            _check_frame(frame)
    except Exception as error:  # of any graphics library
        hint = (
            "; on a machine without a screen, try it with MUJOCO_GL=egl"
            if "GL" in str(error)
            else ""
        )
        return env, f"rendering failed with {type(error).__name__}: {error}{hint}"
    with contextlib.suppress(Exception, SystemExit):
        env.close()
    return seen, ""


class _Film:
    """Writes frames to a file, by its ending."""

    def __init__(self, path: Path, frames_per_second: float) -> None:
        self._file, is_gif = NewFile(path), path.suffix == ".gif"
        self._every = math.ceil(frames_per_second / GIF_FRAMES_PER_SECOND) if is_gif else 1
        self._rate = frames_per_second / self._every
        self._seen = 0
        self._frames: list[Any] = []
        self._writer: Any = None
        if not is_gif:
            import imageio.v2

            with self._file.being_written():
                self._writer = imageio.v2.get_writer(self._file.path, fps=self._rate)

    @property
    def is_full(self) -> bool:
        """Whether no more frames are kept."""
        return len(self._frames) >= MOST_GIF_FRAMES

    def add(self, frame: npt.NDArray[np.uint8]) -> None:
        """Take a frame, [height, width, 3]."""
        if self._writer is not None:
            with self._file.being_written():
                try:
                    self._writer.append_data(frame)
                except BaseException:
                    self.give_up()
                    raise
        elif self._seen % self._every == 0 and not self.is_full:
            from PIL import Image

            picture = Image.fromarray(frame)
            width = min(GIF_WIDTH, picture.width)
            picture = picture.resize((width, max(1, round(picture.height * width / picture.width))))
            self._frames.append(picture.quantize(GIF_COLOURS, dither=Image.Dither.NONE))
        self._seen += 1

    def close(self) -> None:
        """Write the file."""
        with self._file.being_written():
            if self._writer is not None:
                self._writer.close()
                self._check_film()
                self._file.complete()
            elif self._frames:
                first, *others = self._frames
                first.save(
                    self._file.path,
                    save_all=True,
                    append_images=others,
                    duration=round(1000 / self._rate),
                    loop=0,
                )
                self._file.complete()

    def _check_film(self) -> None:
        """Raise OSError if ffmpeg has not written all frames, of which it says nothing itself."""
        import imageio_ffmpeg

        try:
            n_frames, _ = imageio_ffmpeg.count_frames_and_secs(str(self._file.path))
        except RuntimeError:
            n_frames = 0
        if n_frames < self._seen:
            raise OSError(f"only {n_frames} of {self._seen} frames of it can be read")

    def give_up(self) -> None:
        """Leave no film."""
        writer, self._writer = self._writer, None
        self._frames.clear()
        with contextlib.suppress(OSError):
            if writer is not None:
                writer.close()
            self._file.path.unlink()
