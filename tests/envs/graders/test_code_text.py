"""Which code an answer holds."""

import pytest

from turngym.envs.graders.code_text import Block, fenced_blocks, final_code, without_code


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ("Here:\n```python\nx = 1\n```\nDone.", "x = 1\n"),
        ("```python\nx = 1\n```\nBetter:\n```py\nx = 2\n```", "x = 2\n"),
        ("```python\nx = 1\n```\nIt prints\n```\n1\n```", "x = 1\n"),
        ("```python\nx = 1\n```\n```bash\nrun it\n```", "x = 1\n"),
        ("```\nx = 1\n```", "x = 1\n"),
        ("```Python3 title=a.py\nx = 1\n```", "x = 1\n"),
        ("```bash\nls\n```", None),
        ("<think>```python\nwrong\n```</think>```python\nx = 1\n```", "x = 1\n"),
        ("<think>```python\nwrong\n```</think>I give up.", "I give up."),
        ("<think>```python\nwrong\n```", None),
        ("```python\nx = 1\n", "x = 1\n\n"),
        ("```python\nx = 1", "x = 1\n"),
        ("~~~python\nx = 1\n~~~", "x = 1\n"),
        ("````python\ns = '''\n```\n'''\n````", "s = '''\n```\n'''\n"),
        ("- so:\n  ```python\n  if x:\n    y\n  ```", "if x:\n  y\n"),
        ("```python\r\nx = 1\r\n```\r\n", "x = 1\n"),
        ("```python\n```", None),
        ("```python\nx = 1\n```python\ny\n", "x = 1\n```python\ny\n\n"),
        ("    return 1\n", "    return 1\n"),
        ("def f(): return 1", "def f(): return 1"),
        ("", None),
        (" \n", None),
        ("use `x` inline ```x``` here", "use `x` inline ```x``` here"),
    ],
)
def test_the_last_block_of_the_language_counts(answer: str, code: str | None) -> None:
    assert final_code(answer) == code


def test_other_languages_and_other_labels() -> None:
    answer = "```python\na\n```\n```c++\nb\n```\n```\nc\n```"
    assert final_code(answer, "cpp") == "b\n"
    assert final_code(answer, "javascript") == "c\n"
    assert final_code(answer, "javascript", also=("python",)) == "a\n"
    assert final_code(answer, "javascript", also=()) is None


def test_blocks_say_whether_they_were_closed() -> None:
    assert fenced_blocks("a\n```run\n1\n```\n```\n2") == [Block("run", "1\n", True), Block("", "2\n", False)]


def test_text_without_its_code() -> None:
    assert without_code("a\n```python\n1\n```\nb\n```text\n2\n```") == "a\nb\n2\n"


@pytest.mark.slow
@pytest.mark.timeout(60)  # looking for each fence's end anew would take hours
def test_long_answers_take_no_time() -> None:
    for text in ("`" * 1_000_000, "```\n" * 250_000, " " * 1_000_000, "```python\n" * 100_000, "~" * 500_000 + "`"):
        final_code(text)
        without_code(text)
