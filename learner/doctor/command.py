"""`turngym doctor RUN_FOLDER`."""

import argparse
import json
import sys
from pathlib import Path

MOST_COLUMNS = 120


def main(arguments: list[str]) -> int:
    """Look at a run folder and print what is wrong with it; 0 whether or not anything is.

    Raises:
        ConfigError: It is no run folder.
    """
    parser = argparse.ArgumentParser(
        prog="turngym doctor",
        description="Say why a run's reward is flat or its training unstable, from what its folder holds.",
    )
    parser.add_argument("folder", type=Path, metavar="RUN_FOLDER", help="what --ckpt.output_dir of turngym train named")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)

    from .diagnosis import diagnose
    from .folder import read_run
    from .report import as_json, print_diagnosis

    run = read_run(options.folder)
    diagnosis = diagnose(run)
    if options.json:
        print(json.dumps(as_json(run, diagnosis), indent=1))
        return 0
    from rich.console import Console

    console = Console(file=sys.stdout, highlight=False)
    if console.width > MOST_COLUMNS or not console.is_terminal:
        console.width = MOST_COLUMNS
    print_diagnosis(console, run, diagnosis)
    return 0
