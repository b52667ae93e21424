"""Trains with and without a new order of the samples in each epoch, with several seeds."""

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DistributedSampler

from samestep.parallel.gradients.replicate import replicate
from samestep.ranks.world.protocol import World
from samestep.training.networks import build
from samestep.training.settings import Settings
from samestep_lab.experiments.experiment import Outcome, Setup, Table, interval_text, mean_and_half
from samestep_lab.experiments.training_runs import SUBSET, image_sets, pixels

SEEDS, EPOCHS, BATCH, RATE = 5, 5, 64, 0.05
Data = tuple[Tensor, Tensor]


def trained(
    world: World, model: nn.Module, data: tuple[Data, Data], *, seed: int, epochs: int, new_order: bool
) -> float:
    """Train a model data-parallel with torch's sampler; return its accuracy."""
    (images, labels), (test_images, test_labels) = data
    place, samples = world.place, range(len(labels))
    sampler: Any = DistributedSampler(samples, place.size, place.rank, seed=seed)  # type: ignore[arg-type]
    model = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
    with replicate(model, world, check_every=0):
        for epoch in range(epochs):
            if new_order:
                sampler.set_epoch(epoch)
            for part in torch.split(torch.tensor(list(sampler)), BATCH // place.size):
                optimizer.zero_grad()
                loss = F.cross_entropy(model(images[part]), labels[part])
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
    model.eval()
    with torch.inference_mode():
        answers = torch.cat([model(part).argmax(1) for part in torch.split(test_images, 1000)])
    return (answers == test_labels).double().mean().item()


def on_rank(
    world: World, models: list[nn.Module], data: tuple[Data, Data], epochs: int
) -> list[dict[bool, float]]:
    """Return the accuracy of each model, trained with a new order in each epoch and without."""
    return [
        {
            new_order: trained(world, model, data, seed=seed, epochs=epochs, new_order=new_order)
            for new_order in (True, False)
        }
        for seed, model in enumerate(models)
    ]


def run(setup: Setup, *, seeds: int = SEEDS, epochs: int = EPOCHS, samples: int = SUBSET) -> Outcome:
    """Run the experiment."""
    Settings(epochs=epochs, batch_size=BATCH, lr=RATE).check_workers(setup.workers)
    train_set, test_set = image_sets(setup, samples)
    models = []
    for seed in range(seeds):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            models.append(build("convnet", shape=train_set.shape, classes=len(train_set.classes)))
    by_seed, *_ = setup.ranks(on_rank, setup.workers, models, (pixels(train_set), pixels(test_set)), epochs)
    new, same = ([accuracy[is_new] for accuracy in by_seed] for is_new in (True, False))
    differences = [accuracy[True] - accuracy[False] for accuracy in by_seed]
    mean, half = mean_and_half(differences)
    rows = [
        (
            str(seed),
            *(f"{100 * accuracy[new_order]:.2f} %" for new_order in (True, False)),
            f"{100 * (accuracy[True] - accuracy[False]):+.2f}",
        )
        for seed, accuracy in enumerate(by_seed)
    ]
    rows.append(
        (
            "mean",
            *(interval_text(values, scale=100, unit=" %") for values in (new, same)),
            interval_text(differences, scale=100),
        )
    )
    effect = "an effect is measured" if abs(mean) > half else "no effect is measured"
    return Outcome(
        tables=[
            Table(head=("seed", "new order each epoch", "the same order", "difference in points"), rows=rows)
        ],
        measured=(
            f"A new order in each epoch changes the accuracy by {interval_text(differences, scale=100)} "
            f"points (95 % interval, {seeds} seeds, {epochs} epochs of {len(train_set):,} samples): {effect}."
        ),
        values={"new_order": new, "same_order": same, "difference": mean, "half_interval": half},
    )
