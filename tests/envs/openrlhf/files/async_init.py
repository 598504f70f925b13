# ruff: noqa
# Written as files for OpenRLHF are; its import is answered while it is loaded.
import logging

from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor
from openrlhf.utils.logging_utils import init_logger

logging.basicConfig()
logger = init_logger(__name__)


class AgentInstance(AgentInstanceBase):
    async def __init__(self, *args, **kwargs):
        self.turns = 0

    async def reset(self, states: dict, **kwargs):
        import openrlhf.utils.agent as late

        assert issubclass(AgentInstance, late.AgentInstanceBase)
        return {"observation": "<" + states["observation"] + states["label"] + ">"}

    async def step(self, states: dict, **kwargs):
        self.turns += 1
        self.seen = states["observation_text"]
        return {"rewards": 0.25, "environment_feedback": f"[{self.seen}]", "done": self.turns == 2}


class AgentExecutor(MultiTurnAgentExecutor):
    def __init__(self):
        super().__init__(AgentInstance)
