"""What is settled before any process starts or a folder is touched, and everything that can be wrong by then."""

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...agents.chat import agent_for
from ...agents.frameworks.factory import AgentFactory
from ...agents.template_kwargs import parse_template_kwargs
from ...agents.tokenizer import load_tokenizer
from ...envs.factory import EnvFactory
from ...envs.openrlhf.env import is_multi_turn, shared_executor, takes_images
from ...errors import ConfigError
from ...executors.own_agents.run_agent import asks_server
from ...executors.rollouts.schedule import RolloutSchedule
from ..advantages import NEEDS_TEACHER, NEEDS_VALUES
from ..losses.objective import Objective
from ..losses.value import ValueObjective
from ..models.attention import check_context, check_packable
from ..models.lora import check_lora, describe, require_bitsandbytes
from ..models.teacher_model import ACTOR_OPTION, check_ids, check_teacher, model_config
from ..models.value_model import check_head
from ..models.vision import TRAINED, reads_images
from ..option_checks.agent import has_agent_file
from ..ranks.optimizers import optimizer_config
from ..ranks.role_plan import GroupPlan, plan_roles
from ..ranks.schedule import Schedule
from ..rewards.scoring import RewardReader, normalization, recoding
from ..rollout_choice import schedule_to_follow
from .engine_settings import engine_dtype
from .from_settings import critic_model, loop_settings, objective, pace, schedule, value_objective
from .inputs import Inputs, check_model, count_steps
from .settings import TrainSettings

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CRITIC_OPTION, REWARD_OPTION = "--critic.model_name_or_path", "--reward.model_name_or_path"
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
    critic_architecture: str  # "none" without a critic
    rollout_schedule: RolloutSchedule | None  # None: rollouts are free
    tool_parser_choice: str  # a line for who trains with tools


def _reward_reader(settings: TrainSettings, policy: "PreTrainedTokenizerBase") -> RewardReader | None:
    reward = settings.reward
    if reward.model_name_or_path is None:
        return None
    model = check_model(reward.model_name_or_path, REWARD_OPTION)
    config = model_config(model, REWARD_OPTION)
    check_head(model, settings.ds.value_head_prefix)
    moments = normalization(config, model) if reward.normalize_enable else None
    positions = getattr(config.get_text_config(), "max_position_embeddings", None) or settings.data.max_len
    recode = recoding(policy, load_tokenizer(model))
    # A text may take more tokens of another vocabulary.
    check_packable(config, positions if recode is not None else settings.data.max_len)
    return RewardReader(recode, positions, moments)


def _critic_architecture(settings: TrainSettings, inputs: Inputs, actor_config: Any) -> str:
    """Refuse a critic that cannot read what the actor samples; return "none" without one."""
    if settings.algo.advantage.estimator not in NEEDS_VALUES:
        return "none"
    option = REWARD_OPTION if settings.critic.model_name_or_path is None else CRITIC_OPTION
    model = critic_model(settings, inputs)
    if model == inputs.model:
        return _architecture(actor_config)
    config = model_config(check_model(model, option), option)
    try:
        check_context(config, settings.data.max_len)
        check_packable(config, settings.data.max_len)
        check_ids(model, config, inputs.model, actor_config, option)
    except ConfigError as error:
        raise ConfigError(
            f"the critic, which begins as {option} {model}, cannot read the actor's tokens: {error}; "
            f"{CRITIC_OPTION} names another"
        ) from error
    return _architecture(config)


def _check_actor(settings: TrainSettings, config: Any) -> None:  # Any: transformers' configurations are open
    check_context(config, settings.data.max_len)
    check_packable(config, settings.data.max_len)
    if settings.actor.aux_loss_coef and not hasattr(config.get_text_config(), "output_router_logits"):
        raise ConfigError(
            f"--actor.aux_loss_coef is for mixtures of experts, and {ACTOR_OPTION} is a {config.model_type} model "
            "without any; leave it at 0"
        )


def _check_images(
    settings: TrainSettings, env: EnvFactory | AgentFactory, config: Any
) -> None:  # Any: as in `_check_actor`
    """Refuse what cannot be trained with images, before a run finds out."""
    kind, can_see = config.model_type, reads_images(config)
    if settings.actor.freeze_visual_encoder and not can_see:
        raise ConfigError(
            f"--actor.freeze_visual_encoder: {ACTOR_OPTION} is a {kind} model, which has none; leave it out"
        )
    if can_see and settings.algo.advantage.estimator in NEEDS_VALUES:
        raise ConfigError(
            f"--algo.advantage.estimator {settings.algo.advantage.estimator} wants a critic, and transformers has no "
            f"classifier of type {kind} that one could be; use an estimator without, such as group_norm"
        )
    if settings.data.image_key is None:
        return
    if not can_see:
        raise ConfigError(
            f"--data.image_key: {ACTOR_OPTION} is a {kind} model, which cannot be trained with images; those that can "
            f"be: {', '.join(sorted(TRAINED))}"
        )
    blind = {
        REWARD_OPTION: settings.reward.model_name_or_path,
        "--teacher.model_name_or_path": settings.teacher.model_name_or_path,
    }
    for option, model in blind.items():
        if model is not None:
            raise ConfigError(
                f"{option} {model} would read prompts of --data.image_key without their images; leave it out"
            )
    if has_agent_file(settings) and isinstance(env, EnvFactory):
        _check_images_of_file(str(env.kwargs["path"]))


def _check_images_of_file(path: str) -> None:
    executor = shared_executor(path)
    if is_multi_turn(executor):
        return
    if asks_server(path):
        raise ConfigError(
            f"--data.image_key: run_agent of {path!r} takes no images; leave it out, and its execute runs, which "
            "may take images"
        )
    if not takes_images(executor):
        raise ConfigError(f"--data.image_key: execute of {path!r} takes no images; give it the parameter 'images'")


def _check_teacher(settings: TrainSettings, model: str) -> None:
    teacher, estimator = settings.teacher.model_name_or_path, settings.algo.advantage.estimator
    if estimator not in NEEDS_TEACHER:
        return
    if teacher is None:
        raise ConfigError(f"--algo.advantage.estimator {estimator} wants --teacher.model_name_or_path")
    check_teacher(check_model(teacher, "--teacher.model_name_or_path"), model, settings.data.max_len)


def _check_freezing(settings: TrainSettings, num_steps: int) -> None:
    if 0 < num_steps <= settings.critic.freezing_steps:
        raise ConfigError(
            f"--critic.freezing_steps {settings.critic.freezing_steps} holds the actor back for all {num_steps} steps "
            "of the run (--train.max_steps, --train.num_episodes), so it would never learn; give fewer"
        )


def make_plan(settings: TrainSettings, inputs: Inputs) -> Plan:
    """Look at everything that can be wrong before a process starts or a folder is touched."""
    config, num_steps = model_config(inputs.model, ACTOR_OPTION), count_steps(settings, len(inputs.tasks))
    _check_actor(settings, config)
    _check_images(settings, inputs.env, config)
    engine_dtype(settings)
    check_lora(settings.ds)
    if settings.ds.load_in_4bit:
        require_bitsandbytes()
    _check_freezing(settings, num_steps)
    loop_settings(settings, num_steps)  # refuses weights and penalties that do not fit
    pace(settings)
    _check_teacher(settings, inputs.model)
    for role_options in (settings.actor, settings.critic):
        optimizer_config(role_options, offload=settings.ds.adam_offload)
    tokenizer = load_tokenizer(inputs.model)
    agent = agent_for(  # refuses a tokenizer that cannot be used, and names of parsers that are none
        tokenizer,
        template_kwargs=parse_template_kwargs(settings.rollout.chat_template_kwargs),
        tool_parser=settings.rollout.tool_parser,
        reasoning_parser=settings.rollout.reasoning_parser,
    )
    return Plan(
        settings,
        inputs,
        num_steps,
        objective(settings, is_stale=settings.train.async_enable),
        schedule(settings, num_steps),
        value_objective(settings),
        schedule(settings, num_steps, "critic"),
        _reward_reader(settings, tokenizer),
        plan_roles(settings),
        tokenizer.encode(CANARY_TEXT, add_special_tokens=False),
        config.get_text_config().hidden_size,
        _architecture(config),
        _critic_architecture(settings, inputs, config),
        schedule_to_follow(settings),
        agent.readers.choice,
    )


def _architecture(model_config: Any) -> str:
    incidental = {"_name_or_path", "transformers_version", "dtype", "torch_dtype", "use_cache"}
    facts = {key: value for key, value in model_config.to_dict().items() if key not in incidental}
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:12]


def written_by(plan: Plan, num_ranks: int) -> dict[str, str | int]:
    """Return what a run must have in common with the one whose checkpoint it reads, by names that hold the option.

    Args:
        plan: Of this run.
        num_ranks: Of the actor's group.
    """
    settings, critic = plan.settings, "none"
    for group in plan.role_groups:
        if "critic" in group.roles:
            critic = f"{plan.critic_architecture} by {settings.critic.optim} on {group.num_ranks or num_ranks} ranks"
    return {
        "learner ranks": num_ranks,
        "--ds.param_dtype": settings.ds.param_dtype,
        "architecture (--actor.model_name_or_path)": plan.architecture,
        "--actor.optim": settings.actor.optim,
        "adapters (--ds.lora.rank)": describe(settings.ds.lora),
        "weights in 4 bits (--ds.load_in_4bit)": "yes" if settings.ds.load_in_4bit else "none",
        "critic (--algo.advantage.estimator)": critic,
        "average of the weights (--train.enable_ema)": "kept" if settings.train.enable_ema else "none",
    }
