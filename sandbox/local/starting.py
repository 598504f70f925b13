"""How a session's interpreter comes to be: started in a jail, or forked from another."""

import asyncio
import os
from collections.abc import Mapping
from typing import Final, Literal

from ...errors import SandboxError
from ..limits import Limits
from .console import Interpreter, new_interpreter, release
from .handle import JailHandle
from .program import bounds

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
        SandboxError: The interpreter did not fork.
    """
    if jail.group is not None:
        jail.group.limit(limits.memory_bytes * num_branches, limits.num_processes * num_branches)
    child, ends = new_interpreter(limits, is_python=True)
    try:
        async with jail.forking, asyncio.timeout(FORK_S):
            await jail.ask({"op": "expect_fork"}, timeout_s=FORK_S)
            told = child.expect()
            parent.tell({"op": "fork"}, fds=ends)
            release(child, ends)
            if (await told or {}).get("op") != "left":
                raise SandboxError("the interpreter did not fork; what its cells did to it may have kept it from that")
            furnished = await jail.ask({"op": "furnish"}, timeout_s=FORK_S)
            ready = child.expect()
            child.tell({"op": "go"})
            if (await ready or {}).get("op") != "forked":
                raise SandboxError("the fork of the interpreter did not go on")
    except BaseException as error:
        if jail.channel.is_open:
            jail.channel.send({"op": "forget_fork"})
        release(child, ends)
        child.end()
        child.close_streams()
        if isinstance(error, TimeoutError):
            raise SandboxError(f"the interpreter did not fork within {FORK_S:g} s") from error
        raise
    return child, int(furnished.body["branch"])
