"""Servers under test as processes: started, told what to do, measured, and ended."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import httpx
import psutil

FOLDER = Path(__file__).resolve().parent


class CpuTime:
    """Seconds of processor that a process used since this was made, and those of its children, such as an engine's."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._own, self._children = self._now()

    def used(self) -> tuple[float, float]:
        """Return those of the process itself, and those of its children."""
        own, children = self._now()
        return own - self._own, children - self._children

    def _now(self) -> tuple[float, float]:
        children = self._process.children(recursive=True)
        return _seconds(self._process.pid), sum(_seconds(child.pid) for child in children)


def _seconds(pid: int) -> float:
    """Read a process's clock of processor time, as clock_getcpuclockid(3) numbers it; /proc counts in 10 ms."""
    return time.clock_gettime((~pid << 3) | 2)


class OurServer:
    """`our_server.py`, and the lines that it is told."""

    def __init__(self, *arguments: str) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        command = [sys.executable, str(FOLDER / "our_server.py"), *arguments]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        told = self._read()
        self.url, self.key, self.pid = str(told["url"]), str(told["key"]), self._process.pid

    def tell(self, **what: Sequence[str]) -> dict[str, Any]:
        """Tell it something and return what it answers."""
        stdin = self._process.stdin
        assert stdin is not None
        stdin.write(json.dumps(what) + "\n")
        stdin.flush()
        return self._read()

    def stop(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        finally:
            self._process.kill()

    def _read(self) -> dict[str, Any]:
        stdout: IO[str] | None = self._process.stdout
        assert stdout is not None
        for line in stdout:
            if line.startswith("{"):  # libraries print too
                value: dict[str, Any] = json.loads(line)
                return value
        raise RuntimeError(f"our server ended with {self._process.wait(60)}; its messages stand above")


class VllmServer:
    """vLLM's own OpenAI server, as its users start it."""

    key = "key"

    def __init__(self, model: str, port: int, environment: dict[str, str], arguments: Sequence[str]) -> None:
        module = "vllm.entrypoints.openai.api_server"
        command = [sys.executable, "-m", module, "--model", model, "--host", "127.0.0.1", "--port", str(port)]
        self._process = subprocess.Popen(
            [*command, "--api-key", self.key, *arguments],
            env={**os.environ, **environment},
            stdout=sys.stderr,
        )
        self.url, self.pid = f"http://127.0.0.1:{port}", self._process.pid

    def wait(self, timeout_s: float = 300.0) -> None:
        """Wait until it answers."""
        until = time.monotonic() + timeout_s
        while self._process.poll() is None and time.monotonic() < until:
            try:
                if httpx.get(f"{self.url}/health").status_code == 200:
                    return
            except httpx.TransportError:
                time.sleep(0.5)
        raise RuntimeError(f"vLLM's server does not answer; it ended with {self._process.poll()}")

    def stop(self) -> None:
        """End it."""
        self._process.terminate()
        try:
            self._process.wait(60)
        finally:
            self._process.kill()
