"""Which executor runs a run's episodes."""

from typing import TYPE_CHECKING

from ..agents.chat import ChatAgent
from ..agents.frameworks.factory import AgentFactory
from ..envs.factory import EnvFactory
from ..envs.rewards import load_reward
from .agent_file import make_executor
from .env_pool import EnvPool
from .limits import Limits
from .multi_turn import MultiTurn

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from .openai_server import AgentEpisodes


def executor_of(
    env: EnvFactory | AgentFactory,
    agent: ChatAgent,
    pool: EnvPool,
    limits: Limits,
    tokenizer: "PreTrainedTokenizerBase",
) -> "MultiTurn | AgentEpisodes":
    """Return what steps an environment, or answers an agent of the user's own behind a server."""
    if not isinstance(env, AgentFactory):
        return make_executor(agent, env, pool, limits, tokenizer)
    from .openai_server import AgentEpisodes  # needs packages that environments do not

    reward = None if env.remote_url is None else load_reward(env.remote_url, timeout_s=env.reward_timeout_s)
    return AgentEpisodes(agent, env(), limits, reward=reward, name=f"--agent {env.spec}")
