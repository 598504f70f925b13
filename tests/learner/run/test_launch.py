"""What the processes of a run are refused for, once the machine is known."""

import pytest

from turngym.config import parse_train
from turngym.errors import ConfigError
from turngym.learner.ranks.role_plan import plan_roles
from turngym.learner.run.launch import check_one_gpu, check_shares


def test_engines_that_want_more_than_their_gpu_are_refused():
    teacher = "--teacher.gpu_memory_utilization 0.2 --teacher.num_engines"
    check_shares(parse_train(f"{teacher} 2".split()))  # 0.4 + 2 * 0.2
    with pytest.raises(
        ConfigError, match=r"--vllm\.gpu_memory_utilization 0\.4 and --teacher.* are 1\.00 of the one GPU"
    ):
        check_shares(parse_train(f"{teacher} 3".split()))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--algo.kl.init_coef 0.1 --ref.num_gpus_per_node 1", r"ranks of their own are asked for \(reference:"),
        ("--ds.lora.rank 8 --ds.lora.sync adapter --ds.param_dtype fp32", "give --ds.param_dtype bf16, or"),
        (
            "--algo.advantage.estimator on_policy_distill --teacher.gpu_memory_utilization 0.7",
            r"are 1\.10 of the one GPU",
        ),
    ],
)
def test_what_one_gpu_cannot_do_is_refused(words, message):
    settings = parse_train(words.split())
    with pytest.raises(ConfigError, match=message):
        check_one_gpu(settings, plan_roles(settings))


def test_what_one_gpu_can_do_is_not_refused():
    for words in (
        "--ref.num_gpus_per_node 1 --algo.kl.init_coef 0",  # needs no reference
        "--ref.num_gpus_per_node 1 --algo.kl.init_coef 0.1 --train.colocate_all",
        "--ds.lora.rank 8 --ds.lora.sync adapter",
        "--ds.lora.rank 8 --ds.param_dtype fp32",
        "--algo.advantage.estimator on_policy_distill --teacher.gpu_memory_utilization 0.5",
    ):
        settings = parse_train(words.split())
        check_one_gpu(settings, plan_roles(settings))
