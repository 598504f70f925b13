"""Names of algorithms can be listed and checked before anything heavy is loaded."""

import subprocess
import sys

import pytest

LIGHT = (
    *("batch", "advantages", "metrics", "ranks.packing", "ranks.schedule", "steps.filtering", "steps.pass_at_k"),
    *(f"losses.{name}" for name in ("policy", "corrections", "kl", "ratios", "aggregations", "kl_controller")),
    *("losses.choice", "losses.mismatch", "losses.sequence_sums"),
    *(f"rewards.{name}" for name in ("shaping", "scoring", "serve_options", "server")),
)


@pytest.mark.slow
def test_light_modules_import_no_torch():
    code = (
        "import sys\n" + "".join(f"import turngym.learner.{name}\n" for name in LIGHT) + "print('torch' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.strip() == "False"
