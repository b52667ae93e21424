"""Trainings with each option equal the serial training, also if they are resumed."""

import functools
import io
import re
from dataclasses import replace

import pytest
import torch
from rich.console import Console
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from samestep.parallel.sharding import epoch_order
from samestep.ranks.world.protocol import SoloWorld
from samestep.ranks.world.thread_world import run_ranks
from samestep.training.checkpoint.checkpoint_schedule import CheckpointManager
from samestep.training.checkpoint.read import read
from samestep.training.loop.progress import ConsoleDisplay
from samestep.training.loop.training_loop import Callbacks
from samestep.training.settings import RunOptions
from support.training import Memory, convnet, digits, largest_difference, settings, train, training

EVERYTHING = {
    "accumulate": 2,
    "clip_norm": 0.5,
    "label_smoothing": 0.1,
    "ema": 0.9,
    "schedule": "cosine",
    "warmup": 0.3,
    "augment": "crop:1,flip",
}
CHOICES = [
    {"accumulate": 4},
    {"shuffle": "once"},
    {"shuffle": "never"},
    {"clip_norm": 0.5},
    {"label_smoothing": 0.2},
    {"ema": 0.9},
    {"optimizer": "adamw", "lr": 0.01, "weight_decay": 0.1},
    {"nesterov": True, "weight_decay": 0.01},
    {"accumulate": 2, "clip_norm": 0.5, "label_smoothing": 0.1, "ema": 0.8, "optimizer": "adamw", "lr": 0.01},
]
TOLERANCE = 1e-8
"""AdamW divides by gradients that may be near 0, and so makes rounding larger."""


@functools.cache
def by_hand(chosen):
    """Train by a loop of plain PyTorch; return the model and what is evaluated."""
    train_set, _ = digits()
    torch.manual_seed(chosen.seed)
    model = convnet().double()
    if chosen.optimizer == "adamw":
        optimizer = torch.optim.AdamW(model.parameters(), lr=chosen.lr, weight_decay=chosen.weight_decay)
    else:
        names = ("lr", "momentum", "nesterov", "weight_decay")
        optimizer = torch.optim.SGD(model.parameters(), **{name: getattr(chosen, name) for name in names})
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(chosen.ema), use_buffers=True)
    average.update_parameters(model)  # the first call copies
    scale, shift = 1 / (train_set.white * train_set.std[0]), train_set.mean[0] / train_set.std[0]
    for epoch in range(chosen.epochs):
        ordered = {"every-epoch": epoch, "once": 0, "never": 0}[chosen.shuffle]
        shuffled = chosen.shuffle != "never"
        order = torch.from_numpy(
            epoch_order(len(train_set), seed=chosen.seed, epoch=ordered, shuffle=shuffled)
        )
        for ids in order.split(chosen.batch_size):
            optimizer.zero_grad()
            for part in torch.tensor_split(ids, chosen.accumulate):
                scores = model(train_set.images[part].double() * scale - shift)
                losses = nn.functional.cross_entropy(
                    scores, train_set.labels[part], reduction="sum", label_smoothing=chosen.label_smoothing
                )
                (losses / len(ids)).backward()
            if chosen.clip_norm:
                nn.utils.clip_grad_norm_(model.parameters(), chosen.clip_norm)
            optimizer.step()
            average.update_parameters(model)
    return model, average.module if chosen.ema else model


def floats(state):
    """Leave counters out: torch averages them too."""
    return {name: tensor for name, tensor in state.items() if tensor.is_floating_point()}


def run(world, chosen, *, folder=None, every=None, snapshot=None, evaluate_every=1, keep=100):
    """Train on one rank, from a snapshot if one is given; return the losses, both states and the scaler's."""
    options = RunOptions(checkpoint_steps=every, keep=keep, evaluate_every=evaluate_every)
    made = training(world, chosen, options=options)
    if snapshot is not None:
        made.restore(snapshot)
    memory = Memory()
    checkpoints = CheckpointManager(world, options, folder=folder)
    result = made.run(replace(Callbacks.disabled(world, sink=memory), checkpoints=checkpoints))
    checkpoints.close()
    assert f"{made.steps} steps" in result.summary()
    evaluated = made.learner.evaluated.state_dict()
    losses = {row["step"]: row["loss"] for row in memory.rows}
    return losses, made.learner.model.state_dict(), evaluated, made.learner.precision.state_dict()


@pytest.mark.parametrize("chosen", CHOICES, ids=" ".join)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_weights_and_their_average_are_those_of_a_hand_written_loop(size, chosen):
    model, evaluated = by_hand(settings(**chosen))

    for _, weights, averaged, _ in run_ranks(run, size, settings(**chosen)):
        assert largest_difference(weights, model.state_dict()) < TOLERANCE
        assert largest_difference(floats(averaged), floats(evaluated.state_dict())) < TOLERANCE


def test_each_option_makes_a_difference():
    plain = by_hand(settings())[1].state_dict()

    for chosen in CHOICES:
        assert largest_difference(by_hand(settings(**chosen))[1].state_dict(), plain) > 1000 * TOLERANCE


@pytest.mark.parametrize(
    ("before", "after", "precision", "tolerance"),
    [
        *((*sizes, "fp64", 1e-10) for sizes in [(1, 1), (2, 1), (2, 3)]),
        (1, 1, "fp16", 1e-10),
        (2, 3, "fp16", 1e-2),  # other shares round otherwise
        (2, 1, "bf16", 5e-2),
    ],
)
def test_a_training_resumed_at_another_size_equals_the_uninterrupted_one(
    before, after, precision, tolerance, tmp_path
):
    chosen = settings(**EVERYTHING, precision=precision)
    whole = run_ranks(functools.partial(run, folder=tmp_path, every=6), before, chosen)[0]
    losses, weights, averaged, scaler = whole

    for step in (6, 10, 12, 18, 20):  # within the first epoch, between the two, within the second, at the end
        resume = functools.partial(run, snapshot=read(tmp_path / f"step-{step}"))
        for rest, later, later_averaged, later_scaler in run_ranks(resume, after, chosen):
            assert sorted(rest) == list(range(step + 1, 21))
            assert rest == pytest.approx({number: losses[number] for number in rest}, rel=0, abs=tolerance)
            assert largest_difference(later, weights) < tolerance
            assert largest_difference(later_averaged, averaged) < tolerance
            assert later_scaler == pytest.approx(scaler)


def test_a_checkpoint_has_a_score_only_if_its_weights_were_evaluated(tmp_path):
    run(SoloWorld(), settings(epochs=5), folder=tmp_path, every=10, evaluate_every=2)

    scored = {folder.name: "score" in read(folder).state for folder in tmp_path.glob("step-*")}
    assert scored == {"step-10": False, "step-20": True, "step-30": False, "step-40": True, "step-50": True}


def test_the_untrained_model_is_evaluated_and_every_row_has_the_time_of_its_evaluation():
    plain = train(SoloWorld(), settings())
    first = train(SoloWorld(), settings(), options=RunOptions(evaluate_first=True))

    assert [(row["epoch"], row["step"]) for row in first.evaluations] == [(0, 0), (1, 10), (2, 20)]
    assert first.evaluations[0]["train_loss"] is None
    assert all(row["evaluation_seconds"] > 0 for row in first.evaluations)
    assert largest_difference(first.state, plain.state) == 0


def test_the_losses_of_ranks_weighted_by_their_samples_are_the_loss_of_the_batch():
    memory = run_ranks(lambda world: train(world, settings(epochs=1), sets=digits(samples=65)), 3)[0]

    phases = ("data", "forward", "backward", "exposed_sync", "optimizer")
    samples = [
        row["samples_per_second"] * row["steps"] * sum(row[name] for name in phases)
        for row in memory.rank_rows
    ]
    of_ranks = sum((row["loss"] or 0) * count for row, count in zip(memory.rank_rows, samples, strict=True))
    assert of_ranks / 65 == pytest.approx(memory.evaluations[-1]["train_loss"], rel=1e-2)
    assert len({row["loss"] for row in memory.rank_rows if row["loss"]}) > 1


def test_lines_of_steps_and_of_ranks_are_printed():
    text = io.StringIO()
    display = ConsoleDisplay(
        steps=20, epochs=2, console=Console(file=text, width=200), per_rank=True, print_every=8
    )
    made = training(SoloWorld(), settings())
    made.run(replace(Callbacks.disabled(SoloWorld()), display=display))

    steps = re.findall(r"^step (\d+)/20, epoch (\d): loss \d", text.getvalue(), re.MULTILINE)
    assert steps == [("8", "1"), ("16", "2")]
    assert len(re.findall(r"^  rank 0: loss [\d.]+, test \d+/101 right", text.getvalue(), re.MULTILINE)) == 2
