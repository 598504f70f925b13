"""`turngym doctor sandbox`: which sandboxes work here, how well they isolate, and a self-test."""

import argparse
import asyncio
import sys
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import ConfigError, TurnGymError
from .base import Sandbox
from .registration import SANDBOXES, make_sandbox

if TYPE_CHECKING:
    from rich.console import Console

    from .checks_judge import Problem

MOST_COLUMNS = 120
_START_TIMEOUT_S = 120.0
_HOSTILE_AT_ONCE = 4


@dataclass(frozen=True)
class Standing:
    """How a backend stands on this machine."""

    name: str
    trouble: str | None
    """Why it does not work; None if it does."""
    tier: str = ""
    meaning: str = ""
    languages: tuple[str, ...] = ()


def main(arguments: list[str]) -> int:
    """Print how sandboxes stand here and test one; 0 if all is well, 1 if a check failed.

    Raises:
        ConfigError: There is no such backend, or it cannot work here.
    """
    parser = argparse.ArgumentParser(
        prog="turngym doctor sandbox",
        description="Say which sandboxes work on this machine and how well they isolate, and test one of them.",
    )
    parser.add_argument("--backend", default="local", metavar="NAME", help="which to test: %(default)s by default")
    parser.add_argument(
        "--argument", action="append", default=[], metavar="NAME=VALUE", help="for its constructor, such as image=NAME"
    )
    parser.add_argument("--all", action="store_true", help="run every check and all hostile programs: a minute or more")
    options = parser.parse_args(arguments)

    from rich.console import Console

    console = Console(file=sys.stdout, highlight=False)
    if console.width > MOST_COLUMNS or not console.is_terminal:
        console.width = MOST_COLUMNS
    return asyncio.run(_examine(console, options.backend, _arguments(options.argument), options.all))


def _arguments(words: list[str]) -> dict[str, object]:
    import yaml

    arguments = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not name or not equals:
            raise ConfigError(f"wanted --argument NAME=VALUE, got {word!r}")
        try:
            arguments[name] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise ConfigError(f"the value of --argument {name} cannot be read: {error}") from None
    return arguments


async def _examine(console: "Console", name: str, arguments: dict[str, object], is_full: bool) -> int:
    from .checks_host import host_canaries

    with host_canaries() as canaries:  # before anything starts: what it inherits would show
        sandbox = _made(name, arguments)
        others = [other for other in SANDBOXES if other != name]
        standings = [await stand(name, sandbox), *[await _stand_alone(other) for other in others]]
        try:
            _print_standings(console, standings)
            if standings[0].trouble is not None:
                await sandbox.start()  # raises what the table says in short
            problems = await _test(console, sandbox, is_full)
            if is_full:
                from .checks_hostile import check_hostile
                from .hostile import HOSTILE

                with _Progress(console, "hostile programs", len(HOSTILE)) as progress:
                    problems += await check_hostile(
                        sandbox, HOSTILE.values(), canaries, num_parallel=_HOSTILE_AT_ONCE, report=progress.report
                    )
        finally:
            await sandbox.close()
    _print_problems(console, problems)
    return 1 if problems else 0


def _made(name: str, arguments: dict[str, object]) -> Sandbox:
    try:
        return make_sandbox(name, arguments)
    except TypeError as error:  # as Python says that there is no such argument
        raise ConfigError(f"sandbox {name!r} does not take these arguments: {error}") from None


async def stand(name: str, sandbox: Sandbox) -> Standing:
    """Start a sandbox and return how it stands."""
    try:
        async with asyncio.timeout(_START_TIMEOUT_S):
            await sandbox.start()
    except (TurnGymError, OSError) as error:  # it is what the table shows
        return Standing(name, " ".join(str(error).split()) or type(error).__name__)
    meanings = [
        meaning
        for tier, meaning in sandbox.tiers.items()
        if tier == sandbox.tier or (", " in tier and tier.partition(", ")[2] in sandbox.tier)
    ]
    return Standing(name, None, sandbox.tier, "; ".join(meanings), tuple(sorted(sandbox.languages)))


async def _stand_alone(name: str) -> Standing:
    try:
        sandbox = make_sandbox(name)
    except TurnGymError as error:
        return Standing(name, " ".join(str(error).split()))
    try:
        return await stand(name, sandbox)
    finally:
        await sandbox.close()


async def _test(console: "Console", sandbox: Sandbox, is_full: bool) -> "list[Problem]":
    from .checks import CHECKS, QUICK, check_sandbox

    names: Collection[str] = CHECKS if is_full else QUICK
    with _Progress(console, "checks", len(names)) as progress:
        return await check_sandbox(sandbox, only=names, report=progress.report)


class _Progress:
    """A bar that moves with each check; failures are printed as they come."""

    def __init__(self, console: "Console", what: str, total: int) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self._what, self._total, self._num_failed, self._num_done = what, total, 0, 0
        self._console = console
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=console, transient=True)
        self._task = self._progress.add_task(what, total=total)

    def __enter__(self) -> "_Progress":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()
        self._console.print(f"{self._what}: {self._num_done - self._num_failed} of {self._total} passed")

    def report(self, name: str, problems: "list[Problem]") -> None:
        """Take note of a check's end."""
        self._num_done += 1
        self._num_failed += bool(problems)
        self._progress.update(self._task, advance=1, description=f"{self._what}: {name}")


def _print_standings(console: "Console", standings: list[Standing]) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE, padding=(0, 1))
    for column in ("sandbox", "works here", "tier and what it means", "languages"):
        table.add_column(column, overflow="fold")
    for standing in standings:
        means = f"{standing.tier}: {standing.meaning}" if standing.meaning else standing.tier
        works = Text("yes", style="green") if standing.trouble is None else Text("no", style="yellow")
        table.add_row(
            Text(standing.name), works, Text(standing.trouble or means), Text(", ".join(standing.languages))
        )  # fmt: skip
    console.print(table)


def _print_problems(console: "Console", problems: "list[Problem]") -> None:
    from rich.text import Text

    for problem in problems:
        console.print(Text(f"{problem.check}: ", style="bold red") + Text(problem.message))
    failed = len({problem.check for problem in problems})
    console.print("All is well." if not problems else f"{failed} failed.")
