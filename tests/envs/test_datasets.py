"""Tasks from datasets, and what is said when they cannot be had."""

import json
import pickle
from collections import Counter
from pathlib import Path

import pytest

from turngym.envs.datasets import fingerprint, load_tasks
from turngym.envs.task import Task
from turngym.errors import ConfigError, DataError

ROWS = [{"question": f"{i} + {i}?", "answer": f"so #### {2 * i}", "level": i} for i in range(5)]


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path_factory.mktemp("cache")))
    datasets.disable_progress_bars()


def write(path: Path, rows: list[dict]) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def gsm(tmp_path: Path) -> str:
    return write(tmp_path / "gsm.jsonl", ROWS)


def test_a_file_of_rows_becomes_tasks(gsm: str) -> None:
    tasks = load_tasks(gsm, input_key="question", label_key="answer")
    assert len(tasks) == 5
    task = tasks[2]
    assert (task.prompt, task.label, dict(task.data)) == ("2 + 2?", "so #### 4", {"answer": "so #### 4", "level": 2})
    assert task.id.startswith("gsm.jsonl/2-")
    assert [t.id for t in pickle.loads(pickle.dumps(list(tasks)))] == [t.id for t in tasks]


@pytest.mark.parametrize("form", ["json", "csv", "parquet", "folder", "saved", "saved_dict"])
def test_forms_of_datasets(tmp_path: Path, form: str) -> None:
    import datasets

    rows = datasets.Dataset.from_list(ROWS)
    if form == "json":
        (tmp_path / "x.json").write_text(json.dumps(ROWS))
    elif form in ("csv", "parquet"):
        getattr(rows, f"to_{form}")(str(tmp_path / f"x.{form}"))
    elif form == "folder":
        rows.to_parquet(str(tmp_path / "x" / "train.parquet"))
    elif form == "saved":
        rows.save_to_disk(str(tmp_path / "x"))
    else:
        datasets.DatasetDict(train=rows, test=rows.select([0])).save_to_disk(str(tmp_path / "x"))
    name = str(tmp_path / ("x" if form in ("folder", "saved", "saved_dict") else f"x.{form}"))
    tasks = load_tasks(name, input_key="question", label_key="answer")
    assert [(task.prompt, task.label) for task in tasks] == [(row["question"], row["answer"]) for row in ROWS]
    if form == "saved_dict":
        assert len(load_tasks(name, split="test", input_key="question")) == 1
        with pytest.raises(DataError, match="has no split 'dev'; it has 'train', 'test'"):
            load_tasks(name, split="dev", input_key="question")


def test_a_file_is_one_table_whatever_the_split(gsm: str) -> None:
    assert len(load_tasks(gsm, split="test", input_key="question")) == 5


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({}, "no column 'input' for the prompt; its columns are 'question', 'answer', 'level'. Set --data.input_key"),
        (
            {"input_key": "question", "label_key": "solution"},
            "no column 'solution' for the label; its columns are 'question', 'answer', 'level'. Set --data.label_key",
        ),
    ],
)
def test_a_missing_column_names_those_there_are(gsm: str, keys: dict, message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_tasks(gsm, **keys)


def test_rows_without_label_are_dropped_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    labels = ["1", None, "None", "  ", "5"]
    file = write(tmp_path / "x.jsonl", [{"input": f"p{i}", "label": label} for i, label in enumerate(labels)])
    tasks = load_tasks(file, label_key="label")
    assert [(task.prompt, task.label) for task in tasks] == [("p0", "1"), ("p2", "None"), ("p4", "5")]
    assert [task.id.split("-")[0] for task in tasks] == ["x.jsonl/0", "x.jsonl/2", "x.jsonl/4"]
    assert "dropped 2 of 5 rows without a label in 'label' (the first is row 1)" in capsys.readouterr().err


def test_labels_of_zero_and_false_are_labels(tmp_path: Path) -> None:
    file = write(tmp_path / "x.jsonl", [{"input": "a", "label": 0}, {"input": "b", "label": 1}])
    assert [task.label for task in load_tasks(file, label_key="label")] == [0, 1]
    file = write(tmp_path / "y.jsonl", [{"input": "a", "label": False}])
    assert [task.label for task in load_tasks(file, label_key="label")] == [False]


def test_empty_numbers_in_csv_are_no_labels(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("input,label\na,1\nb,\nc,3\n")
    assert [task.label for task in load_tasks(str(tmp_path / "x.csv"), label_key="label")] == [1, 3]


def test_no_label_at_all_is_an_error(tmp_path: Path) -> None:
    file = write(tmp_path / "x.jsonl", [{"input": "a", "label": None}, {"input": "b", "label": None}])
    with pytest.raises(DataError, match="every row of the label column 'label' is empty; columns are input, label"):
        load_tasks(file, label_key="label")


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (None, r"row 1: 'input' holds None \(NoneType\); wanted text or chat messages"),
        ("  ", r"row 1: 'input' holds '  ' \(str\)"),
    ],
)
def test_a_row_without_prompt_is_named(tmp_path: Path, bad: object, message: str) -> None:
    file = write(tmp_path / "x.jsonl", [{"input": "fine"}, {"input": bad}, {"input": bad}])
    with pytest.raises(DataError, match=message):
        load_tasks(file)


def test_a_prompt_that_is_a_number_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"row 0: 'input' holds 3 \(int\)"):
        load_tasks(write(tmp_path / "x.jsonl", [{"input": 3}]))


def test_chat_messages_keep_only_the_keys_they_have(tmp_path: Path) -> None:
    chats = [
        [{"role": "user", "content": "hi"}],
        [{"role": "user", "content": "hi", "name": "bob"}, {"role": "assistant", "content": "yes"}],
    ]
    tasks = load_tasks(write(tmp_path / "x.jsonl", [{"input": chat} for chat in chats]), input_template="T: {}")
    assert [task.prompt for task in tasks] == chats


def test_a_bad_message_is_named(tmp_path: Path) -> None:
    file = write(tmp_path / "x.jsonl", [{"input": [{"role": "robot", "content": "hi"}]}])
    with pytest.raises(DataError, match="row 0: column 'input' returned a message of role 'robot'"):
        load_tasks(file)


def test_the_template_wraps_the_prompt(gsm: str) -> None:
    assert load_tasks(gsm, input_key="question", input_template="Q: {}\nA:")[1].prompt == "Q: 1 + 1?\nA:"
    assert load_tasks(gsm, input_key="question", input_template="{{x}} {}")[1].prompt == "{x} 1 + 1?"


@pytest.mark.parametrize("template", ["no place", "{} {}", "{name}", "{0", "{1}"])
def test_a_template_of_another_form_is_refused(gsm: str, template: str) -> None:
    with pytest.raises(ConfigError, match=r"input_template wants text with one {}"):
        load_tasks(gsm, input_key="question", input_template=template)


def test_max_samples_cuts(gsm: str) -> None:
    assert len(load_tasks(gsm, input_key="question", max_samples=3)) == 3
    with pytest.raises(ConfigError, match="max_samples must be at least 1"):
        load_tasks(gsm, input_key="question", max_samples=0)


def test_ids_tell_equal_rows_apart_and_are_stable(tmp_path: Path) -> None:
    file = write(tmp_path / "x.jsonl", [{"input": "same", "label": "1"}] * 3)
    ids = [task.id for task in load_tasks(file, label_key="label")]
    assert len(set(ids)) == 3
    assert len({task_id.split("-")[1] for task_id in ids}) == 1
    assert ids == [task.id for task in load_tasks(file, label_key="label")]


def test_several_datasets_follow_one_another(tmp_path: Path) -> None:
    a = write(tmp_path / "a" / "x.jsonl", [{"input": "same"}])
    b = write(tmp_path / "b" / "x.jsonl", [{"input": "same", "other": 1}])
    tasks = load_tasks(f"{a}, {b}")
    assert [task.prompt for task in tasks] == ["same", "same"]
    assert len({task.id for task in tasks}) == 2


def test_probs_draw_until_every_dataset_was_used_up(tmp_path: Path) -> None:
    a = write(tmp_path / "a.jsonl", [{"input": f"a{i}"} for i in range(40)])
    b = write(tmp_path / "b.jsonl", [{"input": f"b{i}"} for i in range(40)])
    tasks = load_tasks(f"{a},{b}", probs="3, 1", seed=1)
    counts = Counter(task.prompt[0] for task in tasks)
    assert {task.prompt for task in tasks} == {f"{name}{i}" for name in "ab" for i in range(40)}
    assert 2 < counts["a"] / counts["b"] < 4.5
    assert counts["b"] == 40  # the rarer one ends the drawing
    assert len({task.id for task in tasks}) == len(tasks)
    assert [t.id for t in tasks] == [t.id for t in load_tasks(f"{a},{b}", probs="3,1", seed=1)]
    assert [t.id for t in tasks] != [t.id for t in load_tasks(f"{a},{b}", probs="3,1", seed=2)]


@pytest.mark.parametrize("probs", ["1", "1,2,3", "1,x", "1,0", "1,-1", "1,nan", "1,inf"])
def test_probs_of_another_form_are_refused(gsm: str, probs: str) -> None:
    with pytest.raises(ConfigError, match="prompt_probs wants"):
        load_tasks(f"{gsm},{gsm}", input_key="question", probs=probs)


@pytest.mark.parametrize("name", ["./missing", "missing.jsonl", "/no/such/folder", "~/no/such.csv", "a/b/c.parquet"])
def test_a_missing_path_is_an_error_at_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: pytest.fail("went looking elsewhere"))
    with pytest.raises(DataError, match="no file or folder"):
        load_tasks(name)


def test_a_hub_name_that_cannot_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        DataError, match=r"dataset 'someone/something' cannot be loaded.*no local file or folder either"
    ):
        load_tasks("someone/something")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.jsonl", "", "is empty"),
        ("x.jsonl", "{not json", "cannot be loaded"),
        ("x.txt", "hello", "wanted a file that ends in .json, .jsonl, .csv, .parquet"),
        ("x.csv", "input,label\n", "no data"),
    ],
)
def test_files_that_hold_nothing_usable(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=message):
        load_tasks(str(tmp_path / name))


def test_no_name_is_an_error() -> None:
    with pytest.raises(DataError, match="wanted the name of a dataset"):
        load_tasks(" , ")


def test_a_fingerprint_sees_another_order_content_or_length() -> None:
    tasks = [Task(id=f"t/{i}") for i in range(1000)]
    same = [Task(id=f"t/{i}") for i in range(1000)]
    assert fingerprint(tasks) == fingerprint(same)
    assert len({fingerprint(t) for t in (tasks, tasks[:-1], tasks[::-1], [], tasks[:1])}) == 5
