"""Teachers that cannot score what the actor samples are refused before anything starts."""

import json
import shutil
from pathlib import Path

import pytest

from turngym.errors import ConfigError
from turngym.learner.models.teacher_model import check_teacher, check_vocabulary

ACTOR = {"a": 0, "b": 1, "<end>": 2}


def test_the_same_vocabulary_will_do_and_a_larger_one_too():
    check_vocabulary(ACTOR, ACTOR, "t", "--teacher.model_name_or_path")
    check_vocabulary({**ACTOR, "<tool>": 3}, ACTOR, "t", "--teacher.model_name_or_path")


@pytest.mark.parametrize(
    ("teacher", "words"),
    [
        ({"b": 0, "a": 1, "<end>": 2}, "id 0 is 'a' to the actor and 'b' to 't'"),
        ({"a": 0, "b": 1}, "id 2 is '<end>' to the actor and nothing to 't'"),
        ({"a": 0, "b": 1, "<stop>": 2}, "id 2 is '<end>' to the actor and '<stop>' to 't'"),
    ],
)
def test_the_first_id_that_differs_is_named(teacher, words):
    with pytest.raises(ConfigError, match=words):
        check_vocabulary(teacher, ACTOR, "t", "--teacher.model_name_or_path")


@pytest.fixture
def altered(tiny_model: Path, tmp_path: Path):
    def alter(**changes: int) -> str:
        folder = tmp_path / "altered"
        shutil.copytree(tiny_model, folder, ignore=shutil.ignore_patterns("*.safetensors"))
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | changes))
        return str(folder)

    return alter


def test_a_padded_model_of_the_same_tokens_will_do(tiny_model, altered):
    check_teacher(str(tiny_model), str(tiny_model), 1023)
    check_teacher(altered(vocab_size=320), str(tiny_model), 1023)


def test_ids_that_the_teachers_model_has_no_room_for_are_refused(tiny_model, altered):
    with pytest.raises(ConfigError, match=r"ids up to 319, and .* knows only those below 258"):
        check_teacher(str(tiny_model), altered(vocab_size=320), 512)


def test_a_context_without_room_for_a_sequence_and_one_more_is_refused(tiny_model):
    with pytest.raises(ConfigError, match=r"made for 1024 tokens.*give --data\.max_len 1023 or less"):
        check_teacher(str(tiny_model), str(tiny_model), 1024)


def test_what_is_no_model_is_refused(tiny_model, tmp_path):
    with pytest.raises(ConfigError, match="holds no model"):
        check_teacher(str(tmp_path), str(tiny_model), 512)
