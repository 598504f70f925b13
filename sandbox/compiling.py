"""A program that is compiled once in a sandbox and then run on many inputs."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..errors import ProgramError
from .base import Sandbox
from .job import check_code
from .languages import LANGUAGES
from .limits import Limits
from .results import ExecResult

_MAX_ARTEFACT_BYTES = 32 << 20


@dataclass(frozen=True)
class Compiled:
    """What compiling came to; `sandbox.run(argv=compiled.argv, files=compiled.files)` runs it, if it is ok."""

    result: ExecResult
    """How the compiler ended; what it said is on stderr, and its stdout, the artefact, is left out."""
    argv: tuple[str, ...]
    files: Mapping[str, bytes]
    """The artefact by its path; nothing if the compiler failed."""

    @property
    def is_ok(self) -> bool:
        """Whether there is something to run."""
        return bool(self.files)


def is_compiled(language: str) -> bool:
    """Whether programs in this language have to be compiled."""
    return LANGUAGES[language].compile_argv is not None


async def compile_program(sandbox: Sandbox, code: str, language: str, limits: Limits) -> Compiled:
    """Compile a program from a clean start; what is wrong with it is a result.

    Args:
        sandbox: Where the compiler runs; it sees the code and nothing else.
        code: Source code.
        language: One that `is_compiled`.
        limits: Of the compiler.

    Raises:
        ProgramError: The code cannot be compiled as given: not text, empty, too long, or an artefact that is too long.
        SandboxError: The sandbox failed; nothing is known about the program.
    """
    spoken = LANGUAGES[language]
    if spoken.compile_argv is None or spoken.argv is None:
        raise ProgramError(f"programs in {language} are run as they are; only compiled languages are compiled")
    command = f"{shlex.join(spoken.compile_argv)} >&2 && cat {shlex.quote(spoken.artefact)}"
    result = await sandbox.run(
        argv=("bash", "-c", command),
        files={spoken.file_name: check_code(code, language).encode()},
        limits=replace(limits, output_bytes=_MAX_ARTEFACT_BYTES, flood_bytes=4 * _MAX_ARTEFACT_BYTES),
    )
    if result.is_out_truncated:
        raise ProgramError(f"the compiled program has more than {_MAX_ARTEFACT_BYTES:,} bytes")
    files = {spoken.artefact: result.out} if result.is_ok else {}
    return Compiled(replace(result, out=b""), spoken.argv, files)
