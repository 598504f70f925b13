"""Whether runs can be repeated with these options; torch-free, so that a mistake shows at once."""

from ...envs.factory import EnvFactory
from ...errors import ConfigError
from ..run.settings import TrainSettings


def check_determinism(settings: TrainSettings) -> None:
    """Refuse what goes by the clock where synchronous runs are to repeat, and schedules that cannot be followed."""
    train, rollout = settings.train, settings.rollout
    if train.replay_schedule is not None:
        _check_replay(settings)
    if not train.full_determinism_enable or train.async_enable:
        return
    promise = "differs from run to run, and --train.full_determinism_enable promises that runs are the same"
    if rollout.straggler_timeout_s is not None:
        raise ConfigError(f"--rollout.straggler_timeout_s leaves behind what is slow, which {promise}; leave one out")
    if (rollout.vllm_generate_batch_size or 0) > rollout.batch_size:
        raise ConfigError(
            f"--rollout.vllm_generate_batch_size {rollout.vllm_generate_batch_size}: a step takes what finishes first, "
            f"which {promise}; leave one out"
        )


def check_sides(settings: TrainSettings, env: EnvFactory) -> None:
    """Refuse games whose sides wait for each other where all attempts are to be sampled in step."""
    if settings.train.full_determinism_enable and any(each.num_sides > 1 for each in env.members.values() or [env]):
        raise ConfigError(
            f"--train.full_determinism_enable samples all attempts in step, and sides of a game ({env.spec!r}) move "
            "one after the other; leave it out, or give the other side to an opponent"
        )


def _check_replay(settings: TrainSettings) -> None:
    train = settings.train
    refused = [
        (
            not train.async_enable,
            "is for rollouts that go on while the learner works (--train.async_enable); without, two runs under "
            "--train.full_determinism_enable do the same anyway",
        ),
        (not train.full_determinism_enable, "wants the same seeds: add --train.full_determinism_enable"),
        (
            train.partial_rollout_enable,
            "cannot repeat at which token of a completion an update came: leave --train.partial_rollout_enable out",
        ),
        (bool(settings.rollout.branch_at), "cannot be followed by episodes that branch: leave --rollout.branch_at out"),
        (
            settings.ckpt.load_enable,
            "begins at the first step, and --ckpt.load_enable goes on from a later one; leave one of them out",
        ),
    ]
    for is_refused, why in refused:
        if is_refused:
            raise ConfigError(f"--train.replay_schedule {why}")
