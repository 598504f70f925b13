"""One program in a jail: its request, its deadline, its output, and what its end is called."""

import asyncio
import math
import os
import signal
import time
from collections.abc import Sequence
from typing import Any, Final

from ...errors import SandboxDeadError, SandboxError, SandboxLostError
from ..job import Job
from ..limits import Limits
from ..results import Ended, ExecResult
from .capture import Capture
from .handle import JailHandle, reply_of

GRACE_S: Final = 5.0
"""From the order to kill a program until its jail must have said that it is gone."""

_KILLED_WITH_ITS_JAIL: Final[dict[str, Any]] = {  # Any: as a message's body
    "status": int(signal.SIGKILL),
    "cpu_s": None,
    "peak_kib": None,
    "is_over_memory": True,
}
"""The end of a program whose jail the kernel killed for memory, the init first."""


def bounds(limits: Limits, *, limits_address_space: bool) -> dict[str, Any]:
    """Return what the kernel limits for each process."""
    return {
        "cpu_s": None if limits.cpu_s is None else max(1, math.ceil(limits.cpu_s)),
        "address_bytes": limits.memory_bytes if limits_address_space else None,
        "num_processes": limits.num_processes + 1,  # the jail's init is the same user
        "file_bytes": limits.disk_bytes,
        "num_open_files": limits.num_open_files,
    }


async def run_program(
    jail: JailHandle, job: Job, tier: str, *, branch: int = 0, is_in_session: bool = False
) -> ExecResult:
    """Run a program and return what became of it.

    Raises:
        SandboxLostError: The jail was killed from outside, or the kernel killed for memory that the machine lacks.
        SandboxError: The jail failed.
    """
    limits = job.limits
    if not is_in_session:
        await jail.limit(limits, timeout_s=GRACE_S)
    before = jail.oom_count(is_idle=not is_in_session)  # of this jail's earlier programs and cells
    stopped: list[Ended] = []

    def stop(why: Ended) -> None:
        if not stopped:
            stopped.append(why)
            if jail.channel.is_open:
                jail.channel.send({"op": "kill", "target": request})

    out, err = (Capture(limits.output_bytes, limits.flood_bytes, lambda: stop("output")) for _ in range(2))
    request = jail.channel.last_request + 1
    began = time.monotonic()
    try:
        try:
            ended = await _ended(jail, job, branch, (out, err), stop)
        except SandboxDeadError as error:
            if jail.oom_cause(before) != "limit":
                raise SandboxLostError(f"the jail died under a program: {error}") from error
            ended = _KILLED_WITH_ITS_JAIL
        wall_s = time.monotonic() - began
        (written, is_out_cut), (complained, is_err_cut) = out.take(), err.take()
    finally:
        out.close()
        err.close()
    status = ended["status"]
    cause = "limit" if ended["is_over_memory"] else jail.oom_cause(before)
    how = _name_end(status, stopped, cause is not None, limits, ended["cpu_s"])
    if how == "memory" and cause == "machine":
        raise SandboxLostError(
            "the kernel killed a program within its limits: the machine, or a control group around the sandbox, has "
            "too little memory; run fewer programs at a time, or give them less"
        )
    return ExecResult(
        ended=how,
        exit_code=os.WEXITSTATUS(status) if how in ("ok", "nonzero") else None,
        signal=os.WTERMSIG(status) if os.WIFSIGNALED(status) else None,
        out=written,
        err=complained,
        is_out_truncated=is_out_cut,
        is_err_truncated=is_err_cut,
        wall_s=wall_s,
        cpu_s=ended["cpu_s"],
        peak_memory_bytes=None if ended["peak_kib"] is None else ended["peak_kib"] * 1024,
        tier=tier,
    )


async def _ended(
    jail: JailHandle, job: Job, branch: int, captures: Sequence[Capture], stop: Any
) -> dict[str, Any]:  # Any: a local function; a message's body
    loop = asyncio.get_running_loop()
    limits = job.limits
    body = {
        "op": "run",
        "argv": job.argv,
        "paths": list(job.files),
        "executable": job.executable,
        "disk": [limits.disk_bytes, limits.num_inodes],
        "memory_bytes": limits.memory_bytes,
        "branch": branch,
        "bounds": bounds(
            limits,
            limits_address_space=job.argv is None or (jail.group is None and not job.reserves_address_space),
        ),
    }
    blobs = [(job.code or "").encode(), job.stdin, *job.files.values()]
    try:
        reply = jail.channel.ask(body, blobs, [capture.writing for capture in captures])
    finally:
        for capture in captures:
            capture.listen()
    timer = loop.call_later(limits.wall_s, stop, "timeout")
    try:
        done, _ = await asyncio.wait({reply}, timeout=limits.wall_s + GRACE_S)
        if not done:
            jail.kill()
            raise SandboxError(f"a jail did not end its program within {GRACE_S:g} s of the order to kill it")
    except asyncio.CancelledError:
        await _kill_now(jail, reply, stop)
        raise
    finally:
        timer.cancel()
    return reply_of(reply.result(), "a jail of the local sandbox").body


async def _kill_now(jail: JailHandle, reply: "asyncio.Future[Any]", stop: Any) -> None:
    """End the program of a cancelled call, or else the jail, before the cancellation goes on."""
    stop("killed")
    await asyncio.wait({reply}, timeout=GRACE_S)
    if not reply.done() or reply.cancelled() or reply.exception() is not None:
        jail.kill()


def _name_end(
    status: int, stopped: Sequence[Ended], is_out_of_memory: bool, limits: Limits, cpu_s: float | None
) -> Ended:
    if stopped and os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return stopped[0]
    if is_out_of_memory and (os.WIFSIGNALED(status) or os.WEXITSTATUS(status)):
        return "memory"
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        is_cpu = limits.cpu_s is not None and cpu_s is not None and cpu_s >= 0.9 * max(1, math.ceil(limits.cpu_s))
        if number == signal.SIGXCPU or (number == signal.SIGKILL and is_cpu):
            return "timeout"
        return "signal"
    if "output" in stopped:
        return "output"
    return "ok" if os.WEXITSTATUS(status) == 0 else "nonzero"
