"""Schedules equal their closed forms and those of torch, and resume with equal bits."""

import io
import math

import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from torch import nn
from torch.optim import SGD, lr_scheduler

from samestep.training.loop.learner import build_schedule, factor_of
from samestep.training.settings import Settings

FEW = examples(max_examples=25)  # each takes steps of an optimizer
SCHEDULES = ["constant", "step", "multistep", "cosine", "one-cycle"]


def settings(**changes):
    return Settings(**{"epochs": 10, "batch_size": 8, "lr": 0.1, "milestones": (3.0, 7.5), **changes})


def optimizer(lr=0.1):
    return SGD([nn.Parameter(torch.zeros(2))], lr=lr, momentum=0.9)


def rates(optimizer, schedule, steps):
    """Take `steps` steps; return the rate of each."""
    seen = []
    for _ in range(steps):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if schedule is not None:
            schedule.step()
    return seen


def ours(chosen, steps_per_epoch):
    one = optimizer(chosen.lr)
    schedule = build_schedule(one, chosen, steps_per_epoch=steps_per_epoch)
    return rates(one, schedule, chosen.epochs * steps_per_epoch)


def torchs(make, steps, lr=0.1):
    one = optimizer(lr)
    return rates(one, make(one), steps)


def test_a_constant_rate_has_no_schedule():
    assert build_schedule(optimizer(), settings(), steps_per_epoch=5) is None


@FEW
@given(steps_per_epoch=st.integers(1, 40), epochs=st.integers(1, 12))
def test_cosine_equals_torchs_schedule(steps_per_epoch, epochs):
    steps = epochs * steps_per_epoch
    expected = torchs(lambda one: lr_scheduler.CosineAnnealingLR(one, T_max=steps), steps)

    assert ours(settings(schedule="cosine", epochs=epochs), steps_per_epoch) == pytest.approx(
        expected, rel=1e-9
    )


@FEW
@given(steps_per_epoch=st.integers(1, 40), epochs=st.integers(1, 12))
def test_one_cycle_equals_torchs_schedule(steps_per_epoch, epochs):
    steps = epochs * steps_per_epoch
    expected = torchs(lambda one: lr_scheduler.OneCycleLR(one, max_lr=0.1, total_steps=steps), steps)

    assert ours(settings(schedule="one-cycle", epochs=epochs), steps_per_epoch) == pytest.approx(
        expected, rel=1e-9
    )


@FEW
@given(
    steps_per_epoch=st.integers(1, 40),
    gamma=st.floats(0.05, 2),
    drops=st.lists(st.integers(1, 9), min_size=1, unique=True).map(sorted),
)
def test_multistep_equals_torchs_schedule(steps_per_epoch, gamma, drops):
    chosen = settings(schedule="multistep", gamma=gamma, milestones=tuple(float(epoch) for epoch in drops))
    at = [epoch * steps_per_epoch for epoch in drops]
    expected = torchs(lambda one: lr_scheduler.MultiStepLR(one, at, gamma=gamma), 10 * steps_per_epoch)

    assert ours(chosen, steps_per_epoch) == pytest.approx(expected, rel=1e-12)


@FEW
@given(steps_per_epoch=st.integers(1, 40), gamma=st.floats(0.05, 2), every=st.integers(1, 11))
def test_step_equals_torchs_schedule(steps_per_epoch, gamma, every):
    chosen = settings(schedule="step", gamma=gamma, step_epochs=float(every))
    expected = torchs(
        lambda one: lr_scheduler.StepLR(one, every * steps_per_epoch, gamma=gamma), 10 * steps_per_epoch
    )

    assert ours(chosen, steps_per_epoch) == pytest.approx(expected, rel=1e-12)


@FEW
@given(
    schedule=st.sampled_from(["constant", "step", "multistep", "cosine"]),
    steps_per_epoch=st.integers(1, 50),
    warmup=st.floats(0.1, 9),
    lr=st.floats(1e-4, 10),
)
def test_the_warm_up_rises_in_equal_steps_to_the_full_rate(schedule, steps_per_epoch, warmup, lr):
    chosen = settings(schedule=schedule, warmup=warmup, lr=lr, milestones=(9.5,))
    warm = round(warmup * steps_per_epoch)
    seen = ours(chosen, steps_per_epoch)

    assert seen[:warm] == pytest.approx([lr * (step + 1) / (warm + 1) for step in range(warm)], rel=1e-12)
    assert seen[warm] == lr


def test_the_first_step_has_the_rate_of_the_warm_up():
    one = optimizer()
    build_schedule(one, settings(warmup=1.0), steps_per_epoch=9)

    assert one.param_groups[0]["lr"] == pytest.approx(0.01, rel=1e-15)


@FEW
@given(steps_per_epoch=st.integers(1, 30), warmup=st.integers(0, 9))
def test_cosine_after_a_warm_up_spans_the_remaining_steps(steps_per_epoch, warmup):
    chosen = settings(schedule="cosine", warmup=float(warmup))
    left = (10 - warmup) * steps_per_epoch

    seen = ours(chosen, steps_per_epoch)[warmup * steps_per_epoch :]

    closed = [0.1 * (1 + math.cos(math.pi * step / left)) / 2 for step in range(left)]
    assert seen == pytest.approx(closed, rel=1e-12)


def test_milestones_are_counted_from_the_start_of_the_warm_up():
    chosen = settings(schedule="multistep", milestones=(3.0, 6.0), warmup=2.0)
    seen = ours(chosen, 4)

    assert [step for step in range(1, 40) if seen[step] < seen[step - 1]] == [12, 24]


def test_a_milestone_within_an_epoch_takes_effect_at_its_step():
    seen = ours(settings(schedule="multistep", milestones=(2.5,), gamma=0.5), 4)

    assert seen == [0.1] * 10 + [0.05] * 30


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("warmup", [0.0, 2.5])
def test_a_resumed_schedule_continues_with_equal_bits(schedule, warmup):
    if schedule == "one-cycle":
        warmup = 0.0  # it rises by itself
    chosen = settings(schedule=schedule, warmup=warmup)
    undisturbed = ours(chosen, 7)

    for taken in range(0, 70, 3):
        first = optimizer()
        schedule_before = build_schedule(first, chosen, steps_per_epoch=7)
        before = rates(first, schedule_before, taken)
        state = saved_and_loaded([one.state_dict() for one in (first, schedule_before) if one is not None])
        second = optimizer()
        schedule_after = build_schedule(second, chosen, steps_per_epoch=7)
        for one, values in zip((second, schedule_after), state, strict=False):
            one.load_state_dict(values)

        assert before + rates(second, schedule_after, 70 - taken) == undisturbed


def saved_and_loaded(value):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@FEW
@given(
    schedule=st.sampled_from(SCHEDULES),
    epochs=st.integers(1, 5),
    steps_per_epoch=st.integers(1, 30),
    warmed=st.floats(0, 0.999),
    beyond=st.integers(0, 3),
)
def test_the_rate_is_between_0_and_lr_even_after_the_last_step(
    schedule, epochs, steps_per_epoch, warmed, beyond
):
    warmup = 0.0 if schedule == "one-cycle" else warmed * epochs  # up to all steps, once rounded
    chosen = settings(schedule=schedule, epochs=epochs, warmup=warmup)
    factor = factor_of(chosen, steps_per_epoch=steps_per_epoch)

    assert all(0 <= factor(step) <= 1 for step in range(epochs * steps_per_epoch + beyond))
