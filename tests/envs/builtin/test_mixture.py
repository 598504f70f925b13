"""A mixture: what it is made of, where its tasks come from, and what is refused."""

import json
from pathlib import Path

import pytest

import turngym
from turngym.envs.checks import check_env
from turngym.envs.commands import main
from turngym.envs.play import play
from turngym.envs.resolution import resolve
from turngym.envs.task import Task
from turngym.errors import ConfigError, DataError, EnvError, UnknownNameError


@pytest.fixture
def problems(tmp_path: Path) -> str:
    file = tmp_path / "problems.jsonl"
    file.write_text("".join(json.dumps({"q": f"{n}+1?", "a": str(n + 1)}) + "\n" for n in range(3)))
    return str(file)


@pytest.mark.parametrize(
    "envs",
    [
        "Guess=2, CopyText",
        [{"id": "turngym/Guess-v0", "weight": 2}, "CopyText"],
        [{"id": "Guess", "weight": 2.0, "args": {}, "data": None}, {"id": "CopyText", "name": "CopyText"}],
    ],
)
def test_one_mixture_in_three_forms(envs):
    factory = resolve("Mixture", {"envs": envs})
    assert {name: member.family for name, member in factory.members.items()} == {n: n for n in ("Guess", "CopyText")}
    ids = [task.id for task in factory.tasks("train", 5)[:3]]
    assert ids == ["Guess/Guess/train/5000015", "CopyText/CopyText/train/5000015", "Guess/Guess/train/5000016"]
    assert factory.tasks("eval", 5)[0].id.startswith("Guess/Guess/eval/")


def test_each_member_gets_its_own_arguments_and_its_own_task():
    envs = [{"id": "Guess", "name": "easy", "args": {"high": 3}}, {"id": "Guess", "name": "hard"}]
    factory = resolve("Mixture", {"envs": envs})
    easy, hard = factory.tasks("train", 0)[:2]
    assert (easy.id, hard.id) == ("easy/Guess/train/0", "hard/Guess/train/0")
    assert (factory.for_task(easy).kwargs, factory.for_task(hard).kwargs) == ({"high": 3}, {})
    with pytest.raises(ConfigError, match="'other/1' is for none of the members of 'Mixture', which are easy, hard"):
        factory.for_task(Task("other/1"))


@pytest.mark.slow
def test_names_of_members_by_default():
    envs = ["reasoning_gym/chain_sum", f"{Path(__file__).parents[2] / 'learner' / 'mixed_envs.py'}:Steady"]
    assert list(resolve("Mixture", {"envs": envs}).members) == ["chain_sum", "Steady"]


@pytest.mark.slow
def test_a_members_own_dataset(problems):
    data = {"dataset": problems, "input_key": "q", "label_key": "a", "max_samples": 2}
    envs = ["CopyText", {"id": "Math", "data": data}]
    tasks = resolve("Mixture", {"envs": envs}).tasks("train", 0)
    assert [task.id.partition("/")[0] for task in tasks] == ["CopyText", "Math", "CopyText", "Math"]
    assert (tasks[1].prompt, tasks[1].label) == ("0+1?", "1")
    with pytest.raises(ConfigError, match=r"member 'Math' of the mixture brings no held-out tasks.*\"eval_dataset\""):
        resolve("Mixture", {"envs": envs}).tasks("eval", 0)
    data["eval_dataset"] = problems
    assert len(resolve("Mixture", {"envs": envs}).tasks("eval", 0)) == 4


def test_a_dataset_of_the_run_is_for_the_member_without_tasks():
    given = [Task("p1", prompt="1+1?", label="2")]
    factory = resolve("Mixture", {"envs": "CopyText=3,Math"})
    assert [task.id for task in factory.tasks("train", 0, given)] == [
        *(f"CopyText/CopyText/train/{number}" for number in (0, 1)),
        "Math/p1",
    ]  # the end: all of the dataset has come
    with pytest.raises(ConfigError, match=r"prompt_dataset is for nobody: each member of the mixture brings tasks"):
        resolve("Mixture", {"envs": "CopyText,Guess"}).tasks("train", 0, given)
    with pytest.raises(ConfigError, match=r"--eval.dataset could be for Math or PythonTool; name a dataset with each"):
        resolve("Mixture", {"envs": "Math,PythonTool"}).tasks("eval", 0, given)


@pytest.mark.parametrize(
    ("envs", "kind", "message"),
    [
        ("Gess,CopyText", UnknownNameError, "member 'Gess' of the mixture: unknown environment 'Gess'. Did you mean"),
        ("Guess=0", ConfigError, "member 'Guess' of the mixture: wanted a weight above 0, got 0.0; leave out"),
        ("Guess=-1", ConfigError, "wanted a weight above 0"),
        ("Guess=nan", ConfigError, "wanted a weight above 0"),
        ([{"id": "Guess", "weight": True}], ConfigError, "wanted a weight above 0, got True"),
        ("Guess=x", ConfigError, "member 'Guess=x': wanted NAME or NAME=WEIGHT with a number, got 'x'"),
        ("Guess,CopyText,Guess", ConfigError, "two members of a mixture are called 'Guess'; give each a name"),
        ("", ConfigError, "a mixture has no members"),
        ([], ConfigError, "a mixture has no members"),
        ("Guess,Mixture", ConfigError, "'Mixture' of the mixture: it is a mixture itself; name its members in its"),
        ([{"id": "Mixture", "args": {"envs": "Guess"}}], ConfigError, "it is a mixture itself"),
        ([{"id": "Guess", "wieght": 2}], ConfigError, "takes no 'wieght'. Did you mean 'weight'"),
        ([{"id": "Guess", "name": "a/b"}], ConfigError, "a name has letters, digits, '_', '.' and '-', got 'a/b'"),
        ([{"id": "Guess", "args": {"hihg": 2}}], ConfigError, "takes no argument 'hihg'. Did you mean 'high'"),
        ([{"id": "Guess", "args": 3}], ConfigError, "'args' wants a mapping of the environment's arguments, got 3"),
        ([{"id": "Math", "data": "x"}], ConfigError, "'data' wants a mapping with 'dataset' and perhaps more of"),
        ([{"id": "Math", "data": {"dataset": "x", "key": 1}}], ConfigError, "'data' takes no argument 'key'"),
        ([{"weight": 2}], ConfigError, "wants the name of an environment or"),
        ([3], ConfigError, "wants the name of an environment or"),
    ],
)
def test_what_cannot_be_is_refused_at_once(envs, kind, message):
    with pytest.raises(kind) as caught:
        resolve("Mixture", {"envs": envs})
    assert message in str(caught.value)


def test_members_without_tasks_are_named():
    with pytest.raises(ConfigError, match=r"member 'Math' of the mixture brings no tasks of its own; name a dataset"):
        resolve("Mixture", {"envs": "Guess,Math"}).tasks("train", 0)
    with pytest.raises(ConfigError, match=r"member 'HumanEval' of the mixture: HumanEval is for evaluation"):
        resolve("Mixture", {"envs": "Guess,HumanEval"}).tasks("train", 0)
    empty = f"{Path(__file__).parents[2] / 'learner' / 'mixed_envs.py'}:Empty"
    with pytest.raises(DataError, match=r"member 'Empty' of the mixture brings no tasks of the split 'train'; leave"):
        resolve("Mixture", {"envs": ["Guess", empty]}).tasks("train", 0)


@pytest.mark.slow
def test_a_plain_loop_goes_from_member_to_member(problems):
    data = {"dataset": problems, "input_key": "q", "label_key": "a"}
    env = turngym.make("Mixture", envs=["CopyText", {"id": "Prompt", "data": data}])
    try:
        with pytest.raises(EnvError, match="call reset first"):
            env.step("x")
        observation, _ = env.reset(seed=0)
        assert observation.startswith("Repeat: ")
        assert env.step(observation.removeprefix("Repeat: "))[1] == 1.0
        assert env.reset(options={"task": Task("Prompt/p", prompt="1+1?", label="2")}) == ("1+1?", {})
        assert env.step("2")[1:4] == (0.0, True, False)
        with pytest.raises(EnvError, match="'Other/1' is for none of the members, which are CopyText, Prompt"):
            env.reset(options={"task": Task("Other/1")})
    finally:
        env.close()


@pytest.mark.slow
def test_checks_name_the_member():
    assert check_env(resolve("Mixture", {"envs": "Guess=2,CopyText"})) == []
    broken = f"{Path(__file__).parents[2] / 'learner' / 'mixed_envs.py'}:Broken"
    problems = check_env(resolve("Mixture", {"envs": ["CopyText", {"id": broken, "args": {"num_good": 0}}]}))
    assert [problem.what for problem in problems] == ["Broken: reset raised OSError: it broke"]


@pytest.mark.slow
def test_commands(capsys, problems):
    words = ["--agent_args.envs", "Guess,Math", "--dataset", problems, "--input_key", "q", "--label_key", "a"]
    assert main(["check", "Mixture", *words]) == 0
    assert main(["check", "Mixture", "--agent_args.envs", "Guess,Gess"]) == 2
    assert "Did you mean 'Guess'?" in capsys.readouterr().err
    assert main(["list"]) == 0
    assert "turngym/Mixture-v0       Several environments by weight" in capsys.readouterr().out


def test_playing_one_task():
    factory = resolve("Mixture", {"envs": "Guess,CopyText"})
    lines: list[str] = []
    play(factory, factory.tasks("train", 0)[1], read=lambda prompt: "x", write=lines.append)
    assert lines[0] == "task CopyText/CopyText/train/0"
    assert lines[1].startswith("user: Repeat: ")
