"""Tar archives that come out of a sandbox, or that a caller brings: all is checked before anything is used."""

import io
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath

from ..errors import ProgramError
from .job import check_path

_MAX_PATH_BYTES = 4096
_MAX_HEADER_BYTES = 16 << 10  # of one member, with its padding and a long name


@dataclass(frozen=True)
class Member:
    """A checked member: a regular file, or a folder if it has no content."""

    path: str
    content: bytes | None
    mode: int


def max_tar_bytes(max_bytes: int, max_members: int) -> int:
    """Return how long an archive within the limits can be."""
    return max_bytes + max_members * _MAX_HEADER_BYTES + tarfile.RECORDSIZE


def check_tar(data: bytes, *, max_bytes: int, max_members: int) -> list[Member]:
    """Return what an archive holds.

    Args:
        data: The archive, not compressed.
        max_bytes: Of all contents together.
        max_members: Files and folders together.

    Raises:
        ProgramError: It is no such archive, holds anything but regular files and folders, leads out of the work
            folder, names a path twice, or holds too much.
    """
    members: dict[str, Member] = {}
    parents: set[str] = set()
    total = 0
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:", errors="surrogateescape") as tar:
            for info in tar:
                path = _check_member(info)
                if path in members:
                    raise ProgramError(f"the archive names {path!r} twice")
                total += info.size
                if total > max_bytes or len(members) >= max_members:
                    raise ProgramError(
                        f"the archive holds more than {max_bytes:,} bytes or {max_members:,} files and folders"
                    )
                members[path] = Member(path, _content(tar, info), info.mode & 0o777)
                parents.update(str(parent) for parent in PurePosixPath(path).parents)
    except (tarfile.TarError, ValueError, ArithmeticError, LookupError, OSError, EOFError, RecursionError) as error:
        if isinstance(error, ProgramError):
            raise
        raise ProgramError(f"wanted a tar archive without compression, got one that cannot be read: {error}") from None
    for path in parents & members.keys():
        if members[path].content is not None:
            raise ProgramError(f"the archive has {path!r} as a file and as a folder")
    return list(members.values())


def _check_member(info: tarfile.TarInfo) -> str:
    is_file = info.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and info.sparse is None
    if not (is_file or info.isdir()):
        raise ProgramError(f"the archive's member {info.name!r} is no regular file and no folder")
    if info.name.startswith("/") or len(info.name.encode(errors="surrogateescape")) > _MAX_PATH_BYTES:
        raise ProgramError(f"the archive's member {info.name[:100]!r} has a path that is absolute or too long")
    path = check_path(info.name)
    if path == "." and not info.isdir():
        raise ProgramError("the archive's work folder is no folder")
    return path


def _content(tar: tarfile.TarFile, info: tarfile.TarInfo) -> bytes | None:
    if info.isdir():
        return None
    file = tar.extractfile(info)
    content = file.read() if file else b""
    if len(content) != info.size:
        raise ProgramError(f"the archive is cut off in {info.name!r}")
    return content


def pack_tar(members: Iterable[Member]) -> bytes:
    """Return an archive of checked members."""
    target = io.BytesIO()
    with tarfile.open(mode="w", fileobj=target, format=tarfile.GNU_FORMAT, errors="surrogateescape") as tar:
        for member in members:
            info = tarfile.TarInfo(member.path)
            info.mode = member.mode
            if member.content is None:
                info.type = tarfile.DIRTYPE
                tar.addfile(info)
            else:
                info.size = len(member.content)
                tar.addfile(info, io.BytesIO(member.content))
    return target.getvalue()
