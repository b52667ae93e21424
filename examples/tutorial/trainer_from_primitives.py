"""Trains ResNet-34 on CIFAR-10 with broadcast and all-reduce alone: what DistributedDataParallel does inside.

Run it with ``torchrun --nproc-per-node 2 examples/tutorial/trainer_from_primitives.py --data DIR``; small, on
a CPU: ``--synthetic --subset 96 --batch-size 12 --width 8``.
"""

import argparse
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from options import batch_share, data_sets, parsed, training_parser
from place import Place, check_address, connect, find_place, refuse
from resnet import resnet34
from torch.utils.data import DataLoader, DistributedSampler, Subset

SEED = 1
PHASES = ("forward", "backward", "communication", "optimizer")


class Trainer:
    """One worker's model, data and times."""

    def __init__(self, options: argparse.Namespace, place: Place, device: torch.device) -> None:
        self.options, self.place, self.device = options, place, device
        torch.manual_seed(SEED + place.rank)  # the weights differ from rank to rank, until the broadcast
        self.model = resnet34(options.norm, options.width).to(device)
        # >>> broadcast
        # Buffers too: the statistics of batch norm are part of the model.
        for tensor in [*self.model.parameters(), *self.model.buffers()]:
            dist.broadcast(tensor.data, src=0)
        # <<<
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=options.lr, weight_decay=0.01)

        train_set, test_set = data_sets(options, "cifar10")
        share = batch_share(options, place.world_size)
        self.sampler = DistributedSampler(train_set, place.world_size, place.rank, seed=SEED, drop_last=True)
        self.train_loader = DataLoader(train_set, share, sampler=self.sampler, drop_last=True)
        test_part = Subset(test_set, range(place.rank, len(test_set), place.world_size))  # no sample twice
        self.test_loader = DataLoader(test_part, share)
        self.test_count = len(test_set)
        self.samples_seen = 0
        self.seconds = dict.fromkeys(PHASES, 0.0)

    def timed(self, phase: str, part: Callable[[], torch.Tensor | None]) -> torch.Tensor | None:
        """Run one part of a step and add its time to that of the phase."""
        begin = time.perf_counter()
        result = part()
        if self.device.type == "cuda":
            torch.cuda.synchronize()  # kernels run on after the call that started them has returned
        self.seconds[phase] += time.perf_counter() - begin
        return result

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Train on this worker's share of a global batch; return its loss."""
        images, labels = images.to(self.device), labels.to(self.device)
        loss = self.timed("forward", lambda: F.cross_entropy(self.model(images), labels))
        self.optimizer.zero_grad()
        self.timed("backward", loss.backward)
        self.timed("communication", self.average_gradients)
        self.timed("optimizer", self.optimizer.step)
        self.samples_seen += len(images) * self.place.world_size  # by all ranks: the x axis of every curve
        return loss.detach()

    def average_gradients(self) -> None:
        # >>> all-reduce
        for parameter in self.model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= self.place.world_size
        # <<<

    def train_epoch(self, epoch: int) -> float:
        """Return the mean loss of the epoch's global batches."""
        self.sampler.set_epoch(epoch)
        self.model.train()
        loss_sum = torch.zeros((), device=self.device)
        for number, (images, labels) in enumerate(self.train_loader, 1):
            loss_sum += self.step(images, labels)
            self.show_progress(number)
        dist.all_reduce(loss_sum)
        return loss_sum.item() / len(self.train_loader) / self.place.world_size

    @torch.no_grad()
    def evaluate(self) -> int:
        """Return how many of all test samples the model classifies right."""
        for buffer in self.model.buffers():  # batch norm's differ by now: each rank has seen its own samples
            dist.broadcast(buffer, src=0)
        self.model.eval()
        right = torch.zeros((), dtype=torch.int64, device=self.device)
        for images, labels in self.test_loader:
            right += (self.model(images.to(self.device)).argmax(1) == labels.to(self.device)).sum()
        dist.all_reduce(right)
        return int(right)

    def show_progress(self, done: int) -> None:
        """Draw a bar on rank 0's terminal."""
        if self.place.rank == 0 and sys.stderr.isatty():
            steps = len(self.train_loader)
            bar = "#" * (30 * done // steps)
            end = "\n" if done == steps else ""
            print(f"\r[{bar:30}] {done}/{steps}", end=end, file=sys.stderr, flush=True)


def main(options: argparse.Namespace) -> None:
    place = find_place()
    check_address(place)
    device = connect(place)
    log = wandb_log(options) if place.rank == 0 else None
    trainer = Trainer(options, place, device)
    report(trainer, 0, None, log)  # the untrained model: about one in ten right
    for epoch in range(1, options.epochs + 1):
        report(trainer, epoch, trainer.train_epoch(epoch - 1), log)
    dist.destroy_process_group()


def report(
    trainer: Trainer, epoch: int, loss: float | None, log: Callable[[dict[str, float], int], None] | None
) -> None:
    """Evaluate on all ranks; print and log on rank 0, over the samples that all ranks have seen."""
    right, count = trainer.evaluate(), trainer.test_count
    if trainer.place.rank > 0:
        return
    trained = "" if loss is None else f"loss {loss:.5f}, "
    print(f"epoch {epoch}: {trainer.samples_seen} samples, {trained}right {right}/{count}", flush=True)
    if loss is not None:
        times = ", ".join(f"{phase} {seconds:.3f} s" for phase, seconds in trainer.seconds.items())
        print(f"  {times}", file=sys.stderr, flush=True)
    if log:
        figures = {"accuracy": right / count, **trainer.seconds}
        log(figures if loss is None else {"loss": loss, **figures}, trainer.samples_seen)


def wandb_log(options: argparse.Namespace) -> Callable[[dict[str, float], int], None] | None:
    """Return wandb's log function if --wandb asks for it."""
    if options.wandb is None:
        return None
    try:
        import wandb
    except ImportError:
        refuse("--wandb needs the package wandb; install it, or leave --wandb out")
    run = wandb.init(project=options.wandb, config=vars(options))
    return lambda figures, samples: run.log(figures, step=samples)


def trainer_parser() -> argparse.ArgumentParser:
    parser = training_parser("Train ResNet-34 on CIFAR-10.", batch_size=96, lr=1e-3)
    parser.add_argument("--width", type=int, default=64, help="features of the first group, a multiple of 4")
    parser.add_argument("--wandb", metavar="PROJECT", help="log to Weights & Biases, on rank 0")
    return parser


if __name__ == "__main__":
    main(parsed(trainer_parser()))
