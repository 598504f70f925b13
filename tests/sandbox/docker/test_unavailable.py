"""What is said when Docker, an image or a runtime is not there."""

import importlib
import os
import socket
from pathlib import Path

import pytest

from turngym.errors import ConfigError, MissingPackageError, SandboxUnavailableError
from turngym.sandbox.docker.backend import DockerSandbox
from turngym.sandbox.registration import make_sandbox

from .conftest import our_containers


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"image": "a", "dockerfile": "b"}, "both: 'a' and 'b'"),
        ({"uid": 0}, "unprivileged uid, got 0"),
        ({"num_cpus": 0.0}, "num_cpus > 0"),
        ({"num_workers": 0}, "num_workers >= 1"),
    ],
)
async def test_arguments_that_cannot_be_used(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_sandbox("docker", arguments)


async def test_no_socket(tmp_path: Path) -> None:
    with pytest.raises(SandboxUnavailableError, match=r"there is no socket '.*/docker.sock'; start Docker"):
        await DockerSandbox(docker_host=f"unix://{tmp_path}/docker.sock").start()


async def test_nobody_listens(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{tmp_path}/docker.sock")  # and does not listen
    with pytest.raises(SandboxUnavailableError, match="no Docker daemon answers at"):
        await DockerSandbox(docker_host=f"unix://{tmp_path}/docker.sock").start()


async def test_no_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docker.sock").touch()
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may open everything
    with pytest.raises(SandboxUnavailableError, match=r"this user may not use the Docker socket .* group 'docker'"):
        await DockerSandbox(docker_host=f"unix://{tmp_path}/docker.sock").start()


async def test_no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(MissingPackageError, match=r"pip install 'turngym\[docker\]'"):
        await DockerSandbox().start()


@pytest.mark.docker
async def test_missing_image() -> None:
    with pytest.raises(SandboxUnavailableError, match=r"no image 'no.such/image:1'; docker pull no.such/image:1"):
        await DockerSandbox("no.such/image:1").start()
    with pytest.raises(SandboxUnavailableError, match="could not be fetched"):
        await DockerSandbox("localhost:1/image:1", pull=True).start()


@pytest.mark.docker
async def test_missing_runtime(image: str) -> None:
    with pytest.raises(SandboxUnavailableError, match=r"knows no runtime 'no-such-runtime', only .*runc"):
        await DockerSandbox(image, runtime="no-such-runtime").start()


@pytest.mark.docker
async def test_image_without_python(image: str) -> None:
    sandbox = DockerSandbox(image, python="no-such-python")
    with pytest.raises(SandboxUnavailableError, match=r"no container of the image .* comes up: .*no-such-python"):
        await sandbox.start()
    await sandbox.close()
    assert our_containers() == []


@pytest.mark.docker
async def test_missing_folder_of_the_image(image: str) -> None:
    with pytest.raises(SandboxUnavailableError, match="the image has no folder /no/such"):
        await DockerSandbox(image, workdir_from_image="/no/such").start()
    assert our_containers() == []


@pytest.mark.docker
async def test_a_folder_without_dockerfile(tmp_path: Path, image: str) -> None:
    with pytest.raises(ConfigError, match="wanted a folder with a Dockerfile"):
        await DockerSandbox(dockerfile=str(tmp_path)).start()
