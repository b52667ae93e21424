"""Trains with the global batch kept, and with a batch per worker, at equal numbers of samples."""

from dataclasses import replace
from typing import Any

from samestep.training.recipes.request import LR_SCALES
from samestep.training.recipes.resolve import batch_per_worker
from samestep.training.settings import Settings
from samestep_lab.experiments.experiment import Outcome, Setup, Table, difference_text, interval_text
from samestep_lab.experiments.training_runs import SUBSET, image_sets, train_each

SEEDS, EPOCHS, BATCH, RATE = 5, 3, 64, 0.02
ONE = "one worker"


def variants(workers: int, *, epochs: int) -> dict[str, Settings]:
    """Return the settings of each variant."""
    settings = {
        ONE: Settings(epochs=epochs, batch_size=BATCH, lr=RATE),
        "global batch kept": Settings(epochs=epochs, batch_size=BATCH, lr=RATE),
    }
    for scale in LR_SCALES:
        scaled = batch_per_worker(BATCH, scale=scale, lr=RATE, workers=workers)
        settings[f"batch per worker, rate scale {scale}"] = Settings(
            epochs=epochs, batch_size=scaled.batch_size, lr=scaled.lr
        )
    return settings


def run(setup: Setup, *, seeds: int = SEEDS, epochs: int = EPOCHS, samples: int = SUBSET) -> Outcome:
    """Run the experiment."""
    sets, chosen = image_sets(setup, samples), variants(setup.workers, epochs=epochs)
    values: dict[str, dict[str, Any]] = {}
    for name, settings in chosen.items():
        size = 1 if name == ONE else setup.workers
        each = [replace(settings, seed=seed) for seed in range(seeds)]
        runs = setup.ranks(train_each, size, sets, each)[0]
        values[name] = {
            "batch_size": settings.batch_size,
            "lr": settings.lr,
            "steps": runs[0]["steps"],
            "accuracies": [result["accuracy"] for result in runs],
        }
    rows = [
        (
            name,
            str(variant["batch_size"]),
            f"{variant['lr']:.3g}",
            str(variant["steps"]),
            interval_text(variant["accuracies"], scale=100, unit=" %"),
        )
        for name, variant in values.items()
    ]
    head = ("training", "global batch", "learning rate", "steps", "accuracy")
    kept = values["global batch kept"]
    pairs = zip(kept["accuracies"], values[ONE]["accuracies"], strict=True)
    spread = max(abs(several - single) for several, single in pairs)
    costs = {
        scale: difference_text(
            kept["accuracies"], values[f"batch per worker, rate scale {scale}"]["accuracies"]
        )
        for scale in LR_SCALES
    }
    return Outcome(
        tables=[Table(head=head, rows=rows)],
        measured=(
            f"With the global batch kept, {setup.workers} workers take {kept['steps']} steps, as one worker "
            f"does, and their accuracies differ by up to {spread * 100:.2f} points; with a batch per worker "
            f"{values['batch per worker, rate scale none']['steps']} steps. After equally many samples these "
            f"cost {costs['none']} points of accuracy with the rate unchanged, "
            f"{costs['linear']} with the linear rule and {costs['sqrt']} with the square root ({seeds} "
            "seeds, 95 % intervals; one that contains 0 shows no difference)."
        ),
        values=values,
    )
