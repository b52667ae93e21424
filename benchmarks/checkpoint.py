"""What checkpointing in the background costs a step: with and without, turn by turn in one run.

    python benchmarks/checkpoint.py [--rounds 6] [--every 20] [--model resnet18] [--batch-size 32]

Each round trains the same network for `every` steps twice: with one checkpoint (weights and momentum, hashed,
written, flushed to disk, the one before deleted) and without. What is being written at the end is waited for
within the time. Prints the median step of each, the median of the rounds' ratios with its quartiles, how
long `Writer.save` held the training, and how much more processor time the process used, waiting included.
"""

import argparse
import json
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

import torch
import torch.nn.functional as F
from torch import nn

from samestep.base.folders import absolute
from samestep.training.checkpoint.checkpoint_schedule import Retention, Writer
from samestep.training.checkpoint.snapshot import Snapshot
from samestep.training.networks import build

SHAPE, CLASSES = (3, 32, 32), 10


@dataclass
class Turn:
    """What `every` steps took."""

    seconds: float
    processor_seconds: float
    held_s: float


class Trained:
    """A network on one batch of noise: what it learns changes no time.

    Args:
        name: of the model.
        batch_size: samples.
        writer: of its checkpoints.
    """

    def __init__(self, name: str, batch_size: int, writer: Writer) -> None:
        torch.manual_seed(0)
        self.model: nn.Module = build(name, shape=SHAPE, classes=CLASSES)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9)
        self.images = torch.randn(batch_size, *SHAPE)
        self.labels = torch.randint(0, CLASSES, (batch_size,))
        self.writer = writer
        self.steps = 0

    def turn(self, steps: int, *, checkpoint: bool) -> Turn:
        """Take steps, with a checkpoint after the first of them or none."""
        held_s, began, cpu_began = 0.0, time.perf_counter(), time.process_time()
        for number in range(steps):
            self.step()
            if checkpoint and number == 0:
                before = time.perf_counter()
                self.save()
                held_s = time.perf_counter() - before
        self.writer.wait()
        return Turn(time.perf_counter() - began, time.process_time() - cpu_began, held_s)

    def step(self) -> None:
        """Take one step."""
        self.optimizer.zero_grad()
        F.cross_entropy(self.model(self.images), self.labels).backward()
        self.optimizer.step()
        self.steps += 1

    def save(self) -> None:
        """Begin a checkpoint."""
        state = {"optimizer": self.optimizer.state_dict()}
        self.writer.save(Snapshot(self.model.state_dict(), state, {"step": self.steps}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--every", type=int, default=20)
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--folder", type=absolute, help="on the disk to write to; by default a temporary one")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with (
        tempfile.TemporaryDirectory(dir=options.folder) as folder,
        closing(Writer(Path(folder), Retention(last=1))) as writer,
    ):
        trained = Trained(options.model, options.batch_size, writer)
        trained.turn(3, checkpoint=True)  # warm up
        pairs = []
        for number in range(options.rounds):
            order = (True, False) if number % 2 else (False, True)
            turns = {checkpoint: trained.turn(options.every, checkpoint=checkpoint) for checkpoint in order}
            pairs.append((turns[True], turns[False]))
        assert writer.failure is None, writer.failure
    print(json.dumps(report(trained, pairs, options)))


def report(
    trained: Trained, pairs: list[tuple[Turn, Turn]], options: argparse.Namespace
) -> dict[str, object]:
    ratios = [with_one.seconds / without.seconds for with_one, without in pairs]
    low, _, high = quantiles(ratios, n=4)
    return {
        "with_step_s": round(median(pair[0].seconds for pair in pairs) / options.every, 5),
        "without_step_s": round(median(pair[1].seconds for pair in pairs) / options.every, 5),
        "median_ratio": round(median(ratios), 4),
        "ratio_quartiles": [round(low, 4), round(high, 4)],
        "held_s": round(median(pair[0].held_s for pair in pairs), 4),
        "processor_s": round(median(a.processor_seconds - b.processor_seconds for a, b in pairs), 3),
        "parameters": sum(parameter.numel() for parameter in trained.model.parameters()),
        "model": options.model,
        "batch_size": options.batch_size,
        "every": options.every,
        "rounds": options.rounds,
        "threads": options.threads,
    }


if __name__ == "__main__":
    main()
