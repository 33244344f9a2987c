"""Playing and filming what a run has learned."""

import errno
import importlib.util
import os
import re
import sys

import numpy as np
import pytest
from gymnasium.envs.classic_control import CartPoleEnv
from PIL import Image
from runs import run

from kary_replay.runner import ConfigError
from kary_replay.runner.policies import play


class Unseen(CartPoleEnv):
    """No one has drawn this one."""

    metadata = {}  # noqa: RUF012


class Broken(CartPoleEnv):
    """Whose drawing fails, as where there is no graphics library."""

    def render(self):
        raise RuntimeError("no screen")


class Strange(CartPoleEnv):
    """Whose pictures are none, or no longer."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": None}  # noqa: RUF012

    def __init__(self, kind="none", **options):
        super().__init__(**options)
        self.kind, self.n_frames = kind, 0

    def render(self):
        self.n_frames += 1
        if self.kind == "floats":
            return np.zeros((40, 60, 3), np.float32)
        if self.kind == "raises" and self.n_frames == 5:
            raise RuntimeError("GL context lost")
        return None if self.kind == "none" else np.zeros((40, 60, 3), np.uint8)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    path = tmp_path_factory.mktemp("play") / "run"
    run("dqn", "CartPole-v1", path, total_env_steps=400)
    return path


def trained_on(name, path):
    run("dqn", f"test_play:{name}", path / "run", total_env_steps=120)
    return path / "run"


def test_a_film_is_written(trained, capsys):
    returns = play.play(trained, episodes=2)
    out = capsys.readouterr().out
    assert f"mean return {np.mean(returns):.1f} of 2 episodes" in out and "play.gif" in out
    film = Image.open(trained / "play.gif")
    assert film.format == "GIF" and film.size == (400, 267) and film.info["duration"] == 40
    # Every other frame, since CartPole has 50 a second; identical ones in a row may be one.
    assert sum(returns) / 4 <= film.n_frames <= sum(returns) / 2 + 2


def test_the_same_seeds_give_the_same_episodes(trained, tmp_path):
    played = [
        play.play(trained, episodes=2, seed=seed, output=tmp_path / "x.gif") for seed in (5, 5, 6)
    ]
    assert played[0] == played[1] and played[0][1] == played[2][0]


def test_long_films_are_cut(trained, monkeypatch, capsys):
    monkeypatch.setattr(play, "MOST_GIF_FRAMES", 3)
    play.play(trained, episodes=1)
    assert Image.open(trained / "play.gif").n_frames <= 3
    assert "the first 3 frames" in capsys.readouterr().out


def test_a_film_that_cannot_be_written_is_an_error_in_a_sentence(trained, tmp_path, monkeypatch):
    def half(picture, path, **options):
        path.write_bytes(b"GIF")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Image.Image, "save", half)
    with pytest.raises(ConfigError, match=r"x\.gif cannot be written: .*No space left"):
        play.play(trained, episodes=1, output=tmp_path / "x.gif")
    assert not list(tmp_path.iterdir())
    (tmp_path / "x.gif").write_bytes(b"former")
    with pytest.raises(ConfigError, match="cannot be written"):
        play.play(trained, episodes=1, output=tmp_path / "x.gif")
    (left,) = tmp_path.iterdir()
    assert left.read_bytes() == b"former"


@pytest.mark.parametrize("at", ["opened", "frame", "closed", "cut off", "no film"])
def test_a_film_that_ffmpeg_cannot_write_leaves_the_former_one(trained, tmp_path, monkeypatch, at):
    class Writer:
        closed = 0

        def append_data(self, frame):
            if at == "frame":
                raise OSError("Broken pipe\n\nFFMPEG COMMAND: and so on")

        def close(self):
            Writer.closed += 1
            if at in ("frame", "closed"):
                raise OSError("Broken pipe")

    class Reader:
        @staticmethod
        def count_frames_and_secs(path):
            if at == "no film":
                raise RuntimeError("moov atom not found")
            return 1, 0.1

    def get_writer(path, **options):
        path.write_bytes(b"half")
        if at == "opened":
            raise OSError("Broken pipe")
        return Writer()

    monkeypatch.setattr("imageio.v2.get_writer", get_writer)
    monkeypatch.setattr(play, "_check_output", lambda path: None)
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", Reader)
    (tmp_path / "x.mp4").write_bytes(b"former")
    says = {"cut off": r"only 1 of \d+ frames.*", "no film": r"only 0 of.*"}.get(at, "Broken pipe")
    with pytest.raises(ConfigError, match=rf"x\.mp4 cannot be written: {says}$"):
        play.play(trained, episodes=1, output=tmp_path / "x.mp4")
    (left,) = tmp_path.iterdir()
    assert left.read_bytes() == b"former" and Writer.closed == (at != "opened")


@pytest.mark.parametrize(
    ("name", "message"),
    [("Unseen", "no render mode rgb_array"), ("Broken", "RuntimeError: no screen")],
)
def test_without_pictures_it_plays_and_says_so(name, message, tmp_path, capsys):
    path = trained_on(name, tmp_path)
    assert len(play.play(path, episodes=1)) == 1
    out = capsys.readouterr().out
    assert "mean return" in out and message in out
    assert not list(tmp_path.rglob("*.gif"))
    with pytest.raises(ConfigError, match="cannot be shown"):
        play.play(path, output=tmp_path / "x.gif")


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("none", "TypeError: a frame must be uint8 .height, width, 3., got None"),
        ("floats", r"TypeError: a frame must be .* got float32 \(40, 60, 3\)"),
        ("raises", "RuntimeError: GL context lost"),
        ("pictures", None),
    ],
)
@pytest.mark.parametrize("ending", ["gif", "mp4"])
def test_pictures_that_are_none_cost_the_film_alone(
    kind, message, ending, tmp_path, monkeypatch, capsys
):
    class Writer:
        def append_data(self, frame):
            pass

        def close(self):
            pass

    class Reader:
        @staticmethod
        def count_frames_and_secs(path):
            return 10**6, 1.0

    def get_writer(path, **options):
        path.write_bytes(b"half")
        return Writer()

    monkeypatch.setattr("imageio.v2.get_writer", get_writer)
    monkeypatch.setattr(play, "_check_output", lambda path: None)
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", Reader)
    options = {"env_options": {"kind": kind}, "total_env_steps": 120}
    run("dqn", "test_play:Strange", tmp_path / "run", **options)
    film = tmp_path / "run" / f"play.{ending}"
    output = {"output": film} if ending == "mp4" else {}
    if message and output:
        with pytest.raises(ConfigError, match=f"cannot be shown: .*{message}"):
            play.play(tmp_path / "run", episodes=2, **output)
    else:
        assert len(play.play(tmp_path / "run", episodes=2, **output)) == 2
    out = capsys.readouterr().out
    assert message is None or bool(output) or re.search(f"no film: .*{message}", out)
    assert film.exists() == (message is None) and not list(film.parent.glob(".play*"))


def test_what_ends_the_playing_is_said_and_not_that_there_is_no_film(
    trained, tmp_path, monkeypatch
):
    def full(picture, path, **options):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def break_off(env, action, step=CartPoleEnv.step):
        if env.state[0] > 0.01:
            raise KeyboardInterrupt
        return step(env, action)

    monkeypatch.setattr(Image.Image, "save", full)
    monkeypatch.setattr(CartPoleEnv, "step", break_off)
    with pytest.raises(KeyboardInterrupt):
        play.play(trained, episodes=20, output=tmp_path / "x.gif")
    assert not list(tmp_path.iterdir())


def test_a_window_is_opened_by_the_environment(trained, monkeypatch, capsys):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    before = (trained / "play.gif").exists() and (trained / "play.gif").stat().st_mtime_ns
    assert len(play.play(trained, episodes=1, window=True)) == 1
    assert "wrote" not in capsys.readouterr().out
    assert before == ((trained / "play.gif").exists() and (trained / "play.gif").stat().st_mtime_ns)


@pytest.mark.parametrize(
    "bad",
    [
        {"output": "film.avi"},
        {"output": "nowhere/film.gif"},
        {"output": f"{300 * 'long'}.gif"},
        {"output": "film.gif", "window": True},
        {"episodes": 0},
        {"seed": -1},
    ],
)
def test_bad_arguments(trained, bad, tmp_path):
    if "output" in bad:
        bad = {**bad, "output": tmp_path / bad["output"]}
    with pytest.raises(ConfigError):
        play.play(trained, **bad)
    assert not list(tmp_path.iterdir())


def test_mp4_needs_ffmpeg(trained, tmp_path):
    if importlib.util.find_spec("imageio_ffmpeg") is None:
        with pytest.raises(ConfigError, match="imageio-ffmpeg"):
            play.play(trained, output=tmp_path / "x.mp4")
    else:
        play.play(trained, episodes=1, output=tmp_path / "x.mp4")
        assert (tmp_path / "x.mp4").stat().st_size > 0


def test_a_film_is_made_though_nobody_reads_what_is_said(trained, tmp_path, monkeypatch):
    def fail(*_):
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    monkeypatch.setattr("builtins.print", fail)
    film = tmp_path / "film.gif"
    assert len(play.play(trained, episodes=2, output=film)) == 2 and film.exists()
