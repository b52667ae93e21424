"""Steps that are always skipped and clipping of scaled gradients are noted."""

import pytest
import torch
from torch import nn

X = torch.randn(8, 4, generator=torch.Generator().manual_seed(1))


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
        nn.utils.clip_grad_value_(clip_value=0.5, parameters=(one for one in model.parameters()))
        assert model.weight.grad.abs().max() == 0.5

    assert noted(script) == []
