"""A request to run something in a sandbox, checked once for all backends."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from ..errors import ProgramError
from .languages import LANGUAGES
from .limits import Limits

MAX_CODE_BYTES = 4 << 20
WORK_FOLDER = "/box"
"""Where a program starts, and where its files lie."""


@dataclass(frozen=True)
class Job:
    """A checked request to run one program."""

    argv: tuple[str, ...] | None
    """The command; None: `code` is Python for the sandbox's own interpreter."""
    code: str | None
    stdin: bytes
    files: Mapping[str, bytes] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    reserves_address_space: bool = False
    """It maps far more memory than it uses (Node.js), so only used memory can be limited."""
    executable: str | None = None
    """The one of its files that can be executed, for the command's first word names it."""


def check_path(path: str) -> str:
    """Return a path relative to the work folder, normalised.

    Raises:
        ProgramError: It leads out of the work folder, is empty, holds a NUL or what no file name can hold.
    """
    try:
        path.encode(errors="surrogateescape")
    except UnicodeEncodeError as error:
        raise ProgramError(f"wanted a path that can be written as UTF-8, got {path!r}: {error}") from None
    relative = PurePosixPath(path.removeprefix(f"{WORK_FOLDER}/") if path != WORK_FOLDER else ".")
    if not path or "\0" in path or relative.is_absolute() or ".." in relative.parts:
        raise ProgramError(f"wanted a path below the sandbox's {WORK_FOLDER}, got {path!r}")
    return str(relative)


def check_code(code: object, language: str) -> str:
    """Return the code if it can be run.

    Raises:
        ProgramError: It is no text, is empty, too long, or cannot be written as UTF-8.
    """
    if not isinstance(code, str):
        raise ProgramError(f"wanted {language} code as text, got {type(code).__name__}")
    if not code.strip():
        raise ProgramError(f"wanted {language} code, got {'nothing' if not code else 'only white space'}")
    try:
        num_bytes = len(code.encode())
    except UnicodeEncodeError as error:
        raise ProgramError(f"the {language} code cannot be written as UTF-8: {error}") from None
    if num_bytes > MAX_CODE_BYTES:
        raise ProgramError(f"the {language} code has {num_bytes:,} bytes, and at most {MAX_CODE_BYTES:,} are run")
    return code


def check_files(files: Mapping[str, bytes] | None) -> dict[str, bytes]:
    """Return files by their checked paths.

    Raises:
        ProgramError: A path leads out of the work folder, or a file's content is not bytes.
    """
    checked = {}
    for path, content in (files or {}).items():
        if not isinstance(content, bytes):
            raise ProgramError(f"wanted bytes as the content of {path!r}, got {type(content).__name__}")
        checked[check_path(path)] = content
    return checked


def make_job(
    code: str | None,
    language_name: str,
    argv: Sequence[str] | None,
    stdin: bytes,
    files: Mapping[str, bytes] | None,
    limits: Limits,
) -> Job:
    """Check a request and return it in the form that backends take.

    Raises:
        ProgramError: It cannot be run as given.
        UnknownNameError: There is no such language.
    """
    if (code is None) == (argv is None):
        raise ProgramError("wanted either code or argv")
    if not isinstance(stdin, bytes):
        raise ProgramError(f"wanted bytes as stdin, got {type(stdin).__name__}")
    placed = check_files(files)
    if argv is not None:
        words = tuple(argv)
        if not words or not all(isinstance(word, str) and "\0" not in word for word in words) or not words[0]:
            raise ProgramError(f"wanted argv as words without NUL characters, got {argv!r:.200}")
        return Job(words, None, stdin, placed, limits, executable=_own_file(words[0], placed))
    spoken = LANGUAGES[language_name]
    source = check_code(code, language_name)
    if spoken.argv is None:
        return Job(None, source, stdin, placed, limits)
    placed[spoken.file_name] = source.encode()
    command = spoken.argv
    if spoken.compile_argv is not None:
        command = ("bash", "-c", f"{shlex.join(spoken.compile_argv)} && exec {shlex.join(command)}")
    return Job(command, None, stdin, placed, limits, spoken.reserves_address_space)


def _own_file(word: str, files: Mapping[str, bytes]) -> str | None:
    """Return which of the files a command's first word names, as `./main` does; a bare word is looked up in PATH."""
    if "/" not in word:
        return None
    try:
        path = check_path(word)
    except ProgramError:  # a path outside of the work folder
        return None
    return path if path in files else None
