"""Where an answer ends in a rendering, and what is said when it does not stand there."""

import pytest

from turngym.agents.prefix import NOTHING_SAID, Reading, end_of_answer, why_rewritten
from turngym.agents.template import TemplateShape

SHAPE = TemplateShape(False, "", "", ("<e>\n", "<e>\n<u>"), ("<think>\n", "\n</think>\n\n"))


@pytest.mark.parametrize(
    ("text", "body", "end", "rest"),
    [
        ("<a>yes<e>\n<u>", "yes", "<e>", "\n<u>"),
        ("<a>yes<e>\n<u>", "yes", "", "<e>\n<u>"),  # cut: the end is context
        ("<a>yes<e>\n<u>", " yes \n", "<e>", "\n<u>"),  # trimmed
        ("<a>yes\n<e>\n<u>", "yes", "<e>", "\n<u>"),  # a newline more
        ("<a>t\n</think>\n\nyes<e>", "t</think> yes", "<e>", ""),  # spaced otherwise
        ("<a><e>\n", "", "<e>", "\n"),
        ("<a><e>\n", " \n", "<e>", "\n"),
        ("<a>yes<e>\n", "no", "<e>", None),
        ("<a>yes<e>\n", "yes", "<f>", None),
        ("<a>yes", "yes and no", "", None),
        ("<b>yes<e>", "yes", "<e>", None),
        ("<a>", "", "<e>", None),
    ],
)
def test_end_of_answer(text, body, end, rest):
    stop = end_of_answer(text, "<a>", Reading([], body, end))
    assert (None if stop is None else text[stop:]) == rest


def test_nothing_said_ends_at_once():
    assert end_of_answer("abc", "a", NOTHING_SAID) == 1


@pytest.mark.parametrize(
    ("text", "view", "body", "reason"),
    [
        ("<u>1/2<a>yes<e>", "<u>1/1<a>", "yes", "rewrites what was shown before: '1<a>yes<e>' became '2<a>yes<e>'"),
        ("<u><a>no<e>", "<u><a>", "yes", "rewrites an earlier answer: 'yes<e>' became 'no<e>'"),
        ("<u><a>yes<eom>", "<u><a>", "yes", "ends an earlier answer differently: '<e>' became '<eom>'"),
        (
            "<u><a>yes<e>",
            "<u><a>",
            "<think>\nhm\n</think>\n\nyes",
            "takes out the thoughts of earlier turns: '<think>\\nhm\\n</think>\\n\\nyes<e>' became 'yes<e>'",
        ),
        (
            "<u><a><think></think>yes<e>",
            "<u><a><think>\n",
            "hm</think>yes",
            "takes out the thoughts of earlier turns: '\\nhm</think>yes<e>' became '</think>yes<e>'",
        ),
    ],
)
def test_reasons(text, view, body, reason):
    assert why_rewritten(text, view, Reading([], body, "<e>"), SHAPE) == f"the template {reason}"
