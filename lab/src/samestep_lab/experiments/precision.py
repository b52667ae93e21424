"""Trains in each precision with several seeds, and lists the old names O0 to O3."""

from dataclasses import replace

from samestep.base.units import rate_text
from samestep.training.settings import Settings
from samestep_lab.experiments.experiment import Outcome, Setup, Table, difference_text, interval_text
from samestep_lab.experiments.training_runs import image_sets, train_each

PRECISIONS = ("fp32", "bf16", "fp16", "bf16-true", "fp16-true")
LEVELS = (
    ("O0", "float32 everywhere", "fp32"),
    ("O1", "float16 in matrix products, by autocast; float32 weights; the loss is scaled", "fp16"),
    ("O2", "float16 weights with a float32 master copy; the loss is scaled", "fp16 (the nearest)"),
    ("O3", "float16 everywhere", "fp16-true"),
)
"""The names of NVIDIA's Apex, what they meant, and the precision here."""
SEEDS, EPOCHS, SAMPLES = 3, 2, 1000


def run(setup: Setup, *, seeds: int = SEEDS, epochs: int = EPOCHS, samples: int = SAMPLES) -> Outcome:
    """Run the experiment."""
    sets = image_sets(setup, samples)
    base = Settings(epochs=epochs, batch_size=64, lr=0.02)
    chosen = [replace(base, precision=name, seed=seed) for seed in range(seeds) for name in PRECISIONS]
    results = setup.ranks(train_each, setup.workers, sets, chosen)[0]
    values = {
        name: {
            "accuracies": [result["accuracy"] for result in results[number :: len(PRECISIONS)]],
            "samples_per_second": [
                result["samples_per_second"] for result in results[number :: len(PRECISIONS)]
            ],
        }
        for number, name in enumerate(PRECISIONS)
    }
    speeds = {name: figures["samples_per_second"] for name, figures in values.items()}
    rows = [
        (
            name,
            interval_text(figures["accuracies"], scale=100, unit=" %"),
            f"{rate_text(min(speeds[name]), 'samples')} - {rate_text(max(speeds[name]), 'samples')}",
        )
        for name, figures in values.items()
    ]
    accuracies = {name: figures["accuracies"] for name, figures in values.items()}
    lower = {name: difference_text(accuracies[name], accuracies["fp32"]) for name in PRECISIONS[1:]}
    ratios = {
        name: interval_text([speed / full for speed, full in zip(speeds[name], speeds["fp32"], strict=True)])
        for name in PRECISIONS[1:]
    }
    further = ", ".join(f"{name} at {ratios[name]}" for name in PRECISIONS[2:])
    return Outcome(
        tables=[
            Table(head=("precision", "accuracy", "speed, slowest - fastest run"), rows=rows),
            Table(
                head=("level", "meaning", "--precision here"),
                rows=LEVELS,
                title="Levels of NVIDIA's library Apex, and their names here",
            ),
        ],
        measured=(
            f"On this device bf16 trains at {ratios['bf16']} times the speed of fp32, {further} "
            f"({seeds} seeds, {epochs} epochs of {len(sets[0]):,} samples). The accuracies differ from that "
            f"of fp32 by {', '.join(f'{text} ({name})' for name, text in lower.items())} points (95 % "
            "intervals; one that contains 0 shows no difference)."
        ),
        values=values,
    )
