"""What is settled before any process starts or a folder is touched, and everything that can be wrong by then."""

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..agents.chat import agent_for
from ..agents.tokenizer import load_tokenizer
from ..errors import ConfigError
from .advantages import NEEDS_TEACHER
from .attention import check_context, check_packable
from .from_settings import engine_dtype, loop_settings, objective, schedule, value_objective
from .inputs import Inputs, check_model, count_steps
from .lora import check_lora
from .objective import Objective
from .optimizers import optimizer_config
from .reward_scoring import RewardReader, normalization, recoding
from .role_plan import GroupPlan, plan_roles
from .schedule import Schedule
from .settings import TrainSettings
from .teacher_model import check_teacher
from .value_loss import ValueObjective

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CANARY_TEXT = "The quick brown fox jumps over the lazy dog. 12 + 30 ="


@dataclass(frozen=True)
class Plan:
    """What is settled before any process starts."""

    settings: TrainSettings
    inputs: Inputs
    num_steps: int
    objective: Objective
    schedule: Schedule
    value_objective: ValueObjective
    critic_schedule: Schedule
    reward_reader: RewardReader | None
    role_groups: list[GroupPlan]
    canary_prompt: list[int]
    hidden_size: int
    architecture: str  # a hash; two models with the same one have the same tensors


def _reward_reader(settings: TrainSettings, policy: "PreTrainedTokenizerBase") -> RewardReader | None:
    reward = settings.reward
    if reward.model_name_or_path is None:
        if reward.normalize_enable:
            raise ConfigError(
                "--reward.normalize_enable wants the moments of a model: give --reward.model_name_or_path"
            )
        return None
    model = check_model(reward.model_name_or_path, "--reward.model_name_or_path")
    config = _model_config(model)
    check_packable(config, settings.data.max_len)
    moments = normalization(config, model) if reward.normalize_enable else None
    positions = getattr(config.get_text_config(), "max_position_embeddings", None)
    return RewardReader(recoding(policy, load_tokenizer(model)), positions or settings.data.max_len, moments)


def _check_teacher(settings: TrainSettings, model: str) -> None:
    teacher, estimator = settings.teacher.model_name_or_path, settings.algo.advantage.estimator
    if (teacher is None) == (estimator in NEEDS_TEACHER):
        verb = "wants" if teacher is None else "has no use for"
        raise ConfigError(f"--algo.advantage.estimator {estimator} {verb} --teacher.model_name_or_path")
    if teacher is not None:
        check_teacher(check_model(teacher, "--teacher.model_name_or_path"), model, settings.data.max_len)


def make_plan(settings: TrainSettings, inputs: Inputs) -> Plan:
    """Look at everything that can be wrong before a process starts or a folder is touched."""
    model_config = _model_config(inputs.model)
    check_context(model_config, settings.data.max_len)
    check_packable(model_config, settings.data.max_len)
    engine_dtype(settings)
    check_lora(settings.ds)
    if settings.critic.model_name_or_path is not None:
        check_packable(
            _model_config(check_model(settings.critic.model_name_or_path, "--critic.model_name_or_path")),
            settings.data.max_len,
        )
    loop_settings(settings, count_steps(settings, len(inputs.tasks)))  # refuses weights and penalties that do not fit
    _check_teacher(settings, inputs.model)
    for role_options in (settings.actor, settings.critic):
        optimizer_config(role_options, offload=settings.ds.adam_offload)
    tokenizer = load_tokenizer(inputs.model)
    agent_for(tokenizer)  # refuses a tokenizer that cannot be used
    return Plan(
        settings,
        inputs,
        count_steps(settings, len(inputs.tasks)),
        objective(settings),
        schedule(settings, count_steps(settings, len(inputs.tasks))),
        value_objective(settings),
        schedule(settings, count_steps(settings, len(inputs.tasks)), "critic"),
        _reward_reader(settings, tokenizer),
        plan_roles(settings),
        tokenizer.encode(CANARY_TEXT, add_special_tokens=False),
        model_config.get_text_config().hidden_size,
        _architecture(model_config),
    )


def _model_config(model: str) -> Any:  # Any: transformers' configurations are open
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(model)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"--actor.model_name_or_path: {model!r} holds no model that transformers knows: {error}"
        ) from error


def _architecture(model_config: Any) -> str:
    incidental = {"_name_or_path", "transformers_version", "dtype", "torch_dtype", "use_cache"}
    facts = {key: value for key, value in model_config.to_dict().items() if key not in incidental}
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:12]
