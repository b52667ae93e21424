"""Frozen parameters that a resumed training has not from a saved state are noted; pretrained ones are not."""

import pytest
import torch
from torch import nn

X = torch.randn(8, 4, generator=torch.Generator().manual_seed(1))


def made(*, frozen=0):
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 6), nn.Linear(6, 1))
    if frozen is not None:
        model[frozen].requires_grad_(requires_grad=False)
    return model


def train(model):
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        model(X).square().mean().backward()
        optimizer.step()


def trainable(model):
    names = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    return {name: tensor for name, tensor in model.state_dict().items() if name in names}


def saved(model, path, state):
    torch.save({"model": state(model), "step": 3}, path)
    return torch.load(path)["model"]


def resume(path, *, state=trainable, before=lambda old, new: None, frozen=0, second=0):
    model, other = made(frozen=frozen), made(frozen=second)
    before(model, other)
    train(model)
    other.load_state_dict(saved(model, path, state), strict=False)
    train(other)


def test_frozen_parameters_that_are_not_saved_are_noted(noted, named_line, tmp_path):
    def script():
        resume(tmp_path / "state.pt")

    assert noted(script) == ["saved-state-differs"]
    assert "torch.save(" in named_line(script)


def pretrained(old, new):
    """The frozen weights of both models come from elsewhere."""
    for model in (old, new):
        model[0].load_state_dict({"weight": torch.ones(6, 4), "bias": torch.zeros(6)})


def averaged(path):
    """A frozen part that follows another one, as of a momentum encoder, can begin anew."""
    model = made(frozen=2)
    for _ in range(2):
        train(model)
        with torch.no_grad():
            for parameter in model[2].parameters():
                parameter.lerp_(torch.ones_like(parameter), 0.1)
    other = made(frozen=2)
    other.load_state_dict(saved(model, path, trainable), strict=False)
    train(other)


def loaded_again(path):
    model, other = made(), made()
    train(model)
    other.load_state_dict(saved(model, path, trainable), strict=False)
    other.load_state_dict(model.state_dict())
    train(other)


def only_evaluated(path):
    model, other = made(), made()
    train(model)
    other.load_state_dict(saved(model, path, trainable), strict=False)
    with torch.no_grad():
        other(X)


def new_head(path):
    def body(model):
        return {name: tensor for name, tensor in model.state_dict().items() if not name.startswith("3")}

    resume(path, state=body, frozen=None, second=None)


RIGHT = {
    "complete": lambda path: resume(path, state=nn.Module.state_dict),
    "pretrained": lambda path: resume(path, before=pretrained),
    "copied": lambda path: resume(path, before=lambda old, new: new.load_state_dict(old.state_dict())),
    "trainable from then on": lambda path: resume(path, second=None),
    "averaged": averaged,
    "loaded again": loaded_again,
    "only evaluated": only_evaluated,
    "new head": new_head,
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_script_has_no_note(noted, tmp_path, name):
    assert noted(lambda: RIGHT[name](tmp_path / "state.pt")) == []
