"""What the daemon says of itself, and the tier that this makes."""

import pytest

from turngym.sandbox.docker.backend import DockerSandbox
from turngym.sandbox.docker.client import abilities_of
from turngym.sandbox.doctor import stand

WHOLE = {
    "Runtimes": {"runc": {}, "io.containerd.runc.v2": {}},
    "SecurityOptions": ["name=apparmor", "name=seccomp,profile=builtin"],
    "MemoryLimit": True,
    "PidsLimit": True,
}


@pytest.mark.parametrize(
    ("changed", "missing"),
    [
        ({}, []),
        ({"SecurityOptions": ["name=apparmor"]}, ["no seccomp"]),
        ({"SecurityOptions": None, "MemoryLimit": False}, ["no seccomp", "no memory limit"]),
        ({"PidsLimit": False}, ["no process limit"]),
    ],
)
def test_what_a_daemon_lacks_is_found(changed: dict[str, object], missing: list[str]) -> None:
    abilities = abilities_of(WHOLE | changed)
    assert abilities.missing == missing
    assert abilities.runtimes == ["io.containerd.runc.v2", "runc"]


async def test_what_it_lacks_is_in_the_tier_and_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    async def start(self: DockerSandbox) -> None:
        self._missing = ["no seccomp", "no process limit"]

    monkeypatch.setattr(DockerSandbox, "start", start)
    sandbox = DockerSandbox(runtime="runsc")
    standing = await stand("docker", sandbox)
    assert standing.tier == "docker+runsc, no seccomp, no process limit"
    assert "no filter of system calls" in standing.meaning
    assert "cannot limit processes" in standing.meaning
