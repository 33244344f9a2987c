"""The command line, ``kary-replay``: train, play, export, presets.

Options are the fields of `kary_replay.runner.RunnerConfig`, with the preset of the algorithm and
environment as defaults. Exit codes: 0; 1 if a run failed; 2 if what was asked for cannot be done,
and nothing was created; 130 after Ctrl-C.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import importlib.util
import inspect
import io
import json
import os
import re
import sys
import textwrap
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast, get_type_hints

from .version import VERSION

__all__ = ["main"]

# of the extra [runner]
PACKAGES = ("torch", "gymnasium", "tyro", "rich", "tensorboard", "matplotlib", "imageio", "PIL")
FAILED, REFUSED, INTERRUPTED = 1, 2, 130
PYTHONS = {"True": True, "False": False, "None": None}  # which JSON spells otherwise

T = TypeVar("T")

USAGE = """usage: kary-replay COMMAND ...

  kary-replay train ALGORITHM ENV [OPTIONS]   train, with actors and learners on all cores
  kary-replay train --resume DIRECTORY        go on with a run from its last checkpoint
  kary-replay play DIRECTORY [OPTIONS]        play with a trained policy, and film it
  kary-replay export DIRECTORY --to sb3       make a Stable-Baselines3 model of a trained policy
  kary-replay presets                         show the settings that tasks begin with
  kary-replay --version
  python -m kary_replay                       show versions, and the machine

Every command explains itself with --help; "kary-replay train dqn CartPole-v1 --help" has all
settings of that run.
"""

TRAIN_USAGE = """usage: kary-replay train ALGORITHM ENV [OPTIONS]
       kary-replay train --resume DIRECTORY [OPTIONS]

ALGORITHM is one of these:
{algorithms}

ENV is the id of a gymnasium environment, such as CartPole-v1, or module:function for a function
that makes one.

The options, and what they are by default, depend on both: "kary-replay train dqn CartPole-v1
--help" lists them, for example --total-env-steps, --target-return, --actors, --seed, --directory,
and hyperparameters such as --options.learning-rate. A run is kept in runs/ALGORITHM_ENV_sSEED: its
settings, curves and last checkpoint. Ctrl-C ends it with a checkpoint, and --resume goes on from
there. A run that is finished goes on if --total-env-steps or --target-return gives it more to do;
"kary-replay train --resume DIRECTORY --help" lists what else can change.
"""


TRAIN_HELP = "Train. The defaults shown are those of this algorithm on this environment."
RESUME_HELP = (
    "Go on with a run. The defaults shown are those that it has; no other settings can change."
)


class _RefusedError(Exception):
    """What was asked for cannot be done; the message is for the user."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the arguments say; return the exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # which may know ASCII alone
            stream.reconfigure(errors="replace")
    try:
        return _do(list(sys.argv[1:] if arguments is None else arguments))
    except _RefusedError as error:
        _complain(" ".join(str(error).split()))  # libraries' own messages may have many lines
        return REFUSED
    except KeyboardInterrupt:
        _complain("interrupted")
        return INTERRUPTED
    except BrokenPipeError:  # who reads the output has seen enough
        _give_up_output()
        return 0
    except SystemExit as end:  # after --help
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        _complain(str(end.code))
        return FAILED
    finally:
        _flush()


def _do(arguments: list[str]) -> int:
    commands = {"train": _train, "play": _play, "export": _export, "presets": _presets}
    if not arguments:
        raise _RefusedError(f"what shall it do? {', '.join(commands)}: see kary-replay --help")
    command, *rest = arguments
    if command in ("-h", "--help"):
        print(USAGE, end="")
        return 0
    if command == "--version":
        print(f"kary-replay {VERSION}")
        return 0
    if command not in commands:
        raise _RefusedError(
            f"{command!r} is no command of kary-replay: it has {', '.join(commands)}; "
            "see kary-replay --help"
        )
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise _RefusedError(
            f'kary-replay {command} needs {", ".join(missing)}: pip install "kary-replay[runner]"'
        )
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # for module:function
    has_workers = sys.platform == "linux" and command == "train"
    if has_workers and not {"-h", "--help", "serial", "--backend=serial"} & set(rest):
        from . import fork_server

        with contextlib.suppress(OSError):  # a runner says why
            fork_server.start()  # it imports torch while this process does
    from .runner import ConfigError, RunFailedError
    from .runner.environments.vector import EnvironmentFaultError

    try:
        return commands[command](rest)
    except ConfigError as error:
        raise _RefusedError(str(error)) from None
    except (RunFailedError, EnvironmentFaultError) as error:
        _complain(str(error))
        return FAILED


def _train(arguments: list[str]) -> int:
    from .algorithms import ALGORITHMS
    from .runner import Runner
    from .runner.records.display import number

    if not arguments:
        raise _RefusedError(
            "train needs an algorithm and an environment: see kary-replay train --help"
        )
    if arguments[0] in ("-h", "--help"):
        width = max(map(len, ALGORITHMS))
        names = "\n".join(
            f"  {name:{width}} {(inspect.getdoc(cls) or name).splitlines()[0]}\n"
            f"  {'':{width}} {cls.paper}"
            for name, cls in ALGORITHMS.items()
        )
        print(TRAIN_USAGE.format(algorithms=names), end="")
        return 0
    if arguments[0].partition("=")[0] == "--resume":
        runner = _resumed(
            [part for part in (arguments[0].partition("=")[2], *arguments[1:]) if part]
        )
    else:
        runner = Runner(_config(arguments))
    here = Path.cwd()  # which environments may change
    result = runner.run()
    directory = result.directory
    if directory.is_relative_to(here):
        directory = directory.relative_to(here)
    outcome = "interrupted" if result.interrupted else "done"
    if not result.interrupted:
        last = f"all of it is in {directory}; to watch it: kary-replay play {directory}"
    elif (result.directory / "checkpoint.json").exists():
        last = f"go on with: kary-replay train --resume {directory}"
    elif result.env_steps:
        last = f"there is no checkpoint in {directory}"
    else:
        last = "it had not begun, and nothing is kept"
    with contextlib.suppress(OSError):  # if nobody reads it
        best = (
            f", the best {number(result.best_return)} at step {result.best.env_steps:,},"
            if result.best
            else ""
        )
        print(
            f"{outcome}: return {number(result.last_return)}{best} "
            f"after {result.env_steps:,} environment steps, "
            f"{result.updates:,} updates and {result.wall_seconds:.1f} s\n{last}"
        )
    return INTERRUPTED if result.interrupted else 0


def _config(arguments: list[str]) -> Any:
    """Return the configuration that the arguments of train describe."""
    from .runner import RunnerConfig
    from .runner.config import FOREIGN, check_algorithm, check_kind

    algorithm, *rest = arguments
    if algorithm.startswith("-"):
        raise _RefusedError(
            "train takes the algorithm and the environment first, then options: "
            "see kary-replay train --help"
        )
    check_algorithm(algorithm)
    if rest[:1] in (["-h"], ["--help"]):
        rest = ["ENV", *rest]
    if not rest or rest[0].startswith("-"):
        raise _RefusedError(
            f"train {algorithm} needs an environment next: see kary-replay train --help"
        )
    env, *options = rest
    if any(word.partition("=")[0] == "--resume" for word in options):
        raise _RefusedError(
            "--resume comes first, for the run has an algorithm and an environment: "
            "kary-replay train --resume DIRECTORY"
        )
    for name in ("--env-options", "--eval-env-options"):
        if sum(word.partition("=")[0].replace("_", "-") == name for word in options) > 1:
            raise _RefusedError(f"{name} must be given once, with all its NAME=VALUE")
    preset = RunnerConfig(algorithm, env)
    check_kind(algorithm, _given(options))
    hidden = ("algorithm", "env", *FOREIGN[preset.learns_from])
    asked = options, f"train {algorithm} {env}", TRAIN_HELP, hidden
    settings = _settings(preset, *asked)
    if "env_options" in settings:  # which other hyperparameters may be for
        preset = RunnerConfig(algorithm, env, settings["env_options"])
        settings = _settings(preset, *asked)
    return RunnerConfig(algorithm, env, **settings)


def _resumed(arguments: list[str]) -> Any:
    """Return the runner that goes on with a run as the arguments after --resume say."""
    from .runner import Runner, RunnerConfig
    from .runner.records.run_directory import RunDirectory
    from .runner.resumption import CHANGEABLE, check_changeable

    if not arguments or arguments[0].startswith("-"):
        raise _RefusedError(
            "--resume takes the directory of a run, then options: see kary-replay train --help"
        )
    directory, *options = arguments
    names = [field.name for field in dataclasses.fields(RunnerConfig)]
    check_changeable(_given(options) & set(names))
    _, config = RunDirectory.existing(Path(directory))
    hidden = [name for name in names if name not in CHANGEABLE]
    changes = _settings(config, options, f"train --resume {directory}", RESUME_HELP, hidden)
    return Runner.resume(directory, **changes)


def _settings(
    config: Any, options: list[str], command: str, description: str, hidden: Sequence[str]
) -> dict[str, Any]:
    """Return the settings that were given, for some of the others follow from them.

    The help shows those of ``config``.
    """
    import tyro

    from .runner import RunnerConfig

    pairs = tyro.constructors.PrimitiveConstructorSpec(
        nargs="*",
        metavar="NAME=VALUE",
        instance_from_str=_pairs,
        is_instance=lambda value: isinstance(value, dict),
        str_from_instance=lambda value: [
            f"{key}={json.dumps(part)}" for key, part in value.items()
        ],
    )
    types = {
        **get_type_hints(RunnerConfig),
        "env": str,
        **dict.fromkeys(("env_options", "eval_env_options"), Annotated[dict[str, Any], pairs]),
    }
    special = [name for name in types if name in hidden or name.endswith("env_options")]
    fields: list[Any] = [
        (
            name,
            Annotated[types[name] | None, tyro.conf.Suppress] if name in hidden else types[name],
            dataclasses.field(default=None),
        )
        for name in special
    ]
    # RunnerConfig checks itself, below: what it says fits in one line.
    shown = _explained(RunnerConfig, fields, __post_init__=lambda self: None)
    values = _fields_of(config)
    hyperparameters = type(config.options)
    explained = _explained(hyperparameters)(**_fields_of(config.options))
    default = shown(**{**values, "options": explained})
    parsed = _fields_of(_parsed(shown, options, command, description, default=default))
    parsed["options"] = hyperparameters(**_fields_of(parsed["options"]))
    return {name: parsed[name] for name in values if {name, f"no_{name}"} & _given(options)}


def _fields_of(instance: Any) -> dict[str, Any]:
    """Return the fields of a dataclass, as they are."""
    return {field.name: getattr(instance, field.name) for field in dataclasses.fields(instance)}


def _explained(cls: type, fields: Sequence[Any] = (), **namespace: Any) -> Any:
    """Return a subclass whose docstring has those of all fields, each in a single line.

    Of indented ones tyro would keep the line breaks.
    """
    said: dict[str, str] = {}
    for base in filter(dataclasses.is_dataclass, reversed(cls.__mro__)):
        with contextlib.suppress(OSError):  # typed into an interpreter
            said |= _attribute_docstrings(base)
    lines = [f":param {name}: {' '.join(text.split())}" for name, text in said.items()]
    return dataclasses.make_dataclass(
        cls.__name__,
        fields,
        bases=(cls,),
        frozen=True,
        namespace={"__doc__": "\n".join(lines), **namespace},
    )


def _attribute_docstrings(cls: type) -> dict[str, str]:
    """Return the strings that stand below the attributes of a class."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    body = cast(ast.ClassDef, definition).body
    return {
        cast(ast.Name, attribute.target).id: str(text.value.value)
        for attribute, text in pairwise(body)
        if isinstance(attribute, ast.AnnAssign)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
    }


def _given(options: Sequence[str]) -> set[str]:
    """Return the names of the settings that options give."""
    return {
        word[2:].partition("=")[0].partition(".")[0].replace("-", "_")
        for word in options
        if word.startswith("--")
    }


def _play(arguments: list[str]) -> int:
    from .runner.policies.play import play

    return _call(play, arguments)


def _export(arguments: list[str]) -> int:
    from .runner.policies.export import export

    return _call(export, arguments)


def _presets(arguments: list[str]) -> int:
    from rich.console import Console
    from rich.table import Table

    from .runner.presets import PRESETS, REPLAY, ROLLOUTS

    if arguments:
        if arguments[0] not in ("-h", "--help"):
            raise _RefusedError(f"presets takes no arguments, got {' '.join(arguments)}")
        print(
            "usage: kary-replay presets\n\n"
            "Show the settings that tasks begin with, where they differ from the defaults."
        )
        return 0
    table = Table(
        caption="An environment's row is added to its algorithm's row *, and that to the first.",
        caption_justify="left",
    )
    for name in ("algorithm", "environment", "settings"):
        table.add_column(name, overflow="fold")
    common = {("from replay", "*"): REPLAY, ("from rollouts", "*"): ROLLOUTS}
    for (algorithm, env), row in {**common, **PRESETS}.items():
        settings = {key: value for key, value in row.items() if key != "options"}
        settings |= {f"options.{key}": value for key, value in row.get("options", {}).items()}
        table.add_row(
            algorithm,
            env,
            ", ".join(f"{key}={value}" for key, value in settings.items()) or "–",
            end_section=True,
        )
    console = Console()
    with console.capture() as shown:  # its own way of writing ends programs whose output is a pipe
        console.print(table)
    print(shown.get(), end="")
    return 0


def _call(function: Callable[..., Any], arguments: list[str]) -> int:
    """Call the function of a command with what the arguments say."""

    @functools.wraps(function)
    def later(*values: Any, **options: Any) -> Callable[[], Any]:
        return lambda: function(*values, **options)

    _parsed(later, arguments, function.__name__)()
    return 0


def _parsed(
    target: Callable[..., T],
    arguments: list[str],
    command: str,
    description: str | None = None,
    **options: Any,
) -> T:
    """Return what tyro makes of the arguments."""
    import tyro

    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors), _integers():
            result: T = tyro.cli(
                target,
                args=arguments,
                prog=f"kary-replay {command}",
                description=description,
                **options,
            )
            return result
    except SystemExit as end:
        if not end.code:
            raise
        refusal = _paragraph(errors.getvalue())
        if "Unrecognized" in refusal and {"true", "false"} & {word.lower() for word in arguments}:
            refusal += ". A switch has no value: write --options.double or --options.no-double"
        raise _RefusedError(refusal) from None


def _paragraph(box: str) -> str:
    """Return what stands in a box, in one paragraph; without its title.

    Where output is not UTF-8 the title has a line of its own, and another below it.
    """
    drawn = box.splitlines()[0 if "│" in box else 2 :]
    lines = [re.sub(r"^│|│$", "", line).strip() for line in drawn if line[:1] not in "╭╰"]
    parts = " ".join(". " if line and set(line) <= set("─-") else line for line in lines)
    return (
        re.sub(r"\s+", " ", parts)
        .replace(" . ", ". ")
        .replace("..", ".")
        .replace(":.", ":")
        .strip()
    )


def _integers() -> Any:
    """Return the registry by which tyro reads integers as `_integer` does."""
    import tyro

    registry = tyro.constructors.ConstructorRegistry()

    @registry.primitive_rule
    def rule(kind: Any) -> Any:
        if kind.type is not int:
            return None
        return tyro.constructors.PrimitiveConstructorSpec(
            nargs=1,
            metavar="INT",
            instance_from_str=lambda words: _integer(words[0]),
            str_from_instance=lambda n: [str(n)],
            is_instance=lambda value: isinstance(value, int) and not isinstance(value, bool),
        )

    return registry


def _integer(word: str) -> int:
    """Return an integer, also one that is written 1_000_000 or 1e6."""
    try:
        return int(word)
    except ValueError:
        found = re.fullmatch(r"([+-]?\d+)(?:\.(\d+))?[eE]\+?(\d{1,2})", word)
        if found is None:
            raise
        whole, part, exponent = found[1], (found[2] or "").rstrip("0"), int(found[3])
        if len(part) > exponent:
            raise
        return int(whole + part + "0" * (exponent - len(part)))


def _pairs(words: list[str]) -> dict[str, Any]:
    """Return NAME=VALUE words as a dict; values are of JSON, or of Python's spelling, or text."""
    result: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.isidentifier():
            raise ValueError(f"write NAME=VALUE, not {word!r}")
        try:
            result[name] = json.loads(value)
        except ValueError:
            result[name] = PYTHONS.get(value, value)
    return result


def _complain(message: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        print(f"kary-replay: {message}", file=sys.stderr)


def _flush() -> None:
    """Write out what is left; Python shall not complain at exit if nobody reads it any more."""
    try:
        if sys.stdout is not None:  # as it is where standard output is closed
            sys.stdout.flush()
    except OSError:
        _give_up_output()


def _give_up_output() -> None:
    """Let what is written from now on go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
