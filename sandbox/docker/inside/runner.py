"""The main process of the container: takes requests at its stdin, runs programs, answers at its stdout.

It alone holds the two ends of that connection, and capabilities: to become the programs' user, and to kill. Programs
run as another user and without any. As process 1 it cannot be killed from inside.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import sys
import traceback
from typing import Any

from . import files
from .frames import Unpacker, pack
from .interpreter import Interpreter
from .loop import Loop
from .program import Program
from .spawn import Rules

_PR_SET_DUMPABLE = 4
_MAX_REQUEST_BYTES = 1 << 30  # requests come from the supervisor, which is trusted


class Runner:
    """Answers each request, which has an id, with frames of the same id; the last of them says so."""

    def __init__(self) -> None:
        self._loop = Loop()
        self._unpacker = Unpacker(_MAX_REQUEST_BYTES)
        self._interpreter: Interpreter | None = None
        self._running: dict[str, Program] = {}

    def run(self) -> None:
        """Serve until the supervisor is gone."""
        self._loop.watch(0, self._receive)
        self._loop.run()

    def _receive(self) -> None:
        data = os.read(0, 1 << 16)
        if not data:
            os._exit(0)  # the supervisor is gone, and all programs go with process 1
        for head, blob in self._unpacker.feed(data):
            try:
                getattr(self, f"do_{head['op']}")(head, blob)
            except files.RefusedError as error:
                self._reply(head, {"refused": str(error)})
            except Exception:
                self._reply(head, {"failed": traceback.format_exc(limit=-3)})

    def _reply(self, request: dict[str, Any], head: dict[str, Any], blob: bytes = b"", *, is_last: bool = True) -> None:
        data = memoryview(pack({"id": request["id"], "is_last": is_last, **head}, blob))
        while data:
            data = data[os.write(1, data) :]

    def do_setup(self, head: dict[str, Any], _: bytes) -> None:
        """Learn who programs are; say what is in the image."""
        self._uid, self._gid, self._folder = head["uid"], head["gid"], head["folder"]
        self._environment = {
            **{name: value for name, value in os.environ.items() if name != "HOSTNAME"},
            "HOME": self._folder,
            "PWD": self._folder,
        }
        os.setgroups([])
        if head["copy_from"]:
            files.copy_tree(head["copy_from"], self._folder, self._uid, self._gid)
        found = [name for name in head["programs"] if shutil.which(name)]
        self._reply(head, {"programs": found, "python": list(sys.version_info[:3])})

    def do_ping(self, head: dict[str, Any], _: bytes) -> None:
        """Say that all is well."""
        self._reply(head, {})

    def do_run(self, head: dict[str, Any], stdin: bytes) -> None:
        """Run a program; the reply comes when it has ended."""

        def ended(reply: dict[str, Any], blob: bytes) -> None:
            self._running.pop(head["tag"], None)
            self._reply(head, reply, blob)

        program = Program(self._loop, head, stdin, self._environment, self._folder, self._rules(head), ended)
        if program.is_running:
            self._running[head["tag"]] = program

    def do_kill(self, head: dict[str, Any], _: bytes) -> None:
        """Kill a program that `do_run` started."""
        program = self._running.get(head["tag"])
        if program:
            program.kill("killed")
        self._reply(head, {})

    def do_open(self, head: dict[str, Any], _: bytes) -> None:
        """Start the session's interpreter; the reply comes when it is ready."""
        self._interpreter = Interpreter(
            self._loop,
            head,
            self._environment,
            self._folder,
            self._rules(head),
            on_ready=lambda: self._reply(head, {}),
            on_death=lambda text: self._reply({"id": 0}, {"died": text}),
        )

    def do_cell(self, head: dict[str, Any], code: bytes) -> None:
        """Run a cell; the reply comes when it has ended."""
        if self._interpreter is None or not self._interpreter.is_alive:
            self._reply(head, {"dead": True})
            return
        self._interpreter.run_cell(head, code, lambda reply, blob: self._reply(head, reply, blob))

    def do_interrupt(self, head: dict[str, Any], _: bytes) -> None:
        """Interrupt the running cell, if there is one."""
        if self._interpreter:
            self._interpreter.interrupt()
        self._reply(head, {})

    def do_write(self, head: dict[str, Any], content: bytes) -> None:
        """Write a file, or the next piece of one."""
        with files.acting_as(self._uid, self._gid):
            files.write(self._folder, head["path"], content, head["mode"], appends=head["appends"])
        self._reply(head, {})

    def do_make_folder(self, head: dict[str, Any], _: bytes) -> None:
        """Make a folder and those above it."""
        with files.acting_as(self._uid, self._gid), files.opened_folder(self._folder, head["path"], makes=True):
            pass
        self._reply(head, {})

    def do_read(self, head: dict[str, Any], _: bytes) -> None:
        """Send a file's content in pieces."""
        with files.acting_as(self._uid, self._gid), files.opened_file(self._folder, head["path"]) as (fd, num_bytes):
            if num_bytes > head["max_bytes"]:
                raise files.RefusedError(f"it has {num_bytes:,} bytes, and at most {head['max_bytes']:,} were wanted")
            while num_bytes > 0:
                chunk = os.read(fd, min(num_bytes, files.CHUNK_BYTES))
                if not chunk:  # it became shorter
                    break
                num_bytes -= len(chunk)
                self._reply(head, {}, chunk, is_last=False)
        self._reply(head, {})

    def do_list(self, head: dict[str, Any], _: bytes) -> None:
        """Send path, kind and size of everything below a folder."""
        with files.acting_as(self._uid, self._gid):
            entries = files.entries(self._folder, head["path"], head["max_entries"])
        chunks = files.Chunks(lambda chunk: self._reply(head, {}, chunk, is_last=False))
        chunks.write(json.dumps([entry[:3] for entry in entries]).encode())
        chunks.close()
        self._reply(head, {})

    def do_snapshot(self, head: dict[str, Any], _: bytes) -> None:
        """Send the work folder as a tar archive in pieces."""
        target: Any = files.Chunks(lambda chunk: self._reply(head, {}, chunk, is_last=False))  # Any: only writes
        with files.acting_as(self._uid, self._gid):
            files.archive(self._folder, head["max_entries"], head["max_bytes"], target)
        target.close()
        self._reply(head, {})

    def _rules(self, head: dict[str, Any]) -> Rules:
        return Rules(self._uid, self._gid, **{name: head[name] for name in Rules._fields[2:]})


def main() -> None:
    """Protect this process from what it starts, then serve."""
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    sys.dont_write_bytecode = True
    Runner().run()
