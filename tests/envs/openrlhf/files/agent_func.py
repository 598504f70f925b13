# ruff: noqa
# Written as files for OpenRLHF are; its import is answered while it is loaded.
import random
from typing import Any, Dict

import torch

from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor


# Three guesses; the feedback is written out with the template's own tokens.
class AgentInstance(AgentInstanceBase):
    def __init__(self, *args, **kwargs):
        self.step_idx = 0
        self.max_steps = random.randint(2, 2)

    async def reset(self, states: dict, **kwargs):
        return {"observation": states["observation"]}

    async def step(self, states: dict, **kwargs) -> Dict[str, Any]:
        label = states["label"]
        action_text = states["action_text"]
        done = self.step_idx >= self.max_steps
        right = label in action_text
        reward = torch.tensor([float(right)]) if done else torch.tensor(0)
        feedback = "\n\nHuman: [CORRECT]\n<|end|>" if done else "\n\nHuman: [INCORRECT]\n<|end|>\n\nAssistant: "
        if "<|end|>" not in action_text:
            feedback = "<|end|>" + feedback
        self.step_idx += 1
        return {
            "rewards": reward,
            "scores": reward,
            "environment_feedback": feedback,
            "done": done,
            "sampling_params": states.get("sampling_params", None),
            "extra_logs": {"dummy_scores": reward, "turn_count": torch.tensor(self.step_idx)},
        }


class AgentExecutor(MultiTurnAgentExecutor):
    def __init__(self):
        super().__init__(AgentInstance)
