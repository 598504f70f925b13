"""The files of the store: a part for each step, gzip with a member for each write, or plain as older ones were."""

import os
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_NAME = re.compile(r"step_(\d+)\.jsonl(\.gz)?")
_GZIP = 31  # zlib's window bits for a gzip header and checksum
_LEVEL = 1  # 6 is a tenth smaller, and takes three times as long
_CHUNK = 1 << 16


@dataclass(frozen=True)
class Member:
    """What one write left.

    Attributes:
        text: Lines of JSON.
        end: Where it ends in the file.
        is_whole: Whether it is all there; the text of one that is not ends somewhere.
    """

    text: bytes
    end: int
    is_whole: bool


def part_name(step: int) -> str:
    """Return the name of a step's part."""
    return f"step_{step:06d}.jsonl.gz"


def step_of(path: Path) -> int | None:
    """Return the step whose part a file is; None where it is no part."""
    match = _NAME.fullmatch(path.name)
    return int(match[1]) if match else None


def parts_in(folder: Path) -> list[Path]:
    """Return the parts in a folder in the order of steps; a plain one comes before the compressed one of its step."""
    found = [(step, path) for path in folder.glob("step_*") if (step := step_of(path)) is not None]
    return [path for _, path in sorted(found, key=lambda pair: (pair[0], pair[1].name))]


def members(path: Path) -> Iterator[Member]:
    """Yield what each write left in a part; nothing follows what is broken."""
    data, start = path.read_bytes(), 0
    if path.suffix != ".gz":
        yield Member(data, len(data), not data or data.endswith(b"\n"))
        return
    while start < len(data):
        member = _inflated(memoryview(data)[start:])
        start += member.end
        yield Member(member.text, start, member.is_whole)


def append(path: Path, lines: list[bytes], sound_size: int | None = None) -> int:
    """Add one member to a part, on disk when this returns; a part whose end was cut off is mended first.

    Args:
        path: The part.
        lines: What to add.
        sound_size: What an earlier call returned: a part of this size is as that call left it, and not read again.

    Returns:
        The part's size.

    Raises:
        OSError: It cannot be written; the part is then as it was before.
    """
    if path.exists() and path.stat().st_size != sound_size:
        sound_end = 0
        for member in members(path):
            if not member.is_whole:
                _mend(path, sound_end, member)
            sound_end = member.end
    append_whole(path, _deflated(lines))
    return path.stat().st_size


def append_whole(path: Path, data: bytes, *, waits: bool = True) -> None:
    """Append to a file: all of it or, if `OSError` is raised, nothing; `waits` until it is on disk."""
    is_new = not path.exists()
    with path.open("ab", buffering=0) as file:  # a buffer would try again what failed
        size = os.fstat(file.fileno()).st_size
        try:
            _write(file.fileno(), data, waits)
        except OSError:
            file.truncate(size)
            if is_new:
                path.unlink()
            raise


def _mend(path: Path, sound_end: int, broken: Member) -> None:
    """Write a part anew without the line that was cut off."""
    lines = [line + b"\n" for line in broken.text.split(b"\n")[:-1]]
    with path.open("rb") as file:
        start = file.read(sound_end)
    temporary = path.with_name(f"{path.name}.part")
    try:
        with temporary.open("wb", buffering=0) as file:
            _write(file.fileno(), start + _deflated(lines), True)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _write(descriptor: int, data: bytes, waits: bool) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]
    if waits:
        os.fsync(descriptor)


def _deflated(lines: list[bytes]) -> bytes:
    deflater = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
    return b"".join([*map(deflater.compress, lines), deflater.flush()])


def _inflated(data: memoryview) -> Member:
    """Return the first member; chunk by chunk, so that what stands before a broken place is kept."""
    inflater = zlib.decompressobj(_GZIP)
    pieces: list[bytes] = []
    try:
        for start in range(0, len(data), _CHUNK):
            pieces.append(inflater.decompress(data[start : start + _CHUNK]))
            if inflater.eof:
                end = min(start + _CHUNK, len(data)) - len(inflater.unused_data)
                return Member(b"".join(pieces), end, True)
    except zlib.error:  # the caller is told
        return Member(b"".join(pieces), len(data), False)
    return Member(b"".join(pieces), len(data), False)
