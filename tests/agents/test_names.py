"""The public names of `turngym.agents`, and what they cost to import."""

import subprocess
import sys

import pytest

import turngym.agents as agents


@pytest.mark.parametrize("name", agents.__all__)
def test_every_public_name_is_found(name):
    assert getattr(agents, name).__name__ == name
    assert name in dir(agents)


def test_other_names_are_not():
    with pytest.raises(AttributeError, match="'ChatAgnet'"):
        agents.ChatAgnet  # noqa: B018


def test_importing_the_light_parts_imports_nothing_heavy():
    code = (
        "import sys, turngym.agents, turngym.agents.base, turngym.agents.sequence; "
        "print(sorted({'torch', 'transformers', 'jinja2'} & set(sys.modules)))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert answer.stdout.strip() == "[]"


@pytest.mark.slow
def test_the_chat_agent_itself_needs_no_transformers():
    code = "import sys, turngym.agents.chat; print('transformers' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert answer.stdout.strip() == "False"
