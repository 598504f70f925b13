"""What sandbox and session ask of a container alike: bring files in, run a program."""

import time
from collections.abc import Mapping
from typing import Any, Literal

from ...errors import SandboxError, SandboxLostError
from ..job import Job
from ..limits import Limits
from ..results import ExecResult
from .container import Container
from .stream import Channel, ChannelError, Head

CHUNK_BYTES = 1 << 20
ANSWER_S = 30.0
"""For what is done at once."""
MACHINE_LACKS_MEMORY = "the kernel killed a process within its limits, for memory that the machine lacks"
_KILL_S = 10.0  # a program past its time is killed; the runner may have to wait for its turn
_UNUSED_BYTES = 1 << 30  # of address space: what a Python program maps and does not use


def rules(limits: Limits, *, is_python: bool) -> dict[str, int | None]:
    """Return the limits that the runner sets for each process; the container has the others."""
    return {
        "num_open_files": limits.num_open_files,
        "cpu_s": None if limits.cpu_s is None else max(1, -int(-limits.cpu_s // 1)),
        "file_bytes": limits.disk_bytes,
        "address_space": limits.memory_bytes + _UNUSED_BYTES if is_python else None,
    }


async def send_files(channel: Channel, files: Mapping[str, bytes], *, mode: int = 0o644) -> None:
    """Write files into the work folder.

    Raises:
        ProgramError: One cannot be written, as for want of space.
    """
    for path, content in files.items():
        for start in range(0, max(len(content), 1), CHUNK_BYTES):
            piece = content[start : start + CHUNK_BYTES]
            await channel.call("write", piece, deadline_s=ANSWER_S, path=path, mode=mode, appends=start > 0)


async def run_job(
    container: Container, job: Job, *, python: str, wall_s: float, is_alone: bool, tag: str, tier: str
) -> ExecResult:
    """Run a program to its end.

    Args:
        container: What it runs in.
        job: What to run.
        python: The command of the image's Python.
        wall_s: When to kill it.
        is_alone: Whether it has the container for itself, and everything in it ends with it.
        tag: What `kill` knows it by.
        tier: For the result.

    Raises:
        ChannelError: The container died of it, or no longer answers.
        SandboxLostError: The kernel killed it for memory that the machine lacks.
    """
    files, argv = dict(job.files), job.argv
    if argv is None:
        assert job.code is not None
        files["main.py"], argv = job.code.encode(), (python, "main.py")
    for path, content in files.items():
        await send_files(container.channel, {path: content}, mode=0o755 if path == job.executable else 0o644)
    head, blob = await container.channel.call(
        "run",
        job.stdin,
        deadline_s=wall_s + _KILL_S,
        max_reply_bytes=2 * job.limits.output_bytes + CHUNK_BYTES,
        tag=tag,
        argv=argv,
        wall_s=wall_s,
        is_alone=is_alone,
        output_bytes=job.limits.output_bytes,
        flood_bytes=job.limits.flood_bytes,
        **rules(job.limits, is_python=job.code is not None),
    )
    if head["ended"] == "lost":
        raise SandboxLostError(MACHINE_LACKS_MEMORY)
    out, err = split_output(head, blob)
    return ExecResult(
        ended=head["ended"],
        exit_code=head["exit_code"],
        signal=head["signal"],
        out=out,
        err=err,
        is_out_truncated=head["is_out_truncated"],
        is_err_truncated=head["is_err_truncated"],
        wall_s=head["wall_s"],
        cpu_s=head["cpu_s"],
        peak_memory_bytes=head["peak_bytes"],
        tier=tier,
    )


def result_of_death(why: Literal["memory", "killed"], error: ChannelError, begin: float, tier: str) -> ExecResult:
    """Return the result of a program that the container died of."""
    return ExecResult(
        ended="timeout" if error.is_silent and why != "memory" else why,
        exit_code=None,
        signal=None,
        out=b"",
        err=b"",
        is_out_truncated=False,
        is_err_truncated=False,
        wall_s=time.monotonic() - begin,
        cpu_s=None,
        peak_memory_bytes=None,
        tier=tier,
    )


def split_output(head: Head, blob: bytes) -> tuple[bytes, bytes]:
    """Return what a reply holds of stdout and of stderr.

    Raises:
        SandboxError: The reply is not as it must be.
    """
    num_out = head.get("num_out")
    if not isinstance(num_out, int) or not 0 <= num_out <= len(blob):
        raise SandboxError(f"the runner sent a reply that is none: {str(head)[:200]}")
    return blob[:num_out], blob[num_out:]


NO_OUTPUT: Mapping[str, Any] = {"num_out": 0, "is_out_truncated": False, "is_err_truncated": False}
"""The part of a reply that says that nothing was written; Any: JSON."""
