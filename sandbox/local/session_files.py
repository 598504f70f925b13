"""The files of a local session: the jail's init does to them what is asked, and follows no link."""

import asyncio
import json
import os
from abc import abstractmethod
from collections.abc import Sequence
from typing import Final

from ...errors import ProgramError
from ..base import Session
from ..job import check_path
from ..limits import Limits
from ..results import FileInfo
from ..tar_check import check_tar, max_tar_bytes
from . import wire
from .capture import Capture

WORK_S: Final = 30.0
"""For what an init does at once."""


class SessionFiles(Session):
    """The half of a session that sees to its files."""

    limits: Limits

    @abstractmethod
    async def _ask_init(
        self, body: dict[str, str | int], blobs: Sequence[bytes] = (), fds: Sequence[int] = ()
    ) -> wire.Message:
        """Ask the jail's init for something that concerns this session."""

    async def read_file(self, path: str, *, max_bytes: int = 1 << 20) -> bytes:
        """Return a regular file's content; see `Session.read_file`."""
        reply = await self._files("read", path=check_path(path))
        (fd,) = reply.fds
        with os.fdopen(fd, "rb") as file:
            content = file.read(max_bytes + 1)
        if len(content) > max_bytes:
            raise ProgramError(f"{path!r} holds more than {max_bytes} bytes")
        return content

    async def write_file(self, path: str, content: bytes) -> None:
        """Write a regular file; see `Session.write_file`."""
        if not isinstance(content, bytes):
            raise ProgramError(f"wanted bytes as the content of {path!r}, got {type(content).__name__}")
        await self._files("write", [content], path=check_path(path))

    async def list_files(self, path: str = ".", *, max_entries: int = 10_000) -> list[FileInfo]:
        """Return everything below a folder; see `Session.list_files`."""
        reply = await self._files("list", path=check_path(path), max_entries=max_entries)
        return [FileInfo(name, kind, size) for name, kind, size in json.loads(reply.blobs[0])]

    async def snapshot(self) -> bytes:
        """Return the work folder as a tar archive; see `Session.snapshot`."""
        max_bytes = max_tar_bytes(self.limits.disk_bytes, self.limits.num_inodes)
        capture = Capture(max_bytes, max_bytes, lambda: None)
        try:
            packing = asyncio.ensure_future(
                self._files("pack", fds=[capture.writing], max_bytes=self.limits.disk_bytes)
            )
            await asyncio.sleep(0)  # the request is sent, and with it the pipe's other end
            capture.listen()
            await packing
            packed, is_cut = capture.take()
        finally:
            capture.close()
        if is_cut:
            raise ProgramError(f"the work folder's archive is longer than {max_bytes} bytes")
        check_tar(packed, max_bytes=self.limits.disk_bytes, max_members=self.limits.num_inodes)
        return packed

    async def _files(
        self, what: str, blobs: Sequence[bytes] = (), fds: Sequence[int] = (), **details: str | int
    ) -> wire.Message:
        return await self._ask_init({"op": "files", "what": what, **details}, blobs, fds)
