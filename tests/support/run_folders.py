"""Makes run folders for tests of the report."""

import json

PHASES = {"data": 0.001, "forward": 0.004, "backward": 0.006, "exposed_sync": 0.002, "optimizer": 0.001}
CONFIG = 'recipe = "digits"\nlr = 0.1\nbatch_size = 64\n'
SESSION = {
    "step": 0,
    "checkpoint": None,
    "world_size": 2,
    "nodes": 1,
    "launcher": "samestep",
    "device": "cpu",
    "threads": 1,
    "provenance": {
        "created": "2026-01-02T03:04:05+00:00",
        "command": ["samestep", "train", "<script>alert(1)</script>"],
        "machine": {"hostname": "node & co", "memory_bytes": 2**34, "torch": "2.13.0", "cpu": {}},
    },
}
RESULT = {
    "accuracy": 0.98765,
    "loss": 0.05,
    "epochs": 2,
    "steps": 40,
    "seconds": 12.5,
    "samples_per_second": 3200.0,
    "world_size": 2,
}


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def run_folder(path, *, steps=40, config=CONFIG, finished=True, **phases):
    """Write a run folder at `path`, as a training writes it; return it."""
    path.mkdir(parents=True)
    (path / "config.toml").write_text(config)
    seconds = PHASES | phases
    write_lines(
        path / "metrics.jsonl",
        [{"step": k, "loss": 2.0 / k, "lr": 0.1 * k / steps, **seconds} for k in range(1, steps + 1)],
    )
    ends = [k for k in range(1, steps + 1) if k % max(1, steps // 2) == 0]
    write_lines(
        path / "evaluations.jsonl",
        [
            {"step": k, "seconds": k / 8, "accuracy": k / (k + 5), "loss": 1 / k, "train_loss": 1.1 / k}
            for k in ends
        ],
    )
    write_lines(
        path / "ranks.jsonl",
        [
            {"step": k, "steps": 5, "rank": rank, "samples_per_second": 1000.0 + rank, **seconds}
            for k in range(5, steps + 1, 5)
            for rank in (0, 1)
        ],
    )
    write_lines(
        path / "sessions.jsonl", [SESSION, {**SESSION, "step": 20, "checkpoint": "step-20", "world_size": 3}]
    )
    checkpoint = path / "checkpoints" / "step-40"
    checkpoint.mkdir(parents=True)
    (checkpoint / "manifest.json").write_text("{}")
    (checkpoint / "model.safetensors").write_bytes(bytes(2_000_000))
    if finished:
        (path / "result.json").write_text(json.dumps(RESULT))
    return path


def scaled_folder(path, *, workers=1, step_s=0.01, batch=64, steps=40, slow=1.0):
    """Write the run folder of a training on so many workers; return it.

    Args:
        path: where.
        workers: how many.
        step_s: seconds of a step.
        batch: samples of a step on all workers.
        steps: how many.
        slow: how many times as long as the others the last rank computes, who wait for it.
    """
    run_folder(path, steps=steps)
    own = {"data": 0.001, "backward": 0.001, "exposed_sync": 0.0, "optimizer": 0.0}
    usual_s = step_s - sum(own.values())
    rows = []
    for step in range(5, steps + 1, 5):
        for rank in range(workers):
            is_slow = rank == workers - 1 and slow > 1 and workers > 1
            waited = 0.0 if is_slow or workers == 1 else usual_s * (slow - 1)
            phases = own | {"forward": usual_s * (slow if is_slow else 1), "exposed_sync": waited}
            rate = batch / workers / sum(phases.values())
            rows.append({"step": step, "steps": 5, "rank": rank, "samples_per_second": rate, **phases})
    write_lines(path / "ranks.jsonl", rows)
    write_lines(path / "sessions.jsonl", [SESSION | {"world_size": workers}])
    ends = [
        {"step": steps, "epoch": 1, "samples": batch * steps, "seconds": 1.0, "accuracy": 0.9, "loss": 0.1}
    ]
    write_lines(path / "evaluations.jsonl", ends)
    return path
