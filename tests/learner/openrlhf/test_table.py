"""Every option of OpenRLHF's commands: accepted and acting, or refused with a reason; by its older names too."""

import csv
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from turngym.config import parse_serve_rm, parse_train
from turngym.errors import ConfigError
from turngym.learner.models.merge_lora import _parser as merge_lora_parser
from turngym.learner.openrlhf.foreign import FOREIGN, FOREIGN_TO_SERVE, Foreign
from turngym.learner.openrlhf.names import FOR_BOTH
from turngym.learner.openrlhf.other_commands import OF_OTHER_COMMANDS
from turngym.learner.openrlhf.translate import translate_serve, translate_train

ROWS = list(csv.DictReader((Path(__file__).parent / "flags.tsv").open(), delimiter="\t"))
TRAIN = [row for row in ROWS if row["command"] == "train_ppo_ray"]
SERVE = [row for row in ROWS if row["command"] == "serve_rm"]
MERGE = [row for row in ROWS if row["command"] == "lora_combiner"]

SAMPLES = {  # values that differ from the default, where "7", "0.25" or "x" would not do
    "ds.zero_stage": "3",
    "ds.param_dtype": "fp16",
    "algo.advantage.is_correction_threshold": "0.25 4.0",
    "actor.muon.nesterov": "",
    "critic.muon.nesterov": "",
}


def sample(row: dict[str, str]) -> str:
    """Return a value that is none of our defaults."""
    name = row["flag"].removeprefix("--")
    if name in SAMPLES:
        return SAMPLES[name]
    if row["type"].startswith("flag"):
        return ""
    if row["choices"]:
        return str(eval(row["choices"])[-1])
    value = {"int": "7", "float": "0.25", "str": "x"}[row["type"]]
    return f"{value} 0.5" if row["nargs"] == "2" else value


def typed(row: dict[str, str], text: str) -> Any:
    convert = {"int": int, "float": float}.get(row["type"], str)
    if row["type"].startswith("flag"):
        return True
    if row["nargs"]:
        return tuple(convert(part) for part in text.split())
    return convert(text)


def option(config: Any, name: str) -> Any:
    for part in name.split("."):
        config = getattr(config, part)
    return config


def ids(row: dict[str, str]) -> str:
    return row["flag"]


def test_the_table_is_whole():
    assert (len(TRAIN), len(SERVE), len(MERGE)) == (167, 14, 5)


def words_of(row: dict[str, str], written: str = "") -> list[str]:
    return [written or row["flag"], *sample(row).split()]


def ours(rows: list[dict[str, str]], foreign: Mapping[str, Foreign]) -> list[dict[str, str]]:
    return [row for row in rows if row["flag"].removeprefix("--") not in foreign and row["flag"] not in ELSEWHERE]


ELSEWHERE = (
    "--train.agent_func_path",
    "--train.colocate_actor_ref",
    "--actor.muon.no_nesterov",
    "--critic.muon.no_nesterov",
)
"""Rows that act on another option than that of their name."""


@pytest.fixture(scope="module")
def all_given():
    """All rows that act, each with a value that is not the default."""
    return parse_train([word for row in ours(TRAIN, FOREIGN) for word in words_of(row)])


@pytest.mark.parametrize("row", ours(TRAIN, FOREIGN), ids=ids)
def test_options_that_act(row, all_given):
    """The value reaches the option, and each older name is the same, which is said."""
    name = row["flag"].removeprefix("--")
    assert option(all_given, name) == typed(row, sample(row))
    for older in row["older_flat_name"].split():
        gae = ["--algo.advantage.estimator", "gae"] if name.startswith("critic.") else []
        found = translate_train([*words_of(row, older), *gae])
        joined = " ".join(found.words)
        assert " ".join(words_of(row)) in joined
        if older != row["flag"]:
            assert any(note.startswith(f"{older} is now --") and name in note for note in found.notes)


def test_rows_that_act_on_another_option():
    config = parse_train(["--actor.muon.no_nesterov", "--critic.muon.no_nesterov"])
    assert (config.actor.muon.nesterov, config.critic.muon.nesterov) == (False, False)
    for name in ("--train.agent_func_path", "--agent_func_path"):
        assert translate_train([name, "a.py"]).words == ["--agent", "func:a.py"]
    for name in ("--train.colocate_actor_ref", "--colocate_actor_ref"):
        assert translate_train([name, "--ref.num_gpus_per_node", "4", "--ref_num_nodes", "1"]).words == []


@pytest.mark.parametrize("row", [row for row in TRAIN if row["flag"].removeprefix("--") in FOREIGN], ids=ids)
def test_options_that_are_not_ours(row):
    check_foreign(row, FOREIGN, translate_train)


def check_foreign(row, foreign, translate) -> None:
    """By each name it is refused with a reason, or asks for what holds anyway, which is said."""
    rule = foreign[row["flag"].removeprefix("--")]
    for written in (row["flag"], *row["older_flat_name"].split()):
        words = words_of(row, written)
        if not (row["type"].startswith("flag") and "" in rule.granted):
            with pytest.raises(ConfigError, match=f"of OpenRLHF cannot be honoured. {written}") as error:
                translate(words)
            assert len(str(error.value)) > 90
        for value in rule.granted:
            found = translate([written, *([value] if value else [])])
            assert found.words == []
            assert found.notes[-1].startswith(written)


OTHERS = {row["flag"]: row for row in ROWS if row["command"] in ("train_sft", "train_rm", "train_dpo")}
KNOWN = {name for row in TRAIN for name in (row["flag"], *row["older_flat_name"].split())} | {"--learning_rate"}


def test_other_commands_rows_are_all_known():
    assert len(OTHERS) == 90
    assert {f"--{name}" for name in OF_OTHER_COMMANDS} == set(OTHERS) - KNOWN


@pytest.mark.parametrize("row", [OTHERS[flag] for flag in OTHERS if flag not in KNOWN], ids=ids)
def test_options_of_other_commands(row):
    """Each is refused with the reason; where it says another name, that is one of ours and acts."""
    rule = OF_OTHER_COMMANDS[row["flag"].removeprefix("--")]
    for written in {row["flag"], *row["older_flat_name"].split()} - KNOWN:
        with pytest.raises(ConfigError, match=f"of OpenRLHF cannot be honoured. {written}"):
            translate_train(words_of(row, written))
    for name in re.findall(r"--[a-z_.]+[a-z_]", rule.why):
        assert name in KNOWN or name in ("--agent", "--data.input_key", "--reward.remote_url"), name
        assert name.removeprefix("--") not in FOREIGN


def test_what_openrlhf_has_by_default_means_the_same_written_out():
    """All its defaults at once; one of them is refused."""
    rows = [
        row
        for row in ours(TRAIN, FOREIGN)
        if not row["type"].startswith("flag")
        and row["default"] not in ("None", "")
        and row["flag"] != "--ds.zero_stage"
    ]
    plain = {row["flag"]: re.sub(r"int\(|\.0\)|[()\[\],]", "", row["default"]) for row in rows}
    config = parse_train([word for flag, value in plain.items() for word in (flag, *value.split())])
    for row in rows:
        assert option(config, row["flag"].removeprefix("--")) == typed(row, plain[row["flag"]])
    with pytest.raises(ConfigError, match=r"--ds\.zero_stage 2: ZeRO-3 is the only stage"):
        translate_train(["--ds.zero_stage", "2"])


def test_serve_rm():
    rows = ours(SERVE, FOREIGN_TO_SERVE)
    config = parse_serve_rm([word for row in rows for word in words_of(row)])
    for row in rows:
        assert option(config, row["flag"].removeprefix("--")) == typed(row, sample(row))
        for older in row["older_flat_name"].split():
            assert translate_serve(words_of(row, older)).words == words_of(row)
    for row in SERVE:
        if row not in rows:
            check_foreign(row, FOREIGN_TO_SERVE, translate_serve)


def test_lora_combiner():
    words = [word for row in MERGE for word in words_of(row)]
    found = vars(merge_lora_parser().parse_args(words))
    assert found == {"model_path": "x", "lora_path": "x", "output_path": "x", "is_rm": True, "param_dtype": "fp16"}
    older = [word.replace("--ds.param_dtype", "--param_dtype") for word in words]
    assert vars(merge_lora_parser().parse_args(older)) == found


@pytest.mark.parametrize("name", FOR_BOTH)
def test_names_that_were_for_actor_and_critic(name):
    place = {"adam_betas": "adam.betas", "l2": "adam.weight_decay"}.get(name, name)
    alone = translate_train([f"--{name}", "0.25"])
    both = translate_train([f"--{name}", "0.25", "--advantage_estimator", "gae"])
    assert alone.words == [f"--actor.{place}", "0.25"]
    assert both.words[:4] == [*alone.words, f"--critic.{place}", "0.25"]
    assert both.notes[0] == f"--{name} is now --actor.{place} and --critic.{place}"
