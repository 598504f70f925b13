"""Files of the work folder, handled as the program's user and without ever following a link.

The runner keeps its own real uid while it does so: programs can neither signal nor trace it.
"""

from __future__ import annotations

import errno
import os
import stat
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any

CHUNK_BYTES = 1 << 18
_MAX_DEPTH = 100
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


class RefusedError(Exception):
    """The request cannot be met as it is; the program's files or the caller's path are why."""


@contextmanager
def acting_as(uid: int, gid: int) -> Iterator[None]:
    """Touch files as another user; what the system refuses then becomes a RefusedError."""
    os.setegid(gid)
    os.seteuid(uid)
    try:
        yield
    except OSError as error:
        raise RefusedError(_reason(error)) from None
    finally:
        os.seteuid(0)
        os.setegid(0)


def _reason(error: OSError) -> str:
    if error.errno in (errno.ELOOP, errno.ENOTDIR):
        return "a part of the path is a link or no folder"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "the sandbox's disk is full"
    return os.strerror(error.errno or 0)


@contextmanager
def opened_folder(root: str, path: str, *, makes: bool = False) -> Iterator[int]:
    """Open a folder below the root, one part of the path at a time."""
    fd = os.open(root, _FOLDER)
    try:
        parts = [part for part in path.split("/") if part not in ("", ".")]
        if ".." in parts or len(parts) > _MAX_DEPTH:
            raise RefusedError(f"folders are nested more than {_MAX_DEPTH} deep, or the path holds '..'")
        for part in parts:
            if makes:
                with suppress(FileExistsError):
                    os.mkdir(part, dir_fd=fd)
            inner = os.open(part, _FOLDER, dir_fd=fd)
            os.close(fd)
            fd = inner
        yield fd
    finally:
        os.close(fd)


@contextmanager
def opened_file(root: str, path: str) -> Iterator[tuple[int, int]]:
    """Open a regular file for reading and yield its descriptor and size."""
    folder, _, name = path.rpartition("/")
    with opened_folder(root, folder) as parent:
        fd = os.open(name, os.O_RDONLY | _FILE, dir_fd=parent)
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise RefusedError("it is no regular file")
            yield fd, found.st_size
        finally:
            os.close(fd)


def write(root: str, path: str, content: bytes, mode: int, *, appends: bool) -> None:
    """Write a regular file, or go on with one; its folders are made."""
    folder, _, name = path.rpartition("/")
    with opened_folder(root, folder, makes=True) as parent:
        flags = os.O_WRONLY | os.O_CREAT | _FILE | (os.O_APPEND if appends else 0)
        fd = os.open(name, flags, mode, dir_fd=parent)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise RefusedError("there is something else than a regular file")
            if not appends:
                os.ftruncate(fd, 0)
            view = memoryview(content)
            while view:
                view = view[os.write(fd, view) :]
        finally:
            os.close(fd)


def entries(root: str, path: str, max_entries: int) -> list[tuple[str, str, int, int]]:
    """Return path, kind, size and mode of everything below a folder, in order of paths."""
    found: list[tuple[str, str, int, int]] = []
    waiting = ["" if path == "." else path]
    while waiting:
        folder = waiting.pop()
        with opened_folder(root, folder) as fd, os.scandir(fd) as listing:
            for entry in listing:
                status = os.stat(entry.name, dir_fd=fd, follow_symlinks=False)
                inner = f"{folder}/{entry.name}" if folder else entry.name
                kind = _kind(status.st_mode)
                found.append((inner, kind, status.st_size if kind == "file" else 0, status.st_mode & 0o777))
                if len(found) > max_entries:
                    raise RefusedError(f"it holds more than {max_entries:,} entries")
                if kind == "folder":
                    waiting.append(inner)
    return sorted(found)


def _kind(mode: int) -> str:
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "folder"
    return "link" if stat.S_ISLNK(mode) else "other"


class _Padded:
    """A file read to the size it had when it was looked at, whatever happens to it meanwhile."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def read(self, num_bytes: int) -> bytes:
        return os.read(self._fd, num_bytes).ljust(num_bytes, b"\0")


def archive(root: str, max_entries: int, max_bytes: int, target: IO[bytes]) -> None:
    """Write regular files and folders as a tar archive."""
    listed = [entry for entry in entries(root, ".", max_entries) if entry[1] in ("file", "folder")]
    total = sum(size for _, _, size, _ in listed)
    if total > max_bytes:
        raise RefusedError(f"its files have {total:,} bytes, and the disk has {max_bytes:,}")
    with tarfile.open(mode="w|", fileobj=target, format=tarfile.GNU_FORMAT, errors="surrogateescape") as tar:
        for path, kind, size, mode in listed:
            member = tarfile.TarInfo(path)
            member.mode, member.size = mode, size
            if kind == "folder":
                member.type = tarfile.DIRTYPE
                tar.addfile(member)
            else:
                with opened_file(root, path) as (fd, _):
                    reader: Any = _Padded(fd)  # Any: tarfile needs nothing but read
                    tar.addfile(member, reader)


class Chunks:
    """A file to write to that hands on what it gets in pieces of CHUNK_BYTES."""

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send = send
        self._buffer = bytearray()

    def write(self, data: bytes) -> int:
        """Take some bytes."""
        self._buffer += data
        while len(self._buffer) >= CHUNK_BYTES:
            self._send(bytes(self._buffer[:CHUNK_BYTES]))
            del self._buffer[:CHUNK_BYTES]
        return len(data)

    def close(self) -> None:
        """Hand on what is left."""
        self._send(bytes(self._buffer))
        self._buffer.clear()


def copy_tree(source: str, root: str, uid: int, gid: int) -> None:
    """Copy a folder of the image into the work folder; links in it are copied as links."""
    if not os.path.isdir(source):
        raise RefusedError(f"the image has no folder {source}")
    for folder, folder_names, names in os.walk(source):
        inner = os.path.relpath(folder, source)
        for name in folder_names + names:
            origin = os.path.join(folder, name)
            path = name if inner == "." else f"{inner}/{name}"
            status = os.lstat(origin)
            if stat.S_ISLNK(status.st_mode):
                link = os.readlink(origin)
                with acting_as(uid, gid):
                    os.symlink(link, os.path.join(root, path))
            elif stat.S_ISDIR(status.st_mode):
                with acting_as(uid, gid):
                    os.mkdir(os.path.join(root, path))
            elif stat.S_ISREG(status.st_mode):
                with acting_as(uid, gid):
                    write(root, path, b"", status.st_mode & 0o777 | 0o600, appends=False)
                with open(origin, "rb") as file:
                    for chunk in iter(lambda: file.read(CHUNK_BYTES), b""):
                        with acting_as(uid, gid):
                            write(root, path, chunk, 0o600, appends=True)
