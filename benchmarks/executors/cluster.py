"""Steps per hour of synchronous, asynchronous and partial rollouts on a simulated cluster, against its limit.

The scheduler is the real one, in virtual time; engines, environments and learner are models (`cluster_engine.py`,
`cluster_work.py`, `cluster_run.py`). The limit is the smaller of two: what the engines sample when they are always full
and never get weights, and what the learner does when a batch is always ready and weights take no time to send.
"""

import argparse
import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from cluster_engine import EngineModel
from cluster_run import Cluster, Mode, Record, Run

from turngym.executors.engines.base import UpdateMode

GOAL = 0.95
ASYNC, BOUND = 3, 5  # batches ahead and max_staleness of the comparison
MODES = {
    "synchronous": Mode(0, 0),
    "asynchronous, drained": Mode(ASYNC, BOUND, UpdateMode.DRAIN),
    "partial, recomputed": Mode(ASYNC, BOUND, UpdateMode.RECOMPUTE),
    "partial, kept": Mode(ASYNC, BOUND, UpdateMode.KEEP),
}
SHOWN_S, BIN_S = 3000.0, 20.0  # of the picture
BASELINE, BEST = "synchronous", "partial, kept"
COLUMNS = f"{'queue':>6} {'bound':>6} {'step s':>7} {'steps/h':>8} {'of limit':>9} {'engines':>8} {'learner':>8}"
COLUMNS += f" {'stragglers':>10} {'stale':>6} {'most':>5} {'expired':>8}"


@dataclass(frozen=True)
class Outcome:
    """A run in numbers; shares are of time, but the engines' of the tokens that they could sample."""

    step_s: float
    limit_s: float
    engines: float
    learner: float
    stragglers: float
    staleness: float
    max_staleness: int
    expired: int

    @property
    def share(self) -> float:
        """Steps per hour as a share of the smaller limit."""
        return self.limit_s / self.step_s


def full_rate(cluster: Cluster, num_steps: int) -> float:
    """Return the tokens per second of engines that are always full, never paused and never waited for."""
    alone = replace(few(cluster), learner_fixed_s=0.0, learner_s_per_token=0.0, update_s=None)
    rates = []
    for ahead in (2, 4):  # more in flight is not always faster
        samples = Run(alone, Mode(ahead, ahead)).play(num_steps).samples
        first, last = samples[len(samples) // 3], samples[-1]
        rates.append((last[1] - first[1]) / (last[0] - first[0]))
    return max(rates) * cluster.num_engines / alone.num_engines


def few(cluster: Cluster) -> Cluster:
    """Return fewer engines with the same work for each."""
    engines = min(cluster.num_engines, 16)
    return replace(cluster, num_engines=engines, batch_groups=cluster.batch_groups * engines // cluster.num_engines)


def with_learner(cluster: Cluster, rate: float, slowness: float) -> Cluster:
    """Give the cluster a learner that takes `slowness` times as long for a batch as full engines do."""
    serials = range(512)
    tokens = np.mean([e.tokens for n in serials for e in cluster.work.episodes(n, cluster.attempts)])
    batch_tokens = float(tokens) * cluster.batch_groups * cluster.attempts
    learn_s = slowness * batch_tokens / rate
    return replace(cluster, learner_s_per_token=(learn_s - cluster.learner_fixed_s) / batch_tokens)


def outcome(record: Record, num_warm: int, rate: float) -> Outcome:
    """Sum up the steps after the first ones; the limits are those of the batches that were really trained on."""
    began, ended = record.step_ends[num_warm - 1], record.step_ends[-1]
    step_s = (ended - began) / (len(record.step_ends) - num_warm)
    learn_s = float(np.mean(record.learn_s[num_warm:]))
    lags = np.concatenate(record.lags[num_warm:])
    times, tokens = np.transpose(record.samples)
    sampled = np.interp([began, ended], times, tokens)
    return Outcome(
        step_s=step_s,
        limit_s=max(learn_s, float(np.mean(record.batch_tokens[num_warm:])) / rate),
        engines=float((sampled[1] - sampled[0]) / (ended - began) / rate),
        learner=learn_s / step_s,
        stragglers=float(np.mean(record.straggler_s[num_warm:])) / step_s,
        staleness=float(lags.mean()),
        max_staleness=int(lags.max()),
        expired=record.expired,
    )


def show(name: str, mode: Mode, result: Outcome) -> None:
    print(
        f"{name:24} {mode.batches_ahead:6} {mode.max_staleness:6} {result.step_s:7.0f} {3600 / result.step_s:8.2f} "
        f"{result.share:9.1%} {result.engines:8.1%} {result.learner:8.1%} {result.stragglers:10.1%} "
        f"{result.staleness:6.2f} {result.max_staleness:5} {result.expired:8}",
        flush=True,
    )


def compare(cluster: Cluster, num_steps: int, num_warm: int) -> tuple[dict[str, Outcome], dict[str, Record], float]:
    """Run all modes where both stages are equally fast, which is where waiting for each other costs most."""
    rate = full_rate(cluster, num_steps)
    balanced = with_learner(cluster, rate, 1.0)
    print(f"{cluster.num_engines} engines, at most {rate:,.0f} tokens/s; a learner as fast\n{'':24} {COLUMNS}")
    results, records = {}, {}
    for name, mode in MODES.items():
        records[name] = Run(balanced, mode).play(num_steps)
        results[name] = outcome(records[name], num_warm, rate)
        show(name, mode, results[name])
    return results, records, rate


def sweep(cluster: Cluster, num_steps: int, num_warm: int) -> None:
    """Vary the learner's speed, queue and bound."""
    rate = full_rate(cluster, num_steps)
    for slowness, name in ((0.67, "engines are slower"), (1.0, "equally fast"), (1.5, "learner is slower")):
        print(f"\n{cluster.num_engines} engines; {name}: the learner takes {slowness} of their time\n{'':24} {COLUMNS}")
        for update in (UpdateMode.RECOMPUTE, UpdateMode.KEEP):
            for ahead, bound in ((1, 2), (2, 3), (2, 4), (3, 5)):
                mode = Mode(ahead, bound, update)
                record = Run(with_learner(cluster, rate, slowness), mode).play(num_steps)
                show(f"partial, {update.value}", mode, outcome(record, num_warm, rate))


def draw(path: Path, records: dict[str, Record], rate: float) -> None:
    """Draw what the engines sample in the end, as a share of full load; it is more where contexts are still short."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 1.3 * len(records) + 0.6), layout="constrained")
    axes = figure.subplots(len(records), sharex=True, sharey=True)
    for plot, (name, record) in zip(axes, records.items(), strict=True):
        times, tokens = np.transpose(record.samples)
        ends = np.array(record.step_ends)
        grid = np.arange(ends[-1] - SHOWN_S, ends[-1], BIN_S)
        used = np.diff(np.interp(grid, times, tokens)) / BIN_S / rate
        plot.fill_between((grid[1:] - grid[0]) / 60, 100 * used, step="pre", alpha=0.6)
        for end in ends[ends > grid[0]]:
            plot.axvline((end - grid[0]) / 60, color="black", linewidth=0.8)
        plot.set_title(name, fontsize="small", loc="left")
        plot.set_ylim(0, 110)
        plot.grid(alpha=0.3)
    axes[-1].set_xlabel("minutes; lines are weight updates")
    figure.supylabel("tokens/s of the engines, % of full load", fontsize="small")
    figure.savefig(path, dpi=80)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few engines and steps, to see that it runs")
    parser.add_argument("--sweep", action="store_true", help="also vary queue, bound and the learner's speed")
    parser.add_argument("--by_arrival", action="store_true", help="engines take requests as they come, not the oldest")
    parser.add_argument("--engines", type=int, default=256)
    parser.add_argument("--picture", type=Path, help="where to draw the engines' use over time")
    options = parser.parse_args()
    engines, steps, warm = (2, 6, 2) if options.quick else (options.engines, 24, 9)
    model = EngineModel(is_oldest_first=not options.by_arrival)
    cluster = Cluster(num_engines=engines, batch_groups=8 * engines, engine=model)
    results, records, rate = compare(cluster, steps, warm)
    if options.picture:
        draw(options.picture, records, rate)
    if options.sweep:
        sweep(few(cluster), 2 * steps, warm)
    best, baseline = results[BEST], results[BASELINE]
    result = {
        "name": "executors/cluster",
        "value": round(3600 / best.step_s, 3),
        "unit": "steps/h",
        "baseline": "the smaller of the two stages' limits",
        "baseline_value": round(3600 / best.limit_s, 3),
        "ratio": round(best.share, 3),
        "goal": GOAL,
        "met": best.share >= GOAL,
        "where": f"simulated, {engines} engines",
        "synchronous_ratio": round(baseline.share, 3),
        "recomputed_ratio": round(results["partial, recomputed"].share, 3),
        "events": sum(record.num_events for record in records.values()),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
