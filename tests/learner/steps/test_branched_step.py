"""From the options of a run to the advantages of a step, with everything real but the engine."""

import asyncio

import numpy as np
import pytest

from turngym.agents.tokenizer import load_tokenizer
from turngym.config import parse_train
from turngym.envs.task import Task
from turngym.executors.engines.scripted import ScriptedEngine
from turngym.executors.fleet.rollout_actor import RolloutActor
from turngym.learner.batch import assemble
from turngym.learner.loop_parts import LoopState
from turngym.learner.run.engine_settings import rollout_config
from turngym.learner.run.from_settings import loop_settings, rollout_plan
from turngym.learner.run.inputs import check_inputs
from turngym.learner.run.placement import Layout
from turngym.learner.steps.advantages import with_advantages
from turngym.learner.steps.attempts import rollout_metrics
from turngym.learner.steps.frontier import FrontierState
from turngym.learner.steps.rewards import StepRewards
from turngym.sandbox.registration import close_shared, shared_sandbox

OPTIONS = (
    "--agent env:PythonTool --agent_args.deadline_s 60 --data.label_key label --algo.kl.init_coef 0 "
    "--algo.advantage.estimator dr_grpo --rollout.n_samples_per_prompt 4 --rollout.branch_at 0 "
    "--rollout.batch_size 1 --train.batch_size 4"
)
SAID = {
    "0/0": "```python\nx = [40]\n```",
    "0/1": "```python\nx.append(2); sum(x)\n```",
    "0/2": r"\boxed{42}",
    "1/1": "```python\nx.append(1); sum(x)\n```",
    "1/2": r"\boxed{41}",
    "2/0": r"\boxed{0}",  # ends before the fork, so attempt 3 is a copy
}


@pytest.fixture
def settings(tiny_model, tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"input": "40 and 2?", "label": "42"}\n')
    given = f"{OPTIONS} --actor.model_name_or_path {tiny_model} --data.prompt_dataset {tmp_path / 'rows.jsonl'}"
    return parse_train(given.split())


@pytest.mark.slow
def test_a_step_of_python_tool_whose_attempts_branch(settings, tiny_model):
    """Rewards 1, 0, 0, 0: less their mean 3/4, -1/4, -1/4, -1/4, and where two of four share a turn times 3/2."""
    inputs, plan = check_inputs(settings), rollout_plan(settings)
    actor = RolloutActor(rollout_config(settings, inputs, Layout(1, 1, 0, 0, 1, 1)), on_gpu=False)
    tokenizer = load_tokenizer(str(tiny_model))
    engine = ScriptedEngine(lambda request: tokenizer.encode(SAID[request.name.partition("/")[2]]), max_context=8192)
    actor._engine = actor._generator = engine
    task = Task("t", inputs.tasks[0].prompt, inputs.tasks[0].label)

    async def run():
        try:
            group = await actor.run_group(task, plan.numbers, plan.sampling, plan.branching)
            return group, (await shared_sandbox("local")).num_sessions
        finally:
            await close_shared()

    group, num_sessions = asyncio.run(run())
    attempts = group.trajectories
    assert [t.reward for t in attempts] == [1, 0, 0, 0], [t.failure for t in attempts]
    assert [t.branch_of for t in attempts] == [None, (0, 0), None, (2, 0)]
    assert (num_sessions, len(engine.requests)) == (0, len(SAID))
    metrics = rollout_metrics(attempts, 1.0)
    assert (metrics["attempts/branched"], metrics["attempts/copies"]) == (2, 1)
    assert metrics["rollout/tokens"] == sum(len(tokenizer.encode(text)) for text in SAID.values())

    rewards = StepRewards(np.array([t.reward for t in attempts]), np.ones(4, bool), {})
    batch, _ = with_advantages(
        assemble(attempts), [group], rewards, loop_settings(settings, 1), LoopState(FrontierState("", 0, 0))
    )
    found = {
        (attempt, turn): set(
            batch.advantages[batch.is_action & (batch.attempt_of_token == attempt) & (batch.turns == turn)]
        )
        for attempt in range(4)
        for turn in range(attempts[attempt].num_turns)
    }
    assert found == {
        (0, 0): {1.125}, (0, 1): {0.75}, (0, 2): {0.75},
        (1, 0): {-0.375}, (1, 1): {-0.25}, (1, 2): {-0.25},
        (2, 0): {-0.375}, (3, 0): {-0.375},
    }  # fmt: skip
