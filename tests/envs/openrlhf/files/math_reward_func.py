# ruff: noqa
# Written as files for OpenRLHF are; its import is answered while it is loaded.
import torch

from openrlhf.utils import extract_boxed_answer, grade_answer


def reward_func(queries, prompts, labels, **kwargs):
    rewards = []
    for query, prompt, label in zip(queries, prompts, labels):
        answer = extract_boxed_answer(query[len(prompt) :])
        rewards.append(1.0 if grade_answer(answer, label) else 0.0)
    rewards = torch.tensor(rewards, dtype=torch.float)
    return {"rewards": rewards, "scores": rewards, "extra_logs": {"math_accuracy": rewards.mean()}}
