"""What the page on Docker sandboxes shows works as it shows it."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[3] / "docs" / "sandbox-docker.md"


@pytest.mark.docker
def test_snippets_run(image: str) -> None:
    snippets = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert snippets
    for snippet in snippets:
        assert "python:3.12-slim" in snippet
        exec(compile(snippet.replace("python:3.12-slim", image), str(PAGE), "exec"), {"__name__": "snippet"})
