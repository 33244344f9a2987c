"""The command line: what it says, what it leaves, how it ends."""

import dataclasses
import json
import os
import re
import shlex
import signal
import subprocess
import sys

import pytest
from PIL import Image
from runs import HANG_SECONDS, wait_until

from kary_replay import cli, fork_server
from kary_replay.algorithms import ALGORITHMS
from kary_replay.runner import RunnerConfig
from kary_replay.runner.config import FOREIGN
from kary_replay.runner.presets import PRESETS
from kary_replay.version import VERSION

SMALL = [
    "--backend",
    "serial",
    "--total-env-steps",
    "400",
    "--learning-starts",
    "100",
    "--envs-per-actor",
    "4",
    "--options.hidden",
    "16",
    "16",
    "--options.batch-size",
    "32",
    "--evaluate",
    "never",
]


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.setenv("COLUMNS", "100")


def started(*arguments, **options):
    """The command in a process of its own."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    # Jobs in a shell's background ignore Ctrl-C, and what they start inherits it.
    pipes["preexec_fn"] = lambda: signal.signal(signal.SIGINT, signal.default_int_handler)
    return subprocess.Popen(
        [sys.executable, "-m", "kary_replay", *arguments], **{**pipes, **options}
    )


REFUSED = {  # arguments, and what the message has
    "": "what shall it do",
    "trian dqn CartPole-v1": "'trian' is no command",
    "train": "needs an algorithm and an environment",
    "train dqn": "needs an environment",
    "train --seed 3 dqn CartPole-v1": "first, then options",
    "train dnq CartPole-v1": "did you mean dqn?",
    "train dqn CartPol-v1": "did you mean CartPole-v1",
    "train dqn Pendulum-v1": "needs discrete actions",
    "train sac CartPole-v1": "needs continuous actions",
    "train dqn no_such_module:f": "cannot be imported",
    "train dqn CartPole-v1 --sed 3": "Perhaps you meant: --seed",
    "train dqn CartPole-v1 --seed": "Missing value for argument '--seed'",
    "train dqn CartPole-v1 --seed x": "invalid literal",
    "train dqn CartPole-v1 --options.double False": (
        "A switch has no value: write --options.double or --options.no-double"
    ),
    "train dqn CartPole-v1 --total-env-steps 1.5": "invalid literal",
    "train dqn CartPole-v1 --total-env-steps 1.55e1": "invalid literal",
    "train dqn CartPole-v1 --total-env-steps 1e-3": "invalid literal",
    "train dqn CartPole-v1 --total-env-steps 1e999999999": "invalid literal",
    "train dqn CartPole-v1 --actors 0": "actors must be",
    "train dqn CartPole-v1 --options.batch-size 7 --learners 2": (
        "learners must divide batch_size=7"
    ),
    "train dqn CartPole-v1 --env-options gravity": "write NAME=VALUE",
    "train dqn CartPole-v1 --env-options no_such_option=1": "could not be made",
    "train dqn CartPole-v1 --env-options a=1 --env-options b=2": "must be given once",
    "train dqn CartPole-v1 --eval-env-options gravity": "write NAME=VALUE",
    "train dqn CartPole-v1 --eval-env-options no_such_option=1": (
        "env='CartPole-v1' with eval_env_options={'no_such_option': 1} could not be made"
    ),
    "train dqn CartPole-v1 --options.learning-rate-final-share 1.5": (
        "learning_rate_final_share must be"
    ),
    "train rainbow CartPole-v1 --options.v-min -20": "such as n_atoms=51 and n_quantiles=1",
    "train dqn CartPole-v1 --directory .": "directory must be new or empty",
    "train dqn CartPole-v1 --resume nowhere": "kary-replay train --resume DIRECTORY",
    "train --resume": "takes the directory of a run",
    "train --resume nowhere": "nowhere is not the directory of a run",
    "train --resume --seed 3": "takes the directory of a run",
    "train --resume nowhere --seed 3": (
        "seed cannot change when a run goes on, only total_env_steps, target_return"
    ),
    "train --resume nowhere --options.learning-rate 1": "options cannot change when a run goes on",
    "train --resume nowhere --target-return 5": "nowhere is not the directory of a run",
    "play nowhere": "nowhere is not the directory of a run",
    "play": "Missing",
    "export nowhere --to sb3": "nowhere is not the directory of a run",
    "export nowhere --to tensorflow": "tensorflow",
    "presets dqn": "takes no arguments",
}


@pytest.mark.parametrize("arguments", REFUSED)
def test_what_cannot_be_done_is_said_in_one_paragraph_and_nothing_is_created(
    arguments, capsys, tmp_path
):
    if "--directory" in arguments:
        (tmp_path / "taken").touch()
    before = list(tmp_path.rglob("*"))
    assert cli.main(arguments.split()) == 2
    out, err = capsys.readouterr()
    assert not out
    assert REFUSED[arguments] in err
    assert re.fullmatch(r"kary-replay: [^\n]+\n", err)
    assert not set(err) & set("╭│╰─")
    assert list(tmp_path.rglob("*")) == before


def test_a_refusal_is_a_paragraph_where_output_is_not_utf8():
    command = [sys.executable, "-m", "kary_replay", "train", "dqn", "CartPole-v1", "--sed", "3"]
    ended = subprocess.run(
        command,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )
    assert ended.returncode == 2
    assert ended.stderr.startswith("kary-replay: Unrecognized options: --sed, 3. Perhaps you meant")
    assert "---" not in ended.stderr


INTEGERS = {
    "1e6": 1_000_000,
    "1_000_000": 1_000_000,
    "1.5E+3": 1_500,
    "2.50e1": 25,
    "12": 12,
    "1e15": 10**15,
}


@pytest.mark.parametrize("word", INTEGERS)
def test_integers_may_be_written_with_an_exponent(word):
    arguments = [
        "dqn",
        "CartPole-v1",
        "--total-env-steps",
        word,
        "--actors",
        "2e0",
        "--prefetch",
        "1e1",
    ]
    arguments += [
        "--options.batch-size",
        "1e2",
        "--options.hidden",
        "1e2",
        "64",
        "--seed",
        "7",
        "--learning-starts",
        "1",
    ]
    settings = cli._config(arguments)
    assert (settings.total_env_steps, settings.actors, settings.prefetch) == (INTEGERS[word], 2, 10)
    assert (settings.options.batch_size, settings.options.hidden, settings.seed) == (
        100,
        (100, 64),
        7,
    )
    assert (
        cli._config(["dqn", "CartPole-v1", "--actors", "auto", "--prefetch", "None"]).actors
        == "auto"
    )


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_help_of_train_shows_every_setting(algorithm, capsys):
    assert cli.main(["train", algorithm, "SomeEnv-v0", "--help"]) == 0
    out = capsys.readouterr().out
    names = [
        field.name
        for field in dataclasses.fields(RunnerConfig)
        if field.name not in ("algorithm", "env", "options")
    ]
    foreign = FOREIGN[ALGORITHMS[algorithm].learns_from]
    assert not [name for name in foreign if f"--{name.replace('_', '-')}" in out]
    names = [name for name in names if name not in foreign]
    names += [
        f"options.{field.name}" for field in dataclasses.fields(ALGORITHMS[algorithm].options_class)
    ]
    missing = [name for name in names if f"--{name.replace('_', '-')}" not in out]
    assert not missing
    assert "--algorithm" not in out and "--env " not in out


@pytest.mark.parametrize("option", ["--alpha", "--buffer-capacity=9", "--no-prefetch"])
def test_settings_of_algorithms_of_the_other_kind_are_named(option, capsys):
    assert cli.main(["train", "ppo", "CartPole-v1", option, "1"]) == cli.REFUSED
    name = option.removeprefix("--").removeprefix("no-").partition("=")[0].replace("-", "_")
    told = capsys.readouterr().err
    assert f"{name} is a setting" in told or name == "prefetch"


def test_the_help_lists_an_algorithm_without_a_docstring(capsys, monkeypatch):
    class Bare(ALGORITHMS["dqn"]):
        name = "bare"

    monkeypatch.setitem(ALGORITHMS, "bare", Bare)
    assert cli.main(["train", "--help"]) == 0
    assert re.search(r"^  bare +\S", capsys.readouterr().out, re.MULTILINE)


def test_the_help_shows_docstrings_and_the_preset(capsys):
    assert cli.main(["train", "dqn", "CartPole-v1", "--help"]) == 0
    text = re.sub(r"[\s│]+", " ", capsys.readouterr().out)
    settings = RunnerConfig("dqn", "CartPole-v1")
    assert (
        "Environment steps of the whole run, over all actors. "
        f"(default: {settings.total_env_steps})" in text
    )
    assert (
        f"Learning rate of Adam, for all networks. (default: {settings.options.learning_rate})"
        in text
    )


def test_other_hyperparameters_are_for_the_environment_with_its_options():
    pytest.importorskip("ale_py")
    options = "--options.learning-rate", "0.01"
    pong, ram = "ALE/Pong-v5", ("--env-options", 'obs_type="ram"')
    prepared, bare = (cli._config(["dqn", pong, *options, *more]) for more in ((), ram))
    assert prepared.options.learning_rate == bare.options.learning_rate == 0.01
    assert prepared.options.hidden == () != bare.options.hidden
    assert bare.env_options == {"obs_type": "ram"}


@pytest.mark.parametrize(
    "arguments",
    [
        "--help",
        "-h",
        "train --help",
        "train dqn --help",
        "play --help",
        "export --help",
        "presets --help",
    ],
)
def test_every_command_explains_itself(arguments, capsys):
    assert cli.main(arguments.split()) == 0
    out, err = capsys.readouterr()
    assert "usage: kary-replay" in out and len(out.splitlines()) >= 3 and not err


def test_help_and_version_need_no_torch():
    code = (
        "import sys; from kary_replay.cli import main; main(sys.argv[1:]); "
        "sys.exit('torch' in sys.modules)"
    )
    for argument in "--help", "--version":
        done = subprocess.run(
            [sys.executable, "-c", code, argument], capture_output=True, text=True, check=True
        )
        assert VERSION in done.stdout or "usage" in done.stdout


def test_a_missing_package_is_named(monkeypatch, capsys):
    find = cli.importlib.util.find_spec
    monkeypatch.setattr(
        cli.importlib.util, "find_spec", lambda name: None if name == "tyro" else find(name)
    )
    assert cli.main(["train", "dqn", "CartPole-v1"]) == 2
    assert 'needs tyro: pip install "kary-replay[runner]"' in capsys.readouterr().err


def test_the_help_keeps_no_line_breaks_of_the_code(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert cli.main(["train", "td3", "Pendulum-v1", "--help"]) == 0
    lines = [line.strip("│ ") for line in capsys.readouterr().out.splitlines()]
    (told,) = (line for line in lines if line.startswith("Updates between two moves"))
    assert "which policy_delay does not change: to move them with the actor, as the paper" in told


@pytest.mark.parametrize("columns", ["80", "200"])
def test_the_presets_are_shown(columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    assert cli.main(["presets"]) == 0
    out = capsys.readouterr().out
    assert "…" not in out
    words = " ".join(out.replace("│", " ").split())
    for (algorithm, env), row in PRESETS.items():
        assert (
            algorithm in words
            and env in words
            and f"total_env_steps={row.get('total_env_steps', 1_000_000)}" in words
        )


def test_values_of_env_options_are_json_or_of_python_or_text():
    words = ["a=true", "b=True", "c=None", "d=4x4", "e=[1, 2]", 'f="True"']
    expected = {"a": True, "b": True, "c": None, "d": "4x4", "e": [1, 2], "f": "True"}
    assert cli._pairs(words) == expected


def test_train_then_resume_play_and_export(tmp_path, capsys):
    assert (
        cli.main(
            ["train", "dqn", "CartPole-v1", *SMALL, "--env-options", "sutton_barto_reward=true"]
        )
        == 0
    )
    assert "done: return" in capsys.readouterr().out
    run = tmp_path / "runs" / "dqn_CartPole-v1_s0"
    settings = json.loads((run / "config.json").read_text())
    assert settings["options"]["hidden"] == [16, 16] and settings["env_options"] == {
        "sutton_barto_reward": True
    }
    assert (
        settings["options"]["learning_rate"]
        == RunnerConfig("dqn", "CartPole-v1").options.learning_rate
    )
    assert cli.main(["train", "--resume", str(run), "--total-env-steps", "600"]) == 0
    assert "after 600 environment steps" in capsys.readouterr().out
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    for arguments in (["--resume", str(run)], [f"--resume={run}", "--total-env-steps", "500"]):
        assert cli.main(["train", *arguments]) == 0
        out = " ".join(capsys.readouterr().out.split())
        assert (
            "is finished: all of its total_env_steps=" in out
            and "done: return" in out
            and "after 600 env" in out
        )
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    assert cli.main(["train", "--resume", str(run), "dqn", "CartPole-v1"]) == 2
    assert cli.main(["train", "--resume", str(run), "--help"]) == 0
    out = capsys.readouterr().out
    assert (
        "--target-return" in out
        and "--total-env-steps" in out
        and "--seed" not in out
        and "(default: 600)" in out
    )
    assert cli.main(["play", str(run), "--episodes", "1"]) == 0
    assert Image.open(run / "play.gif").n_frames > 1
    assert "mean return" in capsys.readouterr().out
    assert cli.main(["export", str(run), "--to", "sb3"]) == 0
    assert (run / "sb3.zip").exists()


def test_settings_follow_from_those_given(tmp_path):
    """As in Python: the evaluation interval from the steps, updates from the batch size."""
    parsed = cli._config(
        ["td3", "Pendulum-v1", "--total-env-steps", "5000", "--options.batch-size", "64"]
    )
    options = dataclasses.replace(RunnerConfig("td3", "Pendulum-v1").options, batch_size=64)
    assert parsed == RunnerConfig("td3", "Pendulum-v1", total_env_steps=5000, options=options)
    assert type(parsed) is RunnerConfig  # which other processes can import


def test_what_sb3_has_no_place_for_is_refused(tmp_path, capsys):
    assert (
        cli.main(["train", "dqn", "CartPole-v1", *SMALL, "--options.dueling", "--directory", "run"])
        == 0
    )
    assert cli.main(["export", "run", "--to", "sb3"]) == 2
    assert "dueling=True" in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.zip"))


def test_a_run_that_fails_ends_with_1(tmp_path, capsys):
    (tmp_path / "breaks.py").write_text(
        "from gymnasium.envs.classic_control import CartPoleEnv\n\nclass Env(CartPoleEnv):\n"
        "    def step(self, action):\n        raise RuntimeError('no more coins')\n"
    )
    assert cli.main(["train", "dqn", "breaks:Env", *SMALL]) == 1
    err = capsys.readouterr().err
    assert err.startswith("kary-replay: ") and "no more coins" in err


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_an_environment_that_exits_as_it_is_closed_ends_nothing(tmp_path, capsys):
    words = "train dqn faulty_envs:make --backend serial --total-env-steps 300 --evaluate never"
    options = "--env-options", "fault=close exits", "--directory", str(tmp_path / "run")
    assert cli.main([*words.split(), *options]) == 0
    assert (tmp_path / "run" / "checkpoint.json").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="there are no workers elsewhere")
def test_a_temporary_folder_with_too_long_a_path_is_refused(tmp_path, monkeypatch, capsys):
    def listen():
        raise OSError("AF_UNIX path too long")

    monkeypatch.setattr(fork_server._SERVER, "ensure_running", listen)
    arguments = "train", "dqn", "CartPole-v1", "--directory", str(tmp_path / "run")
    assert cli.main(arguments) == 2
    err = " ".join(capsys.readouterr().err.split())
    assert err.startswith("kary-replay: no workers can be started: AF_UNIX path too long.")
    assert err.endswith("let TMPDIR name another")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("code", "expected"), [(None, 0), (3, 3), ("goodbye", 1)])
def test_whoever_exits_says_how(code, expected, monkeypatch, capsys):
    def leave(arguments):
        raise SystemExit(code)

    monkeypatch.setattr(cli, "_do", leave)
    assert cli.main([]) == expected
    assert ("goodbye" in capsys.readouterr().err) == (code == "goodbye")


def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path):
    process = started(
        "train", "dqn", "CartPole-v1", *SMALL, "--total-env-steps", "10000000", "--directory", "run"
    )
    wait_until((tmp_path / "run" / "episodes.jsonl").exists)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 130, err
    assert "go on with: kary-replay train --resume run" in out
    assert json.loads((tmp_path / "run" / "checkpoint.json").read_text())["env_steps"] > 0


def test_a_closed_pipe_does_not_end_a_run(tmp_path):
    process = started("train", "dqn", "CartPole-v1", *SMALL, "--directory", "run")
    process.stdout.close()
    said = process.stderr.read()  # matplotlib may say that it looks for fonts
    assert "Traceback" not in said and "BrokenPipe" not in said
    assert process.wait(HANG_SECONDS) == 0
    assert (tmp_path / "run" / "learning_curve.png").exists()


@pytest.mark.parametrize(
    "arguments", [["--version"], ["presets"], ["train", "--help"]], ids=" ".join
)
def test_output_that_nobody_reads_is_no_error(arguments):
    """Standard output is closed, or a pipe that nobody reads, which is written to at once."""
    command = shlex.join([sys.executable, "-m", "kary_replay", *arguments])
    closed = subprocess.run(["sh", "-c", f"{command} >&-"], stderr=subprocess.PIPE, text=True)
    reader, writer = os.pipe()
    os.close(reader)
    process = started(*arguments, stdout=writer, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    os.close(writer)
    _, said = process.communicate()
    assert (closed.returncode, closed.stderr, process.returncode, said) == (0, "", 0, "")
