"""Which executor runs a run's episodes, and whether what it needs fits the model."""

import logging
from typing import TYPE_CHECKING

from ...agents.chat import ChatAgent
from ...agents.frameworks.factory import AgentFactory
from ...envs.factory import EnvFactory
from ...envs.rewards import AnyReward, load_reward
from ...errors import ConfigError, TemplateError
from ..episodes.limits import Limits
from ..episodes.multi_turn import MultiTurn
from ..pools.env_pool import EnvPool
from .agent_file import make_executor
from .run_agent import run_agent_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from .openai_server import AgentEpisodes

_logger = logging.getLogger(__name__)


def check_parsers(agent: ChatAgent, env: EnvFactory | AgentFactory) -> None:
    """Make the parsers of answers once, so that a run does not begin with one that does not fit its model.

    Raises:
        ConfigError: One does not, be it named or what the chat template suggests.
        MissingPackageError: One is vLLM's, which is not installed.
        TemplateError: The model cannot be told of tools.
    """
    agent.readers.check()
    if not isinstance(env, AgentFactory):
        if env.has_tools:
            agent.check_tools()
        return
    try:
        agent.check_tools()
    except (ConfigError, TemplateError) as error:  # nobody knows whether a user's agent has tools
        _logger.warning("requests of --agent %s that bring tools will be refused: %s", env.spec, error)


def executor_of(
    env: EnvFactory | AgentFactory,
    agent: ChatAgent,
    pool: EnvPool,
    limits: Limits,
    tokenizer: "PreTrainedTokenizerBase",
) -> "MultiTurn | AgentEpisodes":
    """Return what steps an environment, or answers an agent of the user's own behind a server."""
    reward: AnyReward | None = None
    if isinstance(env, AgentFactory):
        asking = env()
        if env.remote_url is not None:
            reward = load_reward(env.remote_url, timeout_s=env.reward_timeout_s)
    else:
        own = run_agent_of(env, tokenizer, limits.max_context or tokenizer.model_max_length)
        if own is None:
            return make_executor(agent, env, pool, limits, tokenizer)
        asking = own
    from .openai_server import AgentEpisodes  # needs packages that environments do not

    return AgentEpisodes(agent, asking, limits, reward=reward, name=f"--agent {env.spec}")
