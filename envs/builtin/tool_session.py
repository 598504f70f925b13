"""A Python interpreter in a sandbox as a model's tool: what it is told of each cell, and who closes it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...errors import ConfigError, ProgramError, SandboxDeadError, SandboxError
from ...sandbox.base import Sandbox, Session
from ...sandbox.limits import Limits
from ...sandbox.registration import SANDBOXES, shared_sandbox
from ...sandbox.results import CellResult
from ..graders.code import cut

_ENDED = {
    "timeout": "It took longer than {wall_s:g} s and was stopped.",
    "interrupted": "It took longer than {wall_s:g} s and was stopped.",
    "memory": "It needed more memory than there is and was stopped.",
    "output": "It wrote far too much and was stopped.",
    "exited": "It ended the interpreter.",
}
_ANEW = "The interpreter was started anew: variables and files are gone."


@dataclass(frozen=True)
class SandboxChoice:
    """Which sandbox an environment uses; all that choose the same share one per process.

    Raises:
        UnknownNameError: There is none of this name.
        ConfigError: An argument's value cannot tell sandboxes apart.
    """

    name: str
    arguments: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.name not in SANDBOXES:
            SANDBOXES[self.name]
        told = {
            key: tuple(value) if isinstance(value, list) else value for key, value in (self.arguments or {}).items()
        }
        for key, value in told.items():
            try:
                hash(value)
            except TypeError:
                raise ConfigError(
                    f"sandbox_args takes numbers, texts and lists of them; {key!r} is {value!r}"
                ) from None
        object.__setattr__(self, "arguments", told)  # lists came from YAML, and cannot tell sandboxes apart

    async def get(self) -> Sandbox:
        """Return this process's sandbox, started."""
        return await shared_sandbox(self.name, self.arguments)


class ToolSession:
    """An interpreter that begins with its first cell, and anew after a cell that ended it.

    A cell is never run twice. One that is lost with state that earlier cells had made is an error, not a fresh start.

    Args:
        choice: Where it runs.
        limits: Of the session; `wall_s` is what one cell may take.
        max_output_chars: Shown of what a cell wrote; the middle is left out of more.
    """

    def __init__(self, choice: SandboxChoice, limits: Limits, max_output_chars: int) -> None:
        if max_output_chars < 1:
            raise ConfigError(f"max_output_chars must be at least 1, got {max_output_chars}")
        self._choice = choice
        self._limits = limits
        self._max_output_chars = max_output_chars
        self._session: Session | None = None
        self._has_state = False  # whether a cell was begun in the session

    @property
    def can_fork(self) -> bool:
        """Whether `fork` works now; always before the first cell, since there is nothing to copy."""
        return self._session is None or self._session.can_fork

    async def run_cell(self, code: str) -> str:
        """Run a cell and return what to tell the model; whatever its code does is no error.

        Raises:
            SandboxLostError: The interpreter was lost by nothing of its cells' doing, and with it what they had made.
            SandboxError: The sandbox failed.
        """
        try:
            result, is_anew = await self._run(code)
        except ProgramError as error:
            return f"Nothing was run: {error}"
        if not result.is_alive:
            await self.close()
        parts = [cut(_output(result), self._max_output_chars)]
        if result.ended in _ENDED:
            parts.append(_ENDED[result.ended].format(wall_s=self._limits.wall_s))
        if is_anew or not result.is_alive:
            parts.append(_ANEW)
        return "\n".join(part for part in parts if part) or "(no output)"

    async def fork(self) -> "ToolSession":
        """Return one with a copy of the interpreter and its files.

        Raises:
            ForkRefusedError: What cells did to the interpreter keeps it from being forked.
        """
        twin = ToolSession(self._choice, self._limits, self._max_output_chars)
        if self._session is not None:
            twin._session, twin._has_state = await self._session.fork(), self._has_state
        return twin

    async def close(self) -> None:
        """End the session, if there is one; it is forgotten only once it is closed."""
        if self._session is not None:
            try:
                await self._session.close()
            except SandboxError:
                await self._session.close()  # once more, as after a daemon's short absence; then it is reported
            self._session = None

    async def _run(self, code: str) -> tuple[CellResult, bool]:
        """Run a cell; say also whether the interpreter had to be started anew for it."""
        if self._session is not None and not (self._session.is_alive or self._has_state):
            await self.close()  # it went before anything was in it
        try:
            return await self._run_once(code), False
        except SandboxDeadError:  # what earlier cells left behind ended it before this cell, of which nothing ran
            if not self._has_state:
                raise
            await self.close()
            return await self._run_once(code), True

    async def _run_once(self, code: str) -> CellResult:
        if self._session is None:
            self._session = await (await self._choice.get()).open_session(limits=self._limits)
            self._has_state = False
        had_state, self._has_state = self._has_state, True
        try:
            return await self._session.run_cell(code)
        except ProgramError:  # nothing was run
            self._has_state = had_state
            raise


def _output(result: CellResult) -> str:
    parts = [result.out_text, result.err_text, result.value or "", (result.ended == "error" and result.error) or ""]
    return "\n".join(part.rstrip("\n") for part in parts if part.strip())
