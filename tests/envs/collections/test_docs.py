"""The snippets of the page on collections run, where their packages are installed."""

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[3] / "docs" / "collections.md").read_text()
SNIPPETS = re.findall(r"<!-- test: needs (\w+) -->\n```python\n(.*?)```", PAGE, re.DOTALL)


def test_every_snippet_says_what_it_needs() -> None:
    assert len(SNIPPETS) == PAGE.count("```python") == 1


@pytest.mark.parametrize(("package", "code"), SNIPPETS)
def test_snippets(package: str, code: str) -> None:
    pytest.importorskip(package, reason=f"needs the package: pip install 'turngym[{package}]'")
    exec(code, {"__name__": "snippet"})
