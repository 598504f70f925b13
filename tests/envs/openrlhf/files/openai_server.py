# ruff: noqa
# Written as files for OpenRLHF are that put a server in front of the engine; theirs is a client that is one itself.
from types import SimpleNamespace

from openrlhf.utils.agent import AgentExecutorBase


class OwnServer:
    def __init__(self, executor, llm_engine, hf_tokenizer):
        self.executor, self.engine, self.tokenizer, self.traces = executor, llm_engine, hf_tokenizer, {}
        self.chat = SimpleNamespace(completions=self)

    async def create(self, model, messages, max_tokens, temperature, top_p, extra_body):
        traces = self.traces.setdefault(extra_body["session_id"], [])
        text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        prompt = self.tokenizer.encode(text, add_special_tokens=False)
        if traces:  # what is new, behind what was read and written
            before = traces[-1][0] + traces[-1][1]
            prompt = (
                before + prompt[len(self.tokenizer.encode(self.tokenizer.decode(before), add_special_tokens=False)) :]
            )
        params = self.executor.sampling_params.clone()
        params.max_tokens = max_tokens
        output = (await self.engine.generate(prompt, params)).outputs[0]
        traces.append((prompt, list(output.token_ids)))
        content = output.text.removesuffix("<|end|>")
        return SimpleNamespace(choices=[SimpleNamespace(message=SimpleNamespace(content=content))])


class AgentExecutor(AgentExecutorBase):
    async def run_agent(self, prompt, label, session_id):
        history, said = [], []
        for question in (prompt, "Are you sure?"):
            history.append({"role": "user", "content": question})
            answer = await self.client.chat.completions.create(
                model=self.model_name,
                messages=history,
                max_tokens=self.sampling_params.max_tokens,
                temperature=self.sampling_params.temperature,
                top_p=self.sampling_params.top_p,
                extra_body={"session_id": session_id},
            )
            said.append(answer.choices[0].message.content)
            history.append({"role": "assistant", "content": said[-1]})
        return {"reward": float(label in said[-1]), "scores": 0.5, "extra_logs": {"turns": len(said)}}

    async def execute(self, prompt, label, sampling_params, max_length, hf_tokenizer, llm_engine):
        self.sampling_params, self.max_length, self.model_name = sampling_params, max_length, "policy"
        self.client = OwnServer(self, llm_engine, hf_tokenizer)
        result = await self.run_agent(prompt, label, "only")
        traces = self.client.traces["only"]
        return {
            "observation_tokens": sum(traces[-1], []),
            "action_ranges": [(len(prompt_ids), len(prompt_ids) + len(ids)) for prompt_ids, ids in traces],
            "reward": result["reward"],
            "scores": result["scores"],
            "extra_logs": result["extra_logs"],
        }
