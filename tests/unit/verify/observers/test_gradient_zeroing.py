"""Gradients that are never zeroed, or zeroed too early, are noted; every right place to zero them is not."""

import pytest
import torch
from torch import nn

X = torch.randn(8, 4, generator=torch.Generator().manual_seed(1))


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
        for one in model.parameters():
            one.grad = None

    loop(after=clear)


def in_place_by_hand():
    def clear(model, _):
        for one in model.parameters():
            if one.grad is not None:
                one.grad.data.zero_()

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
        for one in model.parameters():
            one.grad.mul_(0.5)

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
        for one, gradient in zip(parameters, gradients, strict=True):
            one.grad = gradient
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
    "script", [never, never_but_clipped, never_in_the_closure], ids=lambda one: one.__name__
)
def test_gradients_that_are_never_zeroed_are_noted(noted, script):
    assert noted(script) == ["gradients-not-zeroed"]


@pytest.mark.parametrize("script", [between_zeros, between_none], ids=lambda one: one.__name__)
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
    ids=lambda one: one.__name__,
)
def test_a_right_script_has_no_note(noted, script):
    assert noted(script) == []
