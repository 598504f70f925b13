"""Images built from a folder, and the content that they bring."""

from pathlib import Path

import pytest

from turngym.errors import SandboxUnavailableError
from turngym.sandbox.docker.backend import DockerSandbox
from turngym.sandbox.limits import Limits

pytestmark = [pytest.mark.docker, pytest.mark.slow]


def write_dockerfile(folder: Path, image: str, *lines: str) -> None:
    (folder / "Dockerfile").write_text("\n".join([f"FROM {image}", *lines]) + "\n")


async def test_a_repository_in_the_image_is_the_work_folder(tmp_path: Path, image: str) -> None:
    (tmp_path / "code.py").write_text("answer = 42")
    lines = [
        "COPY code.py /testbed/package/code.py",
        "RUN ln -s package/code.py /testbed/link && touch /testbed/package/__init__.py && chmod 600 /testbed/link",
        "ENV TASK=7",
        'ENTRYPOINT ["/bin/false"]',
    ]
    write_dockerfile(tmp_path, image, *lines)
    async with DockerSandbox(dockerfile=str(tmp_path), workdir_from_image="/testbed", num_warm=0) as sandbox:
        async with await sandbox.open_session() as session:
            paths = [(file.path, file.kind) for file in await session.list_files()]
            assert paths == [
                ("link", "link"),
                ("package", "folder"),
                ("package/__init__.py", "file"),
                ("package/code.py", "file"),
            ]
            result = await session.run_cell(
                "import os\nfrom package.code import answer\nopen('package/code.py', 'a').close()\n"
                "answer, open('link').read(), os.environ['TASK']"
            )
            assert (result.value, result.error) == ("(42, 'answer = 42', '7')", None)
        with pytest.raises(SandboxUnavailableError, match="cannot be copied: the sandbox's disk is full"):
            await sandbox.run("1", limits=Limits(num_inodes=3))


async def test_a_build_that_fails_says_why(tmp_path: Path, image: str) -> None:
    write_dockerfile(tmp_path, image, "RUN echo because >&2; exit 3")
    with pytest.raises(SandboxUnavailableError, match=r"(?s)no image could be built from .*because.*"):
        await DockerSandbox(dockerfile=str(tmp_path)).start()
