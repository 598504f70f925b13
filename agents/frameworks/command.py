"""`--agent command:"python my_agent.py"`: any program that is an agent, one process for each episode."""

import asyncio
import contextlib
import json
import os
import shlex
import shutil
import signal
from collections.abc import Mapping, Sequence
from typing import Any

from ...envs.task import Split, Task
from ...errors import ConfigError, EnvError
from .base import Endpoint
from .function import split_concurrency

MAX_VARIABLE_BYTES = 64 << 10  # Linux takes 128 KiB
KEPT_BYTES = 64 << 10  # of the end of each output
SHOWN = 2000  # characters, in messages
EXIT_S = 5.0


class CommandAgent:
    """Starts a program for each episode, and reads a reward from the last line that it prints.

    Args:
        command: As a shell would split it; no shell runs it.
        kwargs: Only `max_concurrency`.
        folder: Where it runs.
    """

    def __init__(self, command: str, kwargs: Mapping[str, Any], folder: str) -> None:
        own, self.max_concurrency = split_concurrency(kwargs)
        if own:
            raise ConfigError(
                f"a command takes no --agent_args but max_concurrency, got {', '.join(own)}; write them into it"
            )
        try:
            self._words = shlex.split(command)
        except ValueError as error:
            raise ConfigError(f"--agent command:{command}: {error}") from error
        if not self._words or shutil.which(self._words[0], path=_search_path(folder)) is None:
            raise ConfigError(f"--agent command:{command}: there is no program {(self._words or [''])[0]!r}")
        self._folder = folder

    async def run(self, task: Task, endpoint: Endpoint) -> Any:
        """Run the program; whatever becomes of this call, its process group ends with it.

        Raises:
            EnvError: It failed.
        """
        told = json.dumps(_told(task), default=repr)
        transport, program = await asyncio.get_running_loop().subprocess_exec(
            _Program,
            *self._words,
            cwd=self._folder,
            env=os.environ | _variables(told, endpoint),
            start_new_session=True,
        )
        try:
            program.tell(told.encode())
            await program.has_exited.wait()
        finally:
            await _end(transport, program)
        out, err = (program.tails[number].decode(errors="replace").strip() for number in (1, 2))
        if code := transport.get_returncode():
            raise EnvError(f"{self._words[0]!r} ended with {code}: {(err or out)[-SHOWN:]}")
        return _last_value(out)

    def tasks(self, split: Split, seed: int) -> Sequence[Task] | None:
        """Return None: a program brings no tasks."""
        return None

    def complaints(self) -> list[str]:
        """Return none: what it prints shows when it runs."""
        return []

    def close(self) -> None:
        """Do nothing: each process ended with its episode."""


def _search_path(folder: str) -> str:
    """Return where programs are looked for; names with a slash are looked for in the folder itself."""
    return os.pathsep.join([os.environ.get("PATH", os.defpath), folder])


def _told(task: Task) -> dict[str, Any]:
    return {
        "id": task.id,
        "prompt": task.prompt,
        "label": task.label,
        "seed": task.seed,
        "data": dict(task.data),
    }


def _variables(told: str, endpoint: Endpoint) -> dict[str, str]:
    variables = {
        "OPENAI_BASE_URL": endpoint.base_url,
        "OPENAI_API_KEY": endpoint.api_key,
        "OPENAI_MODEL": endpoint.model,
        "ANTHROPIC_BASE_URL": endpoint.anthropic_url,
        "ANTHROPIC_API_KEY": endpoint.api_key,
    }
    return variables if len(told.encode()) > MAX_VARIABLE_BYTES else variables | {"TURNGYM_TASK": told}


class _Program(asyncio.SubprocessProtocol):
    """A running program; the ends of its outputs are kept."""

    def __init__(self) -> None:
        self.tails = {1: b"", 2: b""}
        self.has_exited = asyncio.Event()
        self.is_closed = asyncio.Event()  # so are its outputs, which other processes may hold
        self._stdin: Any = None  # a transport that asyncio types as any of its kinds

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.SubprocessTransport)
        self._stdin = transport.get_pipe_transport(0)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self.tails[fd] = (self.tails[fd] + data)[-KEPT_BYTES:]

    def process_exited(self) -> None:
        self.has_exited.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed.set()

    def tell(self, content: bytes) -> None:
        """Give the task on standard input as well, where it may have any length; a program need not read it."""
        self._stdin.write(content)
        self._stdin.close()


async def _end(transport: asyncio.SubprocessTransport, program: _Program) -> None:
    """End all that the program left in its process group, and read what is still in its outputs."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(transport.get_pid(), signal.SIGKILL)
    with contextlib.suppress(TimeoutError):  # what left the group may hold an output for as long as it likes
        async with asyncio.timeout(EXIT_S):
            await program.is_closed.wait()
    transport.close()


def _last_value(out: str) -> Any:
    """Return the JSON on the last line; None where it is something else."""
    try:
        value = json.loads(out.splitlines()[-1])
    except (ValueError, IndexError, RecursionError):
        return None
    return value if isinstance(value, bool | int | float | dict) else None
