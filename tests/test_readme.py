"""README and docs are true: Python snippets run, commands exist, links lead somewhere.

A snippet that begins with a comment such as `# countdown.py` is saved under that name. `await` may stand at the top
level. What a snippet needs and a reader does not care for stands right above it in an HTML comment that begins with
`test`, and is run before it; `<!-- test: continues the snippet above -->` runs the one above first. The folder
`path/to/model` holds SmolLM2 for snippets that name it.
"""

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
MODEL = "path/to/model"
FENCE = re.compile(
    r"^(?:<!-- test(?P<continues>: continues the snippet above)?\s(?P<before>.*?)-->\n+)?"
    r"```(?P<language>[\w-]*)[^\n]*\n(?P<code>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
RUNNER = """
import ast, asyncio, inspect, pathlib
source = pathlib.Path("snippet.py").read_text()
result = eval(compile(source, "snippet.py", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), globals())
if inspect.iscoroutine(result):
    asyncio.run(result)
"""
SHELLS = {"bash", "sh", "shell", "console"}


@dataclass(frozen=True)
class Snippet:
    """One fenced block of a page."""

    place: str
    language: str
    before: str
    code: str


def snippets() -> list[Snippet]:
    found: list[Snippet] = []
    for page in PAGES:
        text = page.read_text()
        for match in FENCE.finditer(text):
            place = f"{page.relative_to(ROOT)}:{text.count(chr(10), 0, match.start('code'))}"
            before = match["before"] or ""
            if match["continues"]:
                before = found[-1].before + found[-1].code
            found.append(Snippet(place, match["language"], before, match["code"]))
    return found


SNIPPETS = snippets()
# These run elsewhere: tests/sandbox/docker/test_docs.py, tests/agents/frameworks/test_docs.py, and
# tests/executors/test_agent_file.py.
ELSEWHERE = ("docs/frameworks.md:", "docs/openrlhf.md:")
PYTHON = [
    pytest.param(each, id=each.place, marks=[pytest.mark.slow] if MODEL in each.code else [])
    for each in SNIPPETS
    if each.language == "python" and "DockerSandbox" not in each.code and not each.place.startswith(ELSEWHERE)
]


def commands(program: str) -> list[tuple[str, list[str]]]:
    """Return the place and the words of every command line of a program, in shell blocks and in running text."""
    found = []
    for each in SNIPPETS:
        if each.language in SHELLS:
            lines = each.code.replace("\\\n", " ").splitlines()
            found += [(each.place, line.removeprefix("$ ").strip()) for line in lines]
    for page in PAGES:
        prose = FENCE.sub("", page.read_text())
        found += [(page.name, line) for line in re.findall(rf"`((?:\w+=\S+ )*{program} [^`]+)`", prose)]
    split = [(place, shlex.split(line, comments=True)) for place, line in found]
    without_variables = [(place, [word for word in words if not re.match(r"[A-Z_]+=", word)]) for place, words in split]
    return [(place, words[1:]) for place, words in without_variables if words[:1] == [program]]


@cache
def help_text(words: tuple[str, ...]) -> str:
    command = [sys.executable, "-m", "turngym", *words, "--help"]
    environment = {**os.environ, "COLUMNS": "400"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, f"turngym {shlex.join(words)} --help: {done.stderr[-2000:]}"
    return done.stdout


@pytest.fixture
def place_for_snippets(tmp_path: Path) -> Path:
    """A folder with every snippet of the README that has a file name."""
    for each in SNIPPETS:
        name = re.match(r"# ([\w./-]+\.py)\n", each.code)
        if each.language == "python" and name and each.place.startswith("README"):
            (tmp_path / name[1]).write_text(each.code)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("snippet", PYTHON)
def test_snippet_runs(snippet: Snippet, place_for_snippets: Path, request: pytest.FixtureRequest) -> None:
    if MODEL in snippet.code:
        (place_for_snippets / MODEL).parent.mkdir(parents=True)
        (place_for_snippets / MODEL).symlink_to(request.getfixturevalue("smollm2"))
    (place_for_snippets / "snippet.py").write_text(snippet.before + snippet.code)
    command = [sys.executable, "-c", RUNNER]
    done = subprocess.run(command, cwd=place_for_snippets, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, f"{snippet.place}\n{done.stdout[-2000:]}{done.stderr[-4000:]}"


@pytest.mark.parametrize(("place", "words"), commands("turngym"), ids=lambda value: str(value).replace("/", "|"))
def test_turngym_command_exists(place: str, words: list[str]) -> None:
    subcommand = tuple(
        words[: next((i for i, word in enumerate(words) if not re.fullmatch(r"[a-z][a-z-]*", word)), None)]
    )
    known = set(re.findall(r"--[\w.-]+", help_text(subcommand)))
    options = [word.split("=")[0] for word in words if word.startswith("--") and not word.startswith("--agent_args.")]
    assert not [option for option in options if option not in known], f"{place}: turngym {shlex.join(words)}"


@pytest.mark.parametrize(("place", "words"), commands("make"), ids=lambda value: str(value).replace("/", "|"))
def test_make_target_exists(place: str, words: list[str]) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    asked = [word for word in words if word != "..."]
    assert set(asked) <= targets, f"{place}: make {shlex.join(words)}"


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=lambda page: page.name)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    prose = FENCE.sub("", page.read_text())
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, heading = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        assert file.exists(), f"{page.name} links to {target!r}"
        if heading:
            titles = re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE)
            anchors = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
            assert heading in anchors, f"{page.name} links to {target!r}; there are {sorted(anchors)}"


def test_the_readme_shows_every_extension_point_and_command() -> None:
    readme = "\n".join(each.code for each in SNIPPETS if each.place.startswith("README"))
    for needed in ("(Env)", "def reward_func(", "ESTIMATORS.register(", "turngym train --agent env:", "make demo"):
        assert needed in readme
    folders = {file.parent.name for file in ROOT.glob("[!.]*/__init__.py")}
    table = set(re.findall(r"^\| `([a-z]+)/` \|", (ROOT / "README.md").read_text(), re.MULTILINE))
    assert folders <= table


def test_the_environment_of_the_readme_passes_the_checks(place_for_snippets: Path) -> None:
    command = [sys.executable, "-m", "turngym", "envs", "check", "countdown.py:Countdown"]
    done = subprocess.run(command, cwd=place_for_snippets, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def test_the_reward_function_of_the_readme_scores(place_for_snippets: Path) -> None:
    program = "from exact import reward_func; print(reward_func(['1+1=2', '1+1=3'], ['1+1='] * 2, ['2'] * 2))"
    done = subprocess.run([sys.executable, "-c", program], cwd=place_for_snippets, capture_output=True, text=True)
    assert done.stdout == "[1.0, 0.0]\n", done.stderr


def test_the_estimator_of_the_readme_estimates(place_for_snippets: Path) -> None:
    (code,) = [
        each.code for each in SNIPPETS if "ESTIMATORS.register(" in each.code and each.place.startswith("README")
    ]
    use = (
        "zeros = np.zeros(4)\n"
        "rewards = np.array([1.0, 0.0, 0.0, 7.0])\n"
        "groups, attempts = np.array([0, 0, 0, 1]), np.array([0, 1, 1, 3])\n"
        "inputs = AdvantageInputs(rewards, np.ones(4, bool), groups, attempts, zeros.astype(int), zeros)\n"
        "print(ESTIMATORS['best_only'](inputs).tolist())\n"
    )
    (place_for_snippets / "use.py").write_text(f"{code}\n{use}")
    done = subprocess.run([sys.executable, "use.py"], cwd=place_for_snippets, capture_output=True, text=True)
    assert done.stdout == "[1.0, 0.0, 0.0, 0.0]\n", done.stderr
