# ruff: noqa
# Written as files for OpenRLHF are; its import is answered while it is loaded.
from copy import deepcopy

from openrlhf.utils.agent import AgentExecutorBase


# Plays an episode by itself: two completions with a text of its own between them.
class AgentExecutor(AgentExecutorBase):
    async def execute(self, prompt, label, sampling_params, max_length, hf_tokenizer, llm_engine):
        tokens = hf_tokenizer(text=prompt, add_special_tokens=False)["input_ids"]
        ranges, log_probs, texts = [], [0.0] * len(tokens), []
        for feedback in ("+", "."):
            params = deepcopy(sampling_params)
            params.max_tokens = min(4, max_length - len(tokens))
            output = (await llm_engine.generate(tokens, params)).outputs[0]
            texts.append(output.text)
            ranges.append((len(tokens), len(tokens) + len(output.token_ids)))
            log_probs += [pairs[token_id].logprob for pairs, token_id in zip(output.logprobs, output.token_ids)]
            extra = hf_tokenizer(text=feedback, add_special_tokens=False)["input_ids"]
            tokens = tokens + output.token_ids + extra
            log_probs += [0.0] * len(extra)
        return {
            "prompt": prompt,
            "label": label,
            "observation_tokens": tokens,
            "action_ranges": ranges,
            "rollout_log_probs": log_probs,
            "reward": float(label in "".join(texts)),
            "scores": 0.0,
            "extra_logs": {"turns": len(ranges)},
            "truncated": output.finish_reason == "length",
        }
