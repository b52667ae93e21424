"""Evaluates one set of weights with samplers that pad, and with samplers that do not."""

from typing import Any

import torch
from torch.utils.data import DistributedSampler

from samestep.parallel.sharding import share
from samestep.ranks.world.protocol import SoloWorld
from samestep.training.loop.training_loop import Callbacks
from samestep.training.settings import Settings
from samestep_lab.experiments.experiment import Outcome, Setup, Table
from samestep_lab.experiments.training_runs import image_sets, pixels, training_of

PUBLISHED = 10_000
"""Number of test samples of MNIST and of CIFAR-10."""


def padded(count: int, size: int) -> list[list[int]]:
    """Return the samples of each rank by torch's `DistributedSampler`."""
    samples: Any = range(count)
    return [list(DistributedSampler(samples, size, rank, shuffle=False)) for rank in range(size)]


def exact(count: int, size: int) -> list[list[int]]:
    """Return the samples of each rank without padding, as `samestep.UnpaddedSampler` yields them."""
    return [list(share(count, rank, size)) for rank in range(size)]


def right_answers(setup: Setup, *, epochs: int, samples: int) -> torch.Tensor:
    """Train on one worker, and return for each test sample whether the answer is right."""
    sets, settings = image_sets(setup, samples), Settings(epochs=epochs, batch_size=64, lr=0.02)
    training = training_of(SoloWorld(), sets, settings)
    training.run(Callbacks.disabled(SoloWorld()))
    images, labels = pixels(sets[1])
    model = training.learner.model.eval()
    with torch.inference_mode():
        scores = torch.cat([model(part) for part in torch.split(images, 1000)])
    return scores.argmax(1) == labels


def run(setup: Setup, *, epochs: int = 1, samples: int = 1000) -> Outcome:
    """Run the experiment."""
    right = right_answers(setup, epochs=epochs, samples=samples)
    evaluations: list[dict[str, Any]] = []
    for size in sorted({2, 3, 7, setup.workers}):
        for name, draw in (("padded", padded), ("exact", exact)):
            parts = [right[part] for part in draw(len(right), size)]
            correct, total = sum(int(part.sum()) for part in parts), sum(map(len, parts))
            counts = [len(part) for part in draw(PUBLISHED, size)]
            evaluations.append(
                {
                    "workers": size,
                    "evaluation": name,
                    "correct": correct,
                    "total": total,
                    "accuracy": correct / total,
                    "of_10000": sum(counts),
                    "per_rank_of_10000": counts,
                }
            )
    rows = [
        (
            *(str(row[name]) for name in ("workers", "evaluation")),
            f"{row['correct']:,} / {row['total']:,}",
            f"{row['accuracy']:.4%}",
            f"{row['of_10000']:,}",
            " ".join(map(str, row["per_rank_of_10000"])),
        )
        for row in evaluations
    ]
    accuracy = int(right.sum()) / len(right)
    counted_twice = max(row["total"] for row in evaluations) - len(right)
    worst = max(abs(row["accuracy"] - accuracy) for row in evaluations if row["evaluation"] == "padded")
    sizes = {row["workers"]: row["of_10000"] for row in evaluations if row["evaluation"] == "padded"}
    head = ("workers", "evaluation", "right", "accuracy", "of 10,000 samples", "on each rank")
    return Outcome(
        tables=[Table(head=head, rows=rows)],
        measured=(
            f"One worker has {accuracy:.4%}. Up to {counted_twice} of {len(right):,} samples are counted "
            f"twice, which moves the accuracy by up to {100 * worst:.4f} points; the exact evaluation gives "
            f"{accuracy:.4%} on every number of workers. 10,000 samples become {sizes[3]:,} on 3 workers and "
            f"{sizes[7]:,} on 7."
        ),
        values={"accuracy": accuracy, "evaluations": evaluations},
    )
