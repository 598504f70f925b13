"""The Docker daemon as far as sandboxes need it: the only file that imports Docker's SDK. Every method blocks."""

import importlib
import os
import re
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from ...errors import MissingPackageError, SandboxError, SandboxUnavailableError

_TIMEOUT_S = 60  # of one request to the daemon
_DEFAULT_HOST = "unix:///var/run/docker.sock"


class NoImageError(SandboxError):
    """The daemon does not have the image."""


class DockerClient:
    """One daemon; thread-safe.

    Args:
        host: Its address; by default DOCKER_HOST, else the usual socket.
        num_threads: How many requests it gets at once.

    Raises:
        MissingPackageError: The SDK is not installed.
        SandboxUnavailableError: Nobody answers there, or this user may not ask.
    """

    def __init__(self, host: str | None, num_threads: int) -> None:
        try:
            docker: Any = importlib.import_module("docker")  # Any: it comes without types
            requests: Any = importlib.import_module("requests")
        except ImportError as error:
            raise MissingPackageError("the sandbox 'docker' needs a package: pip install 'turngym[docker]'") from error
        self.host = host or os.environ.get("DOCKER_HOST") or _DEFAULT_HOST
        self._errors = docker.errors
        self._requests = requests.exceptions
        arguments = {**docker.utils.kwargs_from_env(), "base_url": self.host}
        try:
            self._api = docker.APIClient(
                **arguments, version="auto", timeout=_TIMEOUT_S, max_pool_size=num_threads, num_pools=2
            )
        except (docker.errors.DockerException, OSError) as error:
            raise SandboxUnavailableError(_why_unreachable(self.host, error)) from error
        self._hosts_config: Callable[..., dict[str, Any]] = self._api.create_host_config  # Any: the daemon's JSON

    @contextmanager
    def _asking(self, what: str) -> Iterator[None]:
        try:
            yield
        except self._errors.ImageNotFound as error:
            raise NoImageError(f"{what}: {error.explanation or error}") from error
        except self._errors.APIError as error:
            raise SandboxError(f"the Docker daemon refused to {what}: {error.explanation or error}") from error
        except (self._requests.RequestException, self._errors.DockerException, OSError) as error:
            raise SandboxError(f"the Docker daemon at {self.host} did not {what}: {error}") from error

    def abilities(self) -> "Abilities":
        """Return what the daemon can do."""
        with self._asking("say what it can do"):
            return abilities_of(self._api.info())

    def image_id(self, name: str) -> str:
        """Return an image's id.

        Raises:
            NoImageError: The daemon does not have it.
        """
        with self._asking(f"find the image {name!r}"):
            return str(self._api.inspect_image(name)["Id"])

    def pull(self, name: str) -> None:
        """Fetch an image from its registry."""
        repository, tag = name, None
        if "@" not in name and ":" in name.rpartition("/")[2]:
            repository, _, tag = name.rpartition(":")
        elif "@" not in name:
            tag = "latest"
        with self._asking(f"pull the image {name!r}"):
            _check_progress(self._api.pull(repository, tag=tag, stream=True, decode=True))

    def build(self, folder: str, tag: str) -> None:
        """Build an image from a folder with a Dockerfile."""
        with self._asking(f"build an image from {folder!r}"):
            _check_progress(self._api.build(path=folder, tag=tag, rm=True, forcerm=True, decode=True))

    def create(self, name: str, image: str, host: Mapping[str, Any], **container: Any) -> None:
        """Create a container; `host` and `container` are what the SDK takes for its two halves."""
        with self._asking("create a container"):
            config = self._hosts_config(**host)
            self._api.create_container(
                image, name=name, host_config=config, stdin_open=True, tty=False, detach=False, **container
            )

    def attach(self, name: str) -> socket.socket:
        """Return the connection to a container's stdin, stdout and stderr; to be taken before it starts."""
        with self._asking("attach to a container"):
            params = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
            raw = self._api.attach_socket(name, params)
        inner = raw if isinstance(raw, socket.socket) else getattr(raw, "_sock", None)
        if not isinstance(inner, socket.socket) or isinstance(inner, ssl.SSLSocket):
            raise SandboxUnavailableError(
                f"wanted a Docker daemon at a unix:// or plain tcp:// address, got {self.host!r}; "
                "forward its socket: ssh -L /tmp/docker.sock:/var/run/docker.sock HOST"
            )
        ours = socket.socket(fileno=os.dup(inner.fileno()))
        raw.close()
        ours.setblocking(False)
        return ours

    def start(self, name: str) -> None:
        """Start a container."""
        with self._asking("start a container"):
            self._api.start(name)

    def state(self, name: str) -> dict[str, Any] | None:
        """Return what the daemon knows of a container's state; None if there is none of this name."""
        try:
            with self._asking("look at a container"):
                state: dict[str, Any] = self._api.inspect_container(name)["State"]
                return state
        except SandboxError as error:
            if isinstance(error.__cause__, self._errors.NotFound):
                return None
            raise

    def remove(self, name: str) -> None:
        """Kill and remove a container; one that is gone, or going, is no error."""
        try:
            with self._asking("remove a container"):
                self._api.remove_container(name, force=True, v=True)
        except SandboxError as error:
            cause = error.__cause__
            is_going = isinstance(cause, self._errors.APIError) and "already in progress" in str(cause)
            if not (is_going or isinstance(cause, self._errors.NotFound)):
                raise

    def labelled(self, label: str) -> list[dict[str, Any]]:
        """Return the daemon's records of all containers that have a label."""
        with self._asking("list containers"):
            records: list[dict[str, Any]] = self._api.containers(all=True, filters={"label": label})
            return records

    def close(self) -> None:
        """Close the connections."""
        self._api.close()


@dataclass(frozen=True)
class Abilities:
    """What a daemon can do."""

    runtimes: list[str]
    missing: list[str]
    """What it does not hold programs with, as tiers name it."""


def abilities_of(info: Mapping[str, Any]) -> Abilities:  # Any: the daemon's JSON
    """Read what the daemon says of itself; what it does not mention is taken to be there."""
    has_seccomp = any("name=seccomp" in option for option in info.get("SecurityOptions") or [])
    found = {
        "no seccomp": has_seccomp,
        "no memory limit": info.get("MemoryLimit", True),
        "no process limit": info.get("PidsLimit", True),
    }
    return Abilities(sorted(info.get("Runtimes") or {}), [name for name, is_there in found.items() if not is_there])


def _check_progress(lines: Iterator[dict[str, Any]]) -> None:
    said: list[str] = []
    for line in lines:
        if "error" in line:
            text = "".join([*said[-20:], str(line["error"])]).strip()
            raise SandboxError(re.sub("\x1b\\[[0-9;]*m", "", text))  # the builder colours what went to stderr
        said.append(line.get("stream", ""))


def _why_unreachable(host: str, error: Exception) -> str:
    parts = urlsplit(host)
    text = str(error)
    if parts.scheme == "unix" and not os.path.exists(parts.path):
        return (
            f"the sandbox 'docker' needs a Docker daemon, and there is no socket {parts.path!r}; "
            "start Docker, or set DOCKER_HOST to where it listens"
        )
    if parts.scheme == "unix" and not os.access(parts.path, os.R_OK | os.W_OK):
        return (
            f"this user may not use the Docker socket {parts.path!r}; "
            "add the user to the group 'docker' (newgrp docker), or run a rootless Docker and set DOCKER_HOST"
        )
    return f"no Docker daemon answers at {host!r}: {text}; is dockerd running there (docker info)?"
