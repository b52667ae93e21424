"""`verify` names every independent fault of a script that has several."""

from itertools import combinations
from pathlib import Path

import pytest

import gallery_ddp.manifest
from gallery_ddp.manifest import DIFFERENT

RIGHT = (Path(gallery_ddp.manifest.__file__).parent / "ddp_tutorial.py").read_text()
FAULTS = {
    "never-averaged": ("cross_entropy(model(data)", "cross_entropy(model.module(data)"),
    "sum-not-mean": ("loss.backward()", "(loss * world_size).backward()"),
    "replicas-diverge": (
        "momentum=0.9)",
        "momentum=0.9 if rank else 0.8, weight_decay=0.1 * rank)",
    ),
    "batch-times-n": ("args.batch_size // world_size", "args.batch_size"),
    "no-set-epoch": ("sampler.set_epoch(epoch)", "pass"),
    "lr-times-n": ("lr=args.lr", "lr=args.lr * world_size"),
    "padded-evaluation": ("Waveforms(48, 2)", "Waveforms(47, 2)"),
}
"""The text of the right script that each fault replaces, and its own; in the order of gravity."""
EXCLUDED = (
    {"never-averaged", "sum-not-mean"},
    {"never-averaged", "replicas-diverge"},
    {"sum-not-mean", "replicas-diverge"},
    {"sum-not-mean", "batch-times-n"},
)
"""Pairs of which only one can be seen until it is mended."""
CLASSIC = ("batch-times-n", "no-set-epoch", "lr-times-n", "padded-evaluation")
TOGETHER = [
    *((name,) for name in FAULTS),
    *(names for names in combinations(FAULTS, 2) if set(names) not in EXCLUDED),
    ("never-averaged", "no-set-epoch", "lr-times-n"),
    CLASSIC,
    ("never-averaged", *CLASSIC),
]


@pytest.mark.parametrize("names", TOGETHER, ids=" ".join)
def test_all_independent_faults_are_named(verifier, tmp_path, names):
    text = RIGHT
    for name in names:
        right, faulty = FAULTS[name]
        assert right in text
        text = text.replace(right, faulty)
    (tmp_path / "train.py").write_text(text)

    report = verifier.verify(tmp_path / "train.py")

    assert report["verdict"] == DIFFERENT
    assert {finding["code"] for finding in report["findings"]} == set(names), report["findings"]
