"""What the pages on executors and engines show works as they show it."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.slow
@pytest.mark.parametrize("page", ["executors.md", "engines.md", "env-pools.md"])
def test_snippets_run(page):
    snippets = re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text(), re.DOTALL | re.MULTILINE)
    assert snippets
    for snippet in snippets:
        exec(compile(snippet, page, "exec"), {"__name__": "snippet"})
