"""Whose a container is, and removing those whose owner is gone."""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .client import DockerClient

LABEL = "org.turngym.sandbox.owner"
_MIN_AGE_S = 600  # of another machine's stopped container: its owner, if it lives, has long removed it
_ENDED = ("exited", "dead")


@dataclass(frozen=True)
class Owner:
    """A process: which boot of which machine, which process namespace, its number and when it began there."""

    boot_id: str
    namespace: str
    pid: int
    start_ticks: int

    @property
    def text(self) -> str:
        """The label's value."""
        return f"{self.boot_id} {self.namespace} {self.pid} {self.start_ticks}"

    @property
    def is_alive(self) -> bool | None:
        """Whether the process runs; None if that cannot be seen from here."""
        here = this_process()
        if (self.boot_id, self.namespace) != (here.boot_id, here.namespace):
            return None
        return _start_ticks(self.pid) == self.start_ticks


def parse_owner(text: str) -> Owner | None:
    """Return the owner that a label names; None if it is none of ours."""
    words = text.split()
    if len(words) != 4 or not (words[2].isdigit() and words[3].isdigit()):
        return None
    return Owner(words[0], words[1], int(words[2]), int(words[3]))


def this_process() -> Owner:
    """Return ourselves as an owner."""
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    ticks = _start_ticks(os.getpid())
    assert ticks is not None
    return Owner(boot_id, os.readlink("/proc/self/ns/pid"), os.getpid(), ticks)


def _start_ticks(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:
        return None


def leftovers(client: DockerClient) -> list[str]:
    """Return the names of containers whose owner is gone.

    A daemon may serve several machines, or process namespaces of one: of an owner that cannot be seen from here only
    what has stopped by itself long ago is taken. (A runner stops when its supervisor is gone.)
    """
    return [_name(record) for record in client.labelled(LABEL) if _is_left(record)]


def _is_left(record: dict[str, Any]) -> bool:
    owner = parse_owner(record["Labels"].get(LABEL, ""))
    is_alive = owner.is_alive if owner else None
    if is_alive is None:
        return record["State"] in _ENDED and time.time() - record["Created"] > _MIN_AGE_S
    return not is_alive


def _name(record: dict[str, Any]) -> str:
    return str(record["Id"])
