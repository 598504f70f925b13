"""`turngym envs list`, `turngym envs check ID`, `turngym envs play ID`, `turngym envs serve ID`."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, redirect_stdout
from typing import Any

from ..errors import ConfigError

_PREFIX = "--agent_args."


def main(argv: list[str]) -> int:
    """Run one of the commands; returns the exit code: 0, 1 for problems found, 2 for the user's mistakes."""
    try:
        left, keywords = split_keywords(argv)
        arguments = _parser().parse_args(left, argparse.Namespace(keywords=keywords))
        return int(arguments.run(arguments))
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="turngym envs", description="Look at environments.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    listing = commands.add_parser("list", help="list the environments that are installed")
    listing.set_defaults(run=_list)

    checking = commands.add_parser("check", help="check an environment against the contract")
    _add_environment(checking)
    checking.add_argument("--max_turns", type=int, default=64, help="an episode must end within so many turns")
    checking.add_argument("--timeout_s", type=float, default=60.0, help="deadline of one reset, step or close")
    checking.set_defaults(run=_check)

    playing = commands.add_parser("play", help="step an environment by hand")
    _add_environment(playing)
    playing.add_argument("--split", choices=("train", "eval"), default="train", help="which tasks")
    playing.add_argument("--seed", type=int, default=0, help="seed of the tasks")
    playing.add_argument("--task", type=int, default=0, metavar="N", help="play the N-th task")
    playing.set_defaults(run=_play)

    serving = commands.add_parser("serve", help="serve an environment over HTTP, and over MCP")
    _add_environment(serving)
    serving.add_argument("--host", default="127.0.0.1", help="where to listen; only this machine by default")
    serving.add_argument("--port", type=int, default=8400, help="0 takes any that is free")
    serving.add_argument("--key", help="what clients must know; by default TURNGYM_ENV_KEY, or a new one, printed")
    serving.add_argument("--mcp", action="store_true", help="also serve its tools, or reset and step, at /mcp")
    serving.add_argument("--stdio", action="store_true", help="do not listen; speak MCP by standard input and output")
    serving.add_argument("--lease_s", type=float, default=1800.0, help="sessions unused for so long are closed")
    serving.add_argument("--max_sessions", type=int, default=1024, help="most sessions at once")
    serving.add_argument("--timeout_s", type=float, default=60.0, help="deadline of one reset, step or close")
    serving.set_defaults(run=_serve)
    return parser


def _add_environment(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", help="registered id, module:Class, path/to/file.py:Class or collection/name")
    parser.epilog = f"{_PREFIX}KEY VALUE gives the environment a keyword argument; VALUE is read as YAML."
    parser.add_argument("--dataset", help="tasks from a dataset, as in data.prompt_dataset")
    parser.add_argument("--input_key", default="input", help="column that holds the prompt")
    parser.add_argument("--label_key", help="column that holds the expected answer")


def _list(_: argparse.Namespace) -> int:
    from .registration import COLLECTIONS, registered_ids

    for env_id in registered_ids():
        print(f"{env_id:<24} {_summary(env_id)}")
    for name in COLLECTIONS:
        try:
            members = list(COLLECTIONS[name].names())
        except ImportError as error:  # an optional package is not installed
            print(f"\n{name}/... ({error})")
            continue
        if COLLECTIONS[name].is_open:
            print(f"\n{name}/... (such as {name}/{members[0]})")
            continue
        print(f"\n{name}/... ({len(members)} environments)")
        print(_in_columns(members))
    return 0


def _summary(env_id: str) -> str:
    """Return an environment's first docstring line, or why it cannot be loaded."""
    from .resolution import find

    try:
        docstring = find(env_id, {}).env_class.__doc__
    except (ConfigError, ImportError) as error:
        return f"cannot be loaded: {error}"
    return (docstring or "no description").strip().splitlines()[0]


def _in_columns(names: Sequence[str], width: int = 110) -> str:
    longest = max(map(len, names), default=0) + 2
    per_line = max(1, width // longest)
    lines = [names[start : start + per_line] for start in range(0, len(names), per_line)]
    return "\n".join("  " + "".join(f"{name:<{longest}}" for name in line).rstrip() for line in lines)


def _check(arguments: argparse.Namespace) -> int:
    from .checks import check_env
    from .resolution import resolve

    factory = resolve(arguments.id, parsed_keywords(arguments.keywords))
    problems = check_env(
        factory, _dataset_tasks(arguments), max_turns=arguments.max_turns, timeout_s=arguments.timeout_s
    )
    for problem in problems:
        print(problem)
    errors = sum(problem.severity == "error" for problem in problems)
    print(f"{arguments.id}: {errors} errors, {len(problems) - errors} warnings")
    return 1 if errors else 0


def _play(arguments: argparse.Namespace) -> int:
    from .play import play
    from .resolution import resolve

    factory = resolve(arguments.id, parsed_keywords(arguments.keywords))
    tasks = factory.tasks(arguments.split, arguments.seed, _dataset_tasks(arguments))
    if not 0 <= arguments.task < len(tasks):
        raise ConfigError(f"there is no task {arguments.task}; wanted 0 to {len(tasks) - 1}")
    play(factory, tasks[arguments.task])
    return 0


def _serve(arguments: argparse.Namespace) -> int:
    from .resolution import resolve
    from .serving.command import serve, serve_by_stdio
    from .serving.limits import ServeLimits

    limits = ServeLimits(arguments.lease_s, arguments.max_sessions, arguments.timeout_s)
    # With --stdio standard output is the protocol's alone; a user's file may print when it is imported.
    with redirect_stdout(sys.stderr) if arguments.stdio else nullcontext():
        factory = resolve(arguments.id, parsed_keywords(arguments.keywords))
        tasks = _dataset_tasks(arguments)
    if arguments.stdio:
        return serve_by_stdio(factory, tasks, limits)
    return serve(
        factory,
        tasks,
        host=arguments.host,
        port=arguments.port,
        key=arguments.key,
        limits=limits,
        with_mcp=arguments.mcp,
    )


def _dataset_tasks(arguments: argparse.Namespace) -> Any:
    if arguments.dataset is None:
        return None
    from .datasets import load_tasks

    return load_tasks(arguments.dataset, input_key=arguments.input_key, label_key=arguments.label_key)


def split_keywords(argv: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Take the pairs `--agent_args.KEY VALUE` (or `=VALUE`) out of the arguments."""
    left: list[str] = []
    keywords: dict[str, str] = {}
    arguments = iter(argv)
    for argument in arguments:
        if not argument.startswith(_PREFIX):
            left.append(argument)
            continue
        key, equals, value = argument.removeprefix(_PREFIX).partition("=")
        given = value if equals else next(arguments, None)
        if given is None or not key:
            raise ConfigError(f"{argument} wants a value: {_PREFIX}KEY VALUE")
        keywords[key] = given
    return left, keywords


def parsed_keywords(keywords: Mapping[str, str]) -> dict[str, Any]:
    """Return the values as YAML has them."""
    import yaml

    try:
        return {key: yaml.safe_load(value) for key, value in keywords.items()}
    except yaml.YAMLError as error:
        raise ConfigError(f"values of {_PREFIX}KEY are read as YAML: {error}") from error
