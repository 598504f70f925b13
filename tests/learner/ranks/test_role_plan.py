"""Which models a run needs, and which of them share ranks."""

import pytest

from turngym.config import parse_train
from turngym.learner.ranks.role_plan import GroupPlan, plan_roles

GAE = "--algo.advantage.estimator gae"


@pytest.mark.parametrize(
    ("words", "groups"),
    [
        ("--algo.kl.init_coef 0", [GroupPlan(("actor",), None)]),
        ("", [GroupPlan(("actor", "reference"), None)]),
        ("--actor.num_gpus_per_node 2 --actor.num_nodes 3", [GroupPlan(("actor", "reference"), 6)]),
        (
            f"{GAE} --reward.model_name_or_path rm",
            [GroupPlan(("actor", "reference", "critic", "reward"), None)],
        ),
        (
            f"{GAE} --critic.num_gpus_per_node 2 --ref.num_gpus_per_node 1 --ref.num_nodes 2",
            [GroupPlan(("actor",), None), GroupPlan(("reference",), 2), GroupPlan(("critic",), 2)],
        ),
        ("--ds.lora.rank 4", [GroupPlan(("actor", "reference"), None)]),
        (
            f"{GAE} --critic.num_gpus_per_node 2 --train.colocate_all",
            [GroupPlan(("actor", "reference", "critic"), None)],
        ),
    ],
)
def test_groups(words, groups):
    assert plan_roles(parse_train(words.split())) == groups
