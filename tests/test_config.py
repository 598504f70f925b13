"""Options: dotted names, YAML, an agent's own arguments, and errors that name the nearest."""

from pathlib import Path

import pytest

from turngym.config import TrainConfig, option_names, parse_train, read_yaml, to_yaml
from turngym.errors import ConfigError


def test_dotted_options_reach_their_groups():
    words = (
        "--agent env:Guess --actor.adam.lr 1e-5 --rollout.batch_size 3 --actor.eps_clip_low_high 0.2 0.3 "
        "--train.colocate_all --ckpt.load_enable --algo.kl.use_loss --ckpt.no_save_hf"
    )
    config = parse_train(words.split())
    assert config.agent == "env:Guess"
    assert config.actor.adam.lr == 1e-5
    assert config.rollout.batch_size == 3
    assert config.actor.eps_clip_low_high == (0.2, 0.3)
    assert config.train.colocate_all
    assert config.ckpt.load_enable
    assert config.algo.kl.use_loss
    assert not config.ckpt.save_hf


def test_agent_arguments_are_read_as_yaml_scalars():
    words = ["--agent_args.low", "3", "--agent_args.name=x y", "--agent_args.exact", "true", "--agent_args.rate", "0.5"]
    assert parse_train(words).agent_args == {"low": 3, "name": "x y", "exact": True, "rate": 0.5}


def test_an_agent_argument_without_a_value_is_refused():
    with pytest.raises(ConfigError, match=r"--agent_args\.low needs a value"):
        parse_train(["--agent_args.low", "--agent", "env:Guess"])


def test_unknown_options_name_the_nearest():
    with pytest.raises(ConfigError, match=r"unknown option '--rollout.batchsize'. Did you mean '--rollout.batch_size'"):
        parse_train(["--rollout.batchsize", "3"])


def test_a_value_of_the_wrong_type_exits_with_2(capsys):
    with pytest.raises(SystemExit) as exit_info:
        parse_train(["--rollout.batch_size", "many"])
    assert exit_info.value.code == 2
    assert "batch_size" in capsys.readouterr().err


def test_yaml_nested_or_dotted_and_the_command_line_wins(tmp_path: Path):
    file = tmp_path / "run.yaml"
    file.write_text(
        "agent: env:Guess\nagent_args: {low: 1}\nactor:\n  adam.lr: 1e-5\n  max_norm: 2\n"
        "rollout.batch_size: 4\ntrain: {seed: 7}\nactor.eps_clip_low_high: [0.1, 0.2]\n"
    )
    config = parse_train(["--config", str(file), "--rollout.batch_size", "8", "--agent_args.high", "9"])
    assert config.actor.adam.lr == 1e-5
    assert config.actor.max_norm == 2.0
    assert config.actor.eps_clip_low_high == (0.1, 0.2)
    assert config.train.seed == 7
    assert config.rollout.batch_size == 8
    assert config.agent_args == {"low": 1, "high": 9}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rollout: {batchsize: 3}", "unknown option 'rollout.batchsize'. Did you mean 'batch_size'"),
        ("rolout: {batch_size: 3}", "unknown option 'rolout'. Did you mean 'rollout'"),
        ("rollout: 3", "'rollout' is a group of options"),
        ("[1, 2]", "holds a list"),
        ("a: [", "is not YAML"),
        ("rollout: {batch_size: many}", "rollout.batch_size: wanted int, got 'many'"),
        ("rollout: {batch_size: true}", "rollout.batch_size: wanted int, got True"),
        ("actor: {adam: {betas: [0.9]}}", r"actor.adam.betas: wanted tuple\[float, float], got \[0.9]"),
        ("ds: {param_dtype: fp8}", "ds.param_dtype: wanted .*fp32.*, got 'fp8'"),
        ("vllm: {num_engines: two}", "vllm.num_engines: wanted int or null, got 'two'"),
        ("agent_args: low", "agent_args: wanted dict.*, got 'low'"),
    ],
)
def test_yaml_mistakes(tmp_path: Path, text: str, message: str):
    file = tmp_path / "run.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match="(?s)" + message.replace("(", r"\(")):
        read_yaml(str(file), TrainConfig())


def test_an_agent_argument_that_is_no_yaml_value():
    with pytest.raises(ConfigError, match=r"--agent_args.text: '\[1,' is no YAML value") as error:
        parse_train(["--agent_args.text", "[1,"])
    assert "\n" not in str(error.value)


def test_null_is_a_value_of_options_that_may_be_absent(tmp_path: Path):
    file = tmp_path / "run.yaml"
    file.write_text("vllm: {num_engines: null}\nrollout: {stop: [a, b]}\n")
    config = read_yaml(str(file), TrainConfig())
    assert config.vllm.num_engines is None
    assert config.rollout.stop == ("a", "b")


def test_a_missing_file_is_named():
    with pytest.raises(ConfigError, match=r"no file 'nowhere\.yaml'"):
        read_yaml("nowhere.yaml", TrainConfig())


def test_what_is_written_is_read_back(tmp_path: Path):
    config = parse_train(["--agent", "env:Guess", "--agent_args.low", "3", "--actor.eps_clip_low_high", "0.2", "0.3"])
    file = tmp_path / "config.yaml"
    file.write_text(to_yaml(config))
    assert read_yaml(str(file), TrainConfig()) == config


def test_demo_file_is_valid():
    root = Path(__file__).parent.parent
    config = read_yaml(str(root / "examples" / "demo.yaml"), TrainConfig())
    assert config.agent == "env:reasoning_gym/chain_sum"
    assert config.eval.max_samples == 256
    assert config.eval.temperature == 0.0


def test_every_option_has_a_line_of_help():
    names = option_names(TrainConfig())
    assert len(names) > 80
    assert "actor.adam.lr" in names
