"""The image that containers are made from: by its name, or built from a folder."""

import hashlib
from pathlib import Path

from ...errors import ConfigError, SandboxError, SandboxUnavailableError
from .client import DockerClient, NoImageError

DEFAULT_IMAGE = "python:3.12-slim"


def resolve_image(client: DockerClient, image: str | None, dockerfile: str | None, *, pulls: bool) -> str:
    """Return the id of the image to use, built or fetched if that is wanted; a later change of its tag changes nothing.

    Raises:
        SandboxUnavailableError: It is not there, or cannot be built or fetched.
    """
    if dockerfile is not None:
        return _build(client, dockerfile)
    name = image or DEFAULT_IMAGE
    try:
        return client.image_id(name)
    except NoImageError:
        if not pulls:
            raise SandboxUnavailableError(
                f"the Docker daemon at {client.host} has no image {name!r}; docker pull {name}, or give pull=True"
            ) from None
    try:
        client.pull(name)
        return client.image_id(name)
    except SandboxError as error:
        raise SandboxUnavailableError(f"the image {name!r} could not be fetched: {error}") from error


def _build(client: DockerClient, dockerfile: str) -> str:
    folder = Path(dockerfile).expanduser().resolve()
    if folder.name == "Dockerfile":
        folder = folder.parent
    if not (folder / "Dockerfile").is_file():
        raise ConfigError(f"wanted a folder with a Dockerfile, got {dockerfile!r}, and there is no {folder}/Dockerfile")
    tag = f"turngym/built:{hashlib.sha256(str(folder).encode()).hexdigest()[:16]}"
    try:
        client.build(str(folder), tag)
        return client.image_id(tag)
    except SandboxError as error:
        raise SandboxUnavailableError(f"no image could be built from {folder}: {error}") from error
