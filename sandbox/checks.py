"""What every sandbox must do, as checks that anyone can run against theirs: `await check_sandbox(sandbox)`.

The hostile programs are run by `checks_hostile.check_hostile`.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection

from . import checks_cells as cells
from . import checks_clean as clean
from . import checks_limits as limits
from . import checks_runs as runs
from . import checks_session_files as files
from . import checks_sessions as sessions
from .base import Sandbox
from .checks_judge import Problem
from .checks_leaks import check_leaks

Check = Callable[[Sandbox], AsyncIterator[str]]

CHECKS: dict[str, Check] = {
    check.__name__.removeprefix("check_"): check
    for check in (
        runs.check_endings,
        runs.check_output,
        runs.check_input,
        runs.check_files,
        runs.check_work_folder,
        runs.check_commands,
        runs.check_amounts,
        runs.check_languages,
        runs.check_concurrency,
        limits.check_wall_time,
        limits.check_cpu_time,
        limits.check_memory,
        limits.check_counts,
        limits.check_flood,
        limits.check_cancellation,
        limits.check_bad_input,
        clean.check_clean_start,
        clean.check_little_inherited,
        clean.check_processes_end,
        cells.check_cells,
        cells.check_cell_errors,
        cells.check_cell_timeout,
        cells.check_interrupt,
        cells.check_cell_limits,
        cells.check_interpreter_end,
        sessions.check_shell,
        sessions.check_run_beside,
        sessions.check_apart,
        sessions.check_cancelled_cell,
        sessions.check_forged_replies,
        files.check_session_files,
        files.check_session_traps,
        files.check_snapshot,
        files.check_bad_snapshots,
        files.check_fork,
        files.check_fork_of_much,
        files.check_fork_refused,
        check_leaks,
    )
}

QUICK = ("endings", "output", "files", "wall_time", "memory", "counts", "clean_start", "little_inherited", "cells",
         "cell_timeout", "session_files", "fork")  # fmt: skip
"""What tells within seconds whether a sandbox works here."""


async def check_sandbox(
    sandbox: Sandbox,
    *,
    only: Collection[str] = (),
    timeout_s: float = 120.0,
    report: Callable[[str, list[Problem]], None] | None = None,
) -> list[Problem]:
    """Run the checks and return what is wrong; an empty list means that the sandbox keeps its contract.

    Args:
        sandbox: Not in use by anyone else; it is started if it is not.
        only: Names of the checks to run; by default all of `CHECKS`.
        timeout_s: Deadline of each check.
        report: Called with each check's name and problems as it is done.

    Raises:
        SandboxUnavailableError: The sandbox cannot work on this machine.
    """
    await sandbox.start()
    problems: list[Problem] = []
    for name in only or CHECKS:
        found: list[Problem] = []
        try:
            async with asyncio.timeout(timeout_s):
                async for message in CHECKS[name](sandbox):
                    found.append(Problem(name, message))
        except Exception as error:  # whatever a sandbox raises where it must not is what is looked for
            message = f"{type(error).__name__}: {str(error) or f'not done within {timeout_s:g} s'}"
            found.append(Problem(name, message))
        problems += found
        if report:
            report(name, found)
    return problems
