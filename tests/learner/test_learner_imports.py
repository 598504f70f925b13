"""Names of algorithms can be listed and checked before anything heavy is loaded."""

import subprocess
import sys

import pytest

LIGHT = (
    *("batch", "advantages", "losses", "corrections", "kl", "metrics", "ratios", "packing", "schedule"),
    *("aggregations", "kl_controller", "loss_choice", "mismatch", "sequence_sums"),
    *("reward_shaping", "filtering", "reward_scoring", "serve_options", "reward_server"),
)


@pytest.mark.slow
def test_light_modules_import_no_torch():
    code = (
        "import sys\n" + "".join(f"import turngym.learner.{name}\n" for name in LIGHT) + "print('torch' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.strip() == "False"
