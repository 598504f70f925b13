"""Runs hostile programs in a sandbox and tells what it did not withstand."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any

from ..errors import ProgramError
from .base import Sandbox
from .checks_clean import changes, look
from .checks_host import MARK, Canaries, marking, new_mark, still_running
from .checks_judge import Problem, wrong_fields
from .hostile.attack import attack
from .hostile.program import HostileProgram
from .results import ExecResult

_RUN_TIMEOUT_S = 60.0
_HARMLESS = attack(
    "isolation",
    "introspection",
    """
    attempt("file", read, CANARY_FILE)
    attempt("process", os.kill, CANARY_PID, 0)
    attempt("service", socket.create_connection, ("127.0.0.1", CANARY_PORT), 0.3)
    if 0 in (os.getuid(), os.geteuid()):
        loot.append("root")
    """,
)


async def check_hostile(
    sandbox: Sandbox,
    programs: Iterable[HostileProgram],
    canaries: Canaries,
    *,
    num_parallel: int = 1,
    report: Callable[[str, list[Problem]], None] | None = None,
) -> list[Problem]:
    """Run each program, and after each one that looks around; return what was wrong.

    Args:
        sandbox: Started after the canaries were set up.
        programs: As in `hostile.HOSTILE`.
        canaries: What `checks_host.host_canaries` gave.
        num_parallel: How many to run at once; with 1 and a sandbox of one worker, each problem has one cause.
        report: Called with each program's name and problems as it is done.
    """
    try:
        async with asyncio.timeout(_RUN_TIMEOUT_S):
            if reached := await _reached(sandbox, canaries):
                return [Problem("isolation", f"{reached}; hostile programs are run only where programs are isolated")]
            start = await look(sandbox)
    except Exception as error:  # whatever a sandbox raises where it must not is what is looked for
        return [Problem("isolation", f"harmless programs were not answered: {type(error).__name__}: {error}")]
    places = asyncio.Semaphore(num_parallel)

    async def check(program: HostileProgram) -> list[Problem]:
        async with places:
            messages = [message async for message in _messages(sandbox, program, canaries, start)]
        problems = [Problem(program.name, message) for message in messages]
        if report:
            report(program.name, problems)
        return problems

    found = await asyncio.gather(*map(check, programs))
    return [problem for problems in found for problem in problems]


async def _reached(sandbox: Sandbox, canaries: Canaries) -> str | None:
    """Return what a program reaches that would make it dangerous to run hostile ones."""
    result = await run_hostile(sandbox, _HARMLESS, canaries, new_mark())
    mismatch = _HARMLESS.judge(result)
    return f"a harmless program reached the host: {mismatch}" if mismatch else next(canaries.troubles(), None)


async def _messages(
    sandbox: Sandbox, program: HostileProgram, canaries: Canaries, start: dict[str, Any]
) -> AsyncIterator[str]:
    mark = new_mark()
    try:
        async with asyncio.timeout(_RUN_TIMEOUT_S):
            result = await run_hostile(sandbox, program, canaries, mark)
    except TimeoutError:
        yield f"no result within {_RUN_TIMEOUT_S:g} s"
        return
    except Exception as error:  # a program must not make its sandbox fail
        yield f"the sandbox failed: {type(error).__name__}: {error}"
        return
    for message in _wrong(result, program, canaries, sandbox.tier):
        yield message
    if left := await still_running(mark):
        yield f"{len(left)} of its processes still run"
    try:
        async with asyncio.timeout(_RUN_TIMEOUT_S):
            for change in changes(start, await look(sandbox)):
                yield f"the next program sees it: {change}"
    except Exception as error:
        yield f"the next program was not answered: {type(error).__name__}: {error}"


async def run_hostile(sandbox: Sandbox, program: HostileProgram, canaries: Canaries, mark: str) -> ExecResult:
    """Run a program that carries a mark and knows where the canaries are."""
    if program.code is not None:
        names = "; ".join(f"{name} = {value!r}" for name, value in canaries.names.items())
        code = f"{marking(mark)}; {names}\n{program.code}"
        return await sandbox.run(code, stdin=program.stdin, limits=program.limits)
    if program.argv is None:
        raise ProgramError(f"{program.name!r} has neither code nor argv")
    argv = program.argv
    if argv[0] == "bash":  # others are to be the very first program
        argv = ("env", f"{MARK}={mark}", *(f"{name}={value}" for name, value in canaries.names.items()), *argv)
    return await sandbox.run(argv=argv, stdin=program.stdin, limits=program.limits)


def _wrong(result: ExecResult, program: HostileProgram, canaries: Canaries, tier: str) -> Iterator[str]:
    if mismatch := program.judge(result):
        yield mismatch
    yield from wrong_fields(result, program.limits, tier)
    yield from canaries.troubles()
    if canaries.secret.encode() in result.out + result.err:
        yield "it shows a secret of the host"
