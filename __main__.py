"""The command line: `turngym COMMAND ...`, also as `python -m turngym`."""

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from .errors import ConfigError, TurnGymError, UnknownNameError
from .registry import nearest

USAGE = """\
usage: turngym COMMAND ...

  train       train a language model in an environment      turngym train --help
  eval        score a model on held-out tasks               turngym eval --help
  envs        list environments, check one, or play it      turngym envs --help
  traces      list recorded episodes, score them anew, or   turngym traces --help
              replay them
  serve-rm    serve a reward model over HTTP                turngym serve-rm --help
  merge-lora  merge an adapter into its base model          turngym merge-lora --help
  doctor      say why a run's reward is flat or unstable    turngym doctor --help
              say which sandboxes work here, and test one   turngym doctor sandbox --help

  --help, --version
"""


def _train(arguments: list[str]) -> int:
    from .config import parse_train, to_yaml

    config = parse_train(arguments)
    from .learner.run.train import train

    code = train(config, to_yaml(config))
    if code == INTERRUPTED:
        # All is saved and every process ended; taking torch and Ray apart would keep the user waiting for seconds.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _eval(arguments: list[str]) -> int:
    from .config import parse_eval, to_yaml

    config = parse_eval(arguments)
    from .learner.run.eval import evaluate_model

    return evaluate_model(config, Path(config.output_dir), to_yaml(config))


def _envs(arguments: list[str]) -> int:
    from .envs.commands import main

    return main(arguments)


def _traces(arguments: list[str]) -> int:
    from .executors.traces.command import main

    return main(arguments)


def _serve_rm(arguments: list[str]) -> int:
    from .config import parse_serve_rm

    options = parse_serve_rm(arguments)
    from .learner.rewards.server import serve

    return serve(options)


def _merge_lora(arguments: list[str]) -> int:
    from .learner.models.merge_lora import main

    return main(arguments)


def _doctor(arguments: list[str]) -> int:
    if arguments[:1] == ["sandbox"]:
        from .sandbox.doctor import main as examine_sandboxes

        return examine_sandboxes(arguments[1:])
    from .learner.doctor.command import main

    return main(arguments)


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "train": _train,
    "eval": _eval,
    "envs": _envs,
    "traces": _traces,
    "serve-rm": _serve_rm,
    "merge-lora": _merge_lora,
    "doctor": _doctor,
}

USER_MISTAKE = 2  # exit code, as argparse has it
RUN_FAILED = 1
INTERRUPTED = 130  # as shells have it for SIGINT


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0, 1 (the run failed), 2 (a mistake of the user's), 130."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("--help", "-h", "help"):
        print(USAGE, end="")
        return 0
    if words[0] == "--version":
        from . import __version__

        print(f"turngym {__version__}")
        return 0
    try:
        if words[0] not in COMMANDS:
            raise UnknownNameError(f"unknown command {words[0]!r}.{nearest(words[0], COMMANDS)}")
        return COMMANDS[words[0]](words[1:])
    except ConfigError as error:
        print(f"turngym: {_one_line(error)}", file=sys.stderr)
        return USER_MISTAKE
    except TurnGymError as error:
        print(f"turngym: {type(error).__name__}: {_one_line(error)}", file=sys.stderr)
        return RUN_FAILED
    except OSError as error:  # a full disk, a file that vanished: the message names it
        print(f"turngym: {error}", file=sys.stderr)
        return RUN_FAILED
    except KeyboardInterrupt:
        print("turngym: interrupted", file=sys.stderr)
        return INTERRUPTED


def _one_line(error: Exception) -> str:
    """Other libraries' messages, which ours may end with, can run over many lines."""
    return " ".join(str(error).split())


if __name__ == "__main__":
    sys.exit(main())
