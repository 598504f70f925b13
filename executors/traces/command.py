"""`turngym traces view`, `rescore` and `replay`: the words of the command line."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from ...envs.commands import parsed_keywords, split_keywords
from ...errors import ConfigError
from .options import ReplayOptions, RescoreOptions, Selection, ViewOptions


def main(arguments: list[str]) -> int:
    """Run one of the commands and return its exit code: 0, or 1 where a replay differs or no reward came.

    Raises:
        ConfigError: The user's mistake.
    """
    left, keywords = split_keywords(arguments)
    options = _parser().parse_args(left, argparse.Namespace(keywords=keywords))
    if keywords and options.command != "replay":
        raise ConfigError(f"--agent_args.{next(iter(keywords))} is for turngym traces replay")
    try:
        code = _run(options, _selection(options))
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads has seen enough, as `head` has
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code


def _run(options: argparse.Namespace, selection: Selection) -> int:
    run = Path(options.run).expanduser()
    if options.command == "view":
        from .view import view

        how = ViewOptions(options.sort, options.descending, options.limit, options.tokens, options.json)
        return view(run, selection, how, _complain)
    if options.command == "rescore":
        from .rescore import rescore

        new = RescoreOptions(options.remote_url, options.timeout_s, options.model, options.out)
        return rescore(run, selection, new, _complain)
    from .replay import replay

    against = ReplayOptions(options.agent, parsed_keywords(options.keywords), options.model)
    return replay(run, selection, against, _complain)


def _complain(complaint: str) -> None:
    print(f"turngym: {complaint}", file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="turngym traces", description="Show recorded episodes, score them anew, or replay them."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")

    viewing = commands.add_parser("view", help="list episodes, or show one", allow_abbrev=False)
    _add_selection(viewing, "show one whole: STEP/TASK/ATTEMPT")
    viewing.add_argument("--sort", metavar="COLUMN", help="step, task, reward, turns, tokens, seconds, ...")
    viewing.add_argument("--descending", action="store_true", help="highest first")
    viewing.add_argument("--limit", type=int, metavar="N", help="most lines; by default 200, and all with --json")
    viewing.add_argument("--tokens", action="store_true", help="of one episode: ids, logprobs and versions")
    viewing.add_argument("--json", action="store_true", help="one JSON object for each line")

    scoring = commands.add_parser("rescore", help="score episodes by another reward function", allow_abbrev=False)
    _add_selection(scoring, "only one: STEP/TASK/ATTEMPT")
    scoring.add_argument(
        "--reward.remote_url",
        dest="remote_url",
        required=True,
        metavar="URL",
        help="a Python file with reward_func(queries, prompts, labels, **kwargs), or HTTP URLs, comma-separated",
    )
    scoring.add_argument(
        "--reward.timeout_s", dest="timeout_s", type=float, default=180.0, help="deadline of one call: %(default)s"
    )
    _add_model(scoring)
    scoring.add_argument("--out", metavar="FOLDER", help="write the episodes with their new rewards to a new folder")

    replaying = commands.add_parser(
        "replay",
        help="play recorded completions against the environment as it is now",
        allow_abbrev=False,
        epilog="--agent_args.KEY VALUE gives the environment another argument than the run did.",
    )
    _add_selection(replaying, "only one, and show the texts that differ: STEP/TASK/ATTEMPT")
    replaying.add_argument("--agent", metavar="SPEC", help="env:NAME or another form of it; by default the run's")
    _add_model(replaying)
    return parser


def _add_selection(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("run", metavar="RUN", help="a run folder, its trajectories folder or one file of it")
    parser.add_argument("id", metavar="ID", nargs="?", help=what)
    choice = parser.add_argument_group("which episodes")
    choice.add_argument("--split", choices=("train", "eval"), help="of training or of evaluations")
    choice.add_argument("--step", metavar="N", help="one step, or a range of them: 3-7")
    choice.add_argument("--task", metavar="TEXT", help="part of the task's id")
    choice.add_argument("--failed", action="store_true", help="only attempts that failed")
    choice.add_argument("--end_reason", metavar="NAME", help="how it ended, or the kind of its failure")
    choice.add_argument("--min_reward", type=float, metavar="X", help="least reward")
    choice.add_argument("--max_reward", type=float, metavar="X", help="highest reward")
    choice.add_argument("--engine", type=int, metavar="N", help="number of the engine that sampled")
    choice.add_argument("--contains", metavar="TEXT", help="text in a message or failure, small or capital letters")


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--actor.model_name_or_path", dest="model", metavar="MODEL", help="whose tokens these are; by default the run's"
    )


def _selection(options: argparse.Namespace) -> Selection:
    return Selection(
        id=options.id,
        split=options.split,
        steps=None if options.step is None else _steps(options.step),
        task=options.task,
        failed=options.failed,
        end_reason=options.end_reason,
        min_reward=options.min_reward,
        max_reward=options.max_reward,
        engine=options.engine,
        contains=options.contains,
    )


def _steps(text: str) -> tuple[int, int]:
    words: Sequence[str] = text.split("-")
    if len(words) > 2 or not all(word.isdecimal() for word in words) or int(words[0]) > int(words[-1]):
        raise ConfigError(f"--step wants a step or a range such as 3-7, got {text!r}")
    return int(words[0]), int(words[-1])
