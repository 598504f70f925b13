"""What cannot work is refused before a process starts or a folder is touched."""

import pytest

from turngym.config import parse_train
from turngym.errors import ConfigError
from turngym.learner.inputs import check_inputs
from turngym.learner.run_plan import make_plan


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--reward.weights 1 2", r"--reward\.weights wants one weight"),
        ("--reward.clip_range 1 -1", r"--reward\.clip_range wants a lower"),
        ("--rollout.max_new_tokens 64 --reward.overlong_buffer_len 65", "the limit of 64 sampled tokens"),
        ("--rollout.max_episode_tokens 32 --reward.overlong_buffer_len 33", "the limit of 32 sampled tokens"),
        ("--reward.stop_properly_penalty_coef 2", r"--reward\.stop_properly_penalty_coef .* got 2"),
    ],
)
def test_rewards_that_cannot_be_shaped(words, message, tiny_model, tmp_path):
    common = f"--agent env:Guess --actor.model_name_or_path {tiny_model} --ckpt.output_dir {tmp_path / 'run'}"
    settings = parse_train(f"{common} --data.max_len 512 {words}".split())
    with pytest.raises(ConfigError, match=message):
        make_plan(settings, check_inputs(settings))
    assert not (tmp_path / "run").exists()
