"""`verify` names every independent fault of a script that has several, and notes mistakes beside them."""

from itertools import product
from pathlib import Path

import pytest

import gallery_ddp.manifest
from gallery_ddp.manifest import DIFFERENT
from support.tiers import mostly_long

RIGHT = (Path(gallery_ddp.manifest.__file__).parent / "accumulation_and_schedule.py").read_text()
BETWEEN_RANKS = {
    "never-averaged": ("cross_entropy(model(x)", "cross_entropy(model.module(x)"),
    "accumulation-not-averaged": ("is_last else model.no_sync()", "False else model.no_sync()"),
    "replicas-differ-at-start": (
        "    sampler = Dist",
        "    for one in model.parameters():\n        one.data += 0.01 * rank\n    sampler = Dist",
    ),
    "replicas-diverge": ("momentum=0.9)", "momentum=0.9, weight_decay=0.1 * rank)"),
}
OF_SCALE = {
    "sum-not-mean": ("(loss / MICRO_BATCHES)", "(loss * world_size / MICRO_BATCHES)"),
    "divided-twice": ("(loss / MICRO_BATCHES)", "(loss / MICRO_BATCHES / world_size)"),
}
OF_SAMPLES = {
    "batch-times-n": ("batch_size=24 // world_size", "batch_size=24"),
    "overlapping-shards": ("num_replicas=world_size, rank=rank, shuffle", "num_replicas=1, rank=0, shuffle"),
    "samples-left-out": ("shuffle=True)", "shuffle=True, drop_last=True)"),
    "no-set-epoch": ("sampler.set_epoch(epoch)", "pass"),
}
OF_RATES = {
    "lr-times-n": ("lr=0.1", "lr=0.1 * world_size"),
    "schedule-n-times": (
        "                scheduler.step()",
        "                for _ in range(world_size):\n                    scheduler.step()",
    ),
}
OTHERS = {
    "padded-evaluation": (
        "Subset(test, range(rank, len(test), world_size))",
        "Subset(test, list(DistributedSampler(test, world_size, rank, shuffle=False)))",
    ),
    "several-writers": (
        '            torch.save(model.module.state_dict(), "model.pt")',
        '        torch.save(model.module.state_dict(), "model.pt")',
    ),
    "module-keys": ("model.module.state_dict()", "model.state_dict()"),
}
FAULTS = BETWEEN_RANKS | OF_SCALE | OF_SAMPLES | OF_RATES | OTHERS
"""The text of the right script that each fault replaces, and its own."""
HIDDEN_BY = {
    # Ranks with equal samples have equal gradients, averaged or not.
    "never-averaged": {"overlapping-shards"},
    "accumulation-not-averaged": {"overlapping-shards"},
    # No step has the samples of one worker, so no gradient is compared with that of one worker.
    "sum-not-mean": {"batch-times-n", "overlapping-shards"},
    "divided-twice": {"batch-times-n", "overlapping-shards"},
    # Epochs with another number of steps advance a schedule at other steps.
    "schedule-n-times": {"batch-times-n", "overlapping-shards", "samples-left-out"},
    # Epochs with all samples on each rank are so long that no evaluation and no checkpoint is reached.
    **{name: {"overlapping-shards"} for name in OTHERS},
}
"""Faults that are not seen until others are mended."""


def combinations():
    """Yield two to four faults at once, so that all pairs of groups occur together."""
    rates, others = list(OF_RATES), list(OTHERS)
    for (i, value), (j, samples) in product(enumerate(BETWEEN_RANKS | OF_SCALE), enumerate(OF_SAMPLES)):
        yield value, samples, rates[(i + j) % 2], others[(i + j) % 3]
    yield from product(OF_RATES, OTHERS)


def script_with(names):
    text = RIGHT.replace("data(192)", "data(191)") if "samples-left-out" in names else RIGHT
    for name in names:
        right, faulty = FAULTS[name]
        assert right in text
        text = text.replace(right, faulty)
    return text


ALL = list(combinations())
SHORT = (
    "never-averaged batch-times-n lr-times-n padded-evaluation",
    "accumulation-not-averaged batch-times-n schedule-n-times several-writers",
    "replicas-differ-at-start batch-times-n lr-times-n module-keys",
    "replicas-diverge overlapping-shards lr-times-n several-writers",
    "sum-not-mean no-set-epoch schedule-n-times several-writers",
    "divided-twice samples-left-out schedule-n-times several-writers",
)
"""Each fault is visible in one of them, and hidden by `overlapping-shards` in another."""


@pytest.mark.parametrize("names", mostly_long(ALL, SHORT, " ".join))
def test_all_independent_faults_are_named(verifier, tmp_path, names):
    (tmp_path / "train.py").write_text(script_with(names))

    report = verifier.verify(tmp_path / "train.py")

    expected = {name for name in names if not HIDDEN_BY.get(name, set()) & set(names)}
    assert {finding["code"] for finding in report["findings"]} == expected, report["findings"]
    assert report["verdict"] == DIFFERENT
