"""How a session's interpreter comes to be: started in a jail, or forked from another."""

import asyncio
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, Literal

from ...errors import ForkRefusedError, ProgramError, SandboxError
from ..limits import Limits
from .cgroups import OomCount
from .console import Interpreter, new_interpreter, release
from .handle import JailHandle
from .program import bounds
from .wire import Message

START_S: Final = 30.0
FORK_S: Final = 10.0


async def start_interpreter(
    jail: JailHandle,
    language: Literal["python", "bash"],
    files: Mapping[str, bytes],
    snapshot: bytes | None,
    limits: Limits,
) -> Interpreter:
    """Start an interpreter in a jail that runs nothing.

    Raises:
        ProgramError: The files do not fit.
        SandboxError: The jail failed.
    """
    is_python = language == "python"
    await jail.limit(limits, timeout_s=START_S)
    interpreter, ends = new_interpreter(limits, is_python=is_python)
    body = {
        "op": "open",
        "language": language,
        "paths": list(files),
        "disk": [limits.disk_bytes, limits.num_inodes],
        "memory_bytes": limits.memory_bytes,
        "bounds": bounds(limits, limits_address_space=is_python or jail.group is None),
    }
    null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    control, out, err = ends
    fds = [null, out, err, control] if is_python else [null, out, err, control, control]
    try:
        await jail.ask(body, [snapshot or b"", *files.values()], fds, timeout_s=START_S)
    except BaseException:
        release(interpreter, ends)
        interpreter.end()
        interpreter.close_streams()
        raise
    finally:
        os.close(null)
        release(interpreter, ends)
    return interpreter


async def fork_interpreter(
    jail: JailHandle, parent: Interpreter, limits: Limits, num_branches: int
) -> tuple[Interpreter, int]:
    """Return a fork of an interpreter, and the number of its branch.

    The parent is told to fork; its child asks for namespaces of its own, which the jail's init allows once; the init
    gives it a copy of the files; and it goes on.

    Args:
        jail: Whose init is asked.
        parent: The interpreter, which runs no cell.
        limits: Of each branch.
        num_branches: How many there will be; they share the jail's control group.

    Raises:
        ForkRefusedError: The interpreter did not fork, for what its cells did to it or use.
        SandboxError: The jail failed.
    """
    before = jail.oom_count()
    jail.limit_branches(limits, num_branches)
    child, ends = new_interpreter(limits, is_python=True)
    try:
        async with jail.forking:
            try:
                branch = await _fork(jail, parent, child, ends, before)
            except BaseException:
                with suppress(SandboxError):  # a jail that is gone has no more leave to give
                    await asyncio.shield(jail.ask({"op": "forget_fork"}, timeout_s=FORK_S))
                raise
    except BaseException:
        release(child, ends)
        child.end()
        child.close_streams()
        with suppress(SandboxError):  # what it uses already it may keep
            jail.limit_branches(limits, num_branches - 1)
        raise
    return child, branch


async def _fork(jail: JailHandle, parent: Interpreter, child: Interpreter, ends: list[int], before: OomCount) -> int:
    await jail.ask({"op": "expect_fork"}, timeout_s=FORK_S)
    told = child.expect()
    parent.tell({"op": "fork"}, fds=ends)
    release(child, ends)
    await _hear(told, "left")
    branch = int((await _furnish(jail, before)).body["branch"])
    ready = child.expect()
    child.tell({"op": "go"})
    try:
        await _hear(ready, "forked")
    except BaseException:
        with suppress(SandboxError):
            await asyncio.shield(jail.ask({"op": "end_branch", "branch": branch}, timeout_s=FORK_S))
        raise
    return branch


async def _hear(reply: "asyncio.Future[dict[str, Any] | None]", wanted: str) -> None:  # Any: as a message's body
    try:
        async with asyncio.timeout(FORK_S):
            told = await reply
    except TimeoutError:
        raise ForkRefusedError(
            f"the interpreter did not fork within {FORK_S:g} s; what its cells did to it keeps it from that"
        ) from None
    if (told or {}).get("op") != wanted:
        raise ForkRefusedError("the interpreter did not fork; its cells left no process for it, or broke it")


async def _furnish(jail: JailHandle, before: OomCount) -> Message:
    try:
        return await jail.ask({"op": "furnish"}, timeout_s=FORK_S)
    except ProgramError as error:
        raise ForkRefusedError(f"the interpreter did not fork: {error}") from error
    except SandboxError as error:
        if jail.oom_cause(before) == "limit":
            raise ForkRefusedError("there is not enough memory for a copy of the files") from error
        raise
