"""Calls around a step in the wrong order are noted, and those of right scripts are not."""

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

X = torch.randn(8, 4, generator=torch.Generator().manual_seed(1))
pytestmark = pytest.mark.filterwarnings("ignore:Detected call of", "ignore:The epoch parameter")


def made(kind=torch.optim.SGD):
    model = nn.Linear(4, 3)
    return model, kind(model.parameters(), lr=0.1)


def loss_of(model):
    return (model(X) - 1).square().mean()


def never(clip=None):
    model, optimizer = made()
    for _ in range(4):
        loss_of(model).backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()


def never_but_clipped():
    never(clip=0.5)


def never_in_the_closure():
    model, optimizer = made(torch.optim.LBFGS)

    def closure():
        loss = loss_of(model)
        loss.backward()
        return loss

    for _ in range(4):
        optimizer.step(closure)


def between(set_to_none):
    model, optimizer = made()
    for _ in range(3):
        loss_of(model).backward()
        optimizer.zero_grad(set_to_none=set_to_none)
        optimizer.step()


def between_zeros():
    between(set_to_none=False)


def between_none():
    between(set_to_none=True)


def loop(before=lambda *_: None, after=lambda *_: None, between=lambda *_: None, kind=torch.optim.SGD):
    model, optimizer = made(kind)
    for step in range(6):
        before(model, optimizer)
        loss_of(model).backward()
        between(model, optimizer, step)
        optimizer.step()
        after(model, optimizer)


def before_backward():
    loop(before=lambda _, optimizer: optimizer.zero_grad())


def after_step():
    loop(after=lambda _, optimizer: optimizer.zero_grad(set_to_none=False))


def by_model():
    loop(before=lambda model, _: model.zero_grad())


def by_hand():
    def clear(model, _):
        for parameter in model.parameters():
            parameter.grad = None

    loop(after=clear)


def in_place_by_hand():
    def clear(model, _):
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.data.zero_()

    loop(before=clear)


def accumulated():
    model, optimizer = made()
    for step in range(12):
        (loss_of(model) / 3).backward()
        if step % 3 == 2:
            optimizer.step()
            optimizer.zero_grad()


def decayed():
    """Momentum by hand: a part of the gradient is kept on purpose."""

    def shrink(model, _):
        for parameter in model.parameters():
            parameter.grad.mul_(0.5)

    loop(after=shrink)


def in_closure():
    model, optimizer = made(torch.optim.LBFGS)

    def closure():
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        return loss

    for _ in range(4):
        optimizer.step(closure)


def adversarial():
    """The generator's backward adds to the discriminator's gradients, which are zeroed before its own."""
    generator, discriminator = nn.Linear(4, 4), nn.Linear(4, 1)
    first = torch.optim.Adam(generator.parameters())
    second = torch.optim.Adam(discriminator.parameters())
    for _ in range(4):
        first.zero_grad()
        discriminator(generator(X)).mean().backward()
        first.step()
        second.zero_grad()
        (discriminator(X) - discriminator(generator(X).detach())).mean().backward()
        second.step()


def assigned():
    model, optimizer = made()
    parameters = list(model.parameters())
    for _ in range(4):
        gradients = torch.autograd.grad(loss_of(model), parameters)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        optimizer.step()


def repeated_step():
    model, optimizer = made()
    optimizer.zero_grad()
    loss_of(model).backward()
    for _ in range(4):
        optimizer.step()


def penalty_first():
    """A first backward is for a measurement only."""
    model, optimizer = made()
    for _ in range(4):
        loss_of(model).backward()
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize(
    "script", [never, never_but_clipped, never_in_the_closure], ids=lambda script: script.__name__
)
def test_gradients_that_are_never_zeroed_are_noted(noted, script):
    assert noted(script) == ["gradients-not-zeroed"]


@pytest.mark.parametrize("script", [between_zeros, between_none], ids=lambda script: script.__name__)
def test_gradients_zeroed_between_backward_and_step_are_noted(noted, script):
    assert noted(script) == ["gradients-thrown-away"]


@pytest.mark.parametrize(
    "script",
    [
        before_backward,
        after_step,
        by_model,
        by_hand,
        in_place_by_hand,
        accumulated,
        decayed,
        in_closure,
        adversarial,
        assigned,
        repeated_step,
        penalty_first,
    ],
    ids=lambda script: script.__name__,
)
def test_a_right_script_has_no_note(noted, script):
    assert noted(script) == []


def train(*, steps=4, factor=lambda step: 1.0, clip=None, unscales=True, fused=False, enabled=True):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
    scaler = torch.amp.GradScaler("cpu", enabled=enabled)
    for step in range(steps):
        optimizer.zero_grad()
        scaler.scale(model(X).square().mean() * factor(step)).backward()
        if clip is not None:
            if unscales:
                scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), max_norm=clip(scaler))
        scaler.step(optimizer)
        scaler.update()


@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
@pytest.mark.parametrize(
    ("first", "codes"), [(0, ["amp-steps-skipped"]), (9, [])], ids=["always", "until the scale fits"]
)
def test_steps_skipped_for_ever_are_noted(noted, fused, first, codes):
    finite = 9 if first else 99
    assert (
        noted(lambda: train(steps=24, factor=lambda s: 1.0 if s >= finite else float("inf"), fused=fused))
        == codes
    )


@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
def test_clipping_before_unscaling_is_noted(noted, fused):
    assert noted(lambda: train(clip=lambda _: 1.0, unscales=False, fused=fused)) == ["clip-before-unscale"]


@pytest.mark.parametrize(
    "options",
    [
        {"clip": lambda _: 1.0},
        {"clip": lambda _: 1.0, "fused": True},
        {"clip": lambda _: 1.0, "unscales": False, "enabled": False},
        {"clip": lambda scaler: scaler.get_scale(), "unscales": False},
        {"clip": lambda _: float("inf"), "unscales": False},
    ],
    ids=["unscaled", "fused", "disabled", "scaled limit", "norm alone"],
)
def test_right_clipping_has_no_note(noted, options):
    assert noted(lambda: train(**options)) == []


def test_clipping_takes_a_generator_and_keywords(noted):
    def script():
        model = nn.Linear(4, 1)
        model(X).sum().backward()
        nn.utils.clip_grad_value_(clip_value=0.5, parameters=(parameter for parameter in model.parameters()))
        assert model.weight.grad.abs().max() == 0.5

    assert noted(script) == []


def scheduled(kind=lr_scheduler.StepLR, **options):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, optimizer, kind(optimizer, **(options or {"step_size": 3}))


def backward(model, optimizer):
    optimizer.zero_grad()
    model(X).square().mean().backward()


def each_epoch():
    model, optimizer, schedule = scheduled()
    for _ in range(3):
        schedule.step()
        for _ in range(2):
            backward(model, optimizer)
            optimizer.step()


def each_batch():
    model, optimizer, schedule = scheduled(lr_scheduler.CosineAnnealingWarmRestarts, T_0=4)
    for _ in range(4):
        backward(model, optimizer)
        schedule.step()
        optimizer.step()


def after(kind=lr_scheduler.StepLR, **options):
    model, optimizer, schedule = scheduled(kind, **options)
    for _ in range(4):
        backward(model, optimizer)
        optimizer.step()
        schedule.step()


def after_one_cycle():
    after(lr_scheduler.OneCycleLR, max_lr=0.2, total_steps=9)


class Doubled(lr_scheduler.StepLR):
    """A schedule whose constructor reaches `step` through a method of its own."""

    def step(self, *args):
        super().step(*args)


def after_own():
    after(Doubled, step_size=2)


def after_sequential():
    def kind(optimizer, gamma):
        parts = [lr_scheduler.ConstantLR(optimizer), lr_scheduler.ExponentialLR(optimizer, gamma)]
        return lr_scheduler.SequentialLR(optimizer, parts, milestones=[2])

    after(kind, gamma=0.9)


def resumed():
    model, optimizer, schedule = scheduled()
    for _ in range(3):
        schedule.step()
    for _ in range(3):
        backward(model, optimizer)
        optimizer.step()
        schedule.step()


def resumed_after_one():
    model, optimizer, schedule = scheduled()
    schedule.step()
    for _ in range(3):
        backward(model, optimizer)
        optimizer.step()
        schedule.step()


def to_an_epoch():
    model, optimizer, schedule = scheduled()
    for epoch in range(3):
        schedule.step(epoch)
        backward(model, optimizer)
        optimizer.step()


def each_micro_batch():
    model, optimizer, schedule = scheduled()
    for step in range(8):
        backward(model, optimizer)
        if step % 2:
            optimizer.step()
        schedule.step()


def first_step_overflows():
    model, optimizer, schedule = scheduled()
    scaler = torch.amp.GradScaler("cpu")
    for step in range(4):
        optimizer.zero_grad()
        scaler.scale(model(X).square().mean() * (float("inf") if step == 0 else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
        schedule.step()


@pytest.mark.parametrize("script", [each_epoch, each_batch], ids=lambda script: script.__name__)
def test_a_schedule_that_steps_first_is_noted(noted, script):
    assert noted(script) == ["schedule-before-optimizer"]


@pytest.mark.parametrize(
    "script",
    [
        after,
        after_one_cycle,
        after_own,
        after_sequential,
        resumed,
        resumed_after_one,
        to_an_epoch,
        each_micro_batch,
        first_step_overflows,
    ],
    ids=lambda script: script.__name__,
)
def test_a_right_schedule_has_no_note(noted, script):
    assert noted(script) == []


@pytest.mark.parametrize(
    ("script", "line"),
    [
        (never_but_clipped, "optimizer.step()"),
        (between_zeros, "optimizer.step()"),
        (lambda: train(steps=24, factor=lambda _: float("inf")), "scaler.step(optimizer)"),
        (lambda: train(clip=lambda _: 1.0, unscales=False), "clip_grad_norm_("),
        (each_epoch, "schedule.step()"),
    ],
)
def test_a_note_names_the_line_with_the_mistake(named_line, script, line):
    assert line in named_line(script)
