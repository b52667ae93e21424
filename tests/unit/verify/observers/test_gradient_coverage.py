"""Parameters without gradients and gradients without an optimizer are noted, and deliberate ones are not."""

import copy

import pytest
import torch
from torch import nn

from samestep.verify.observers.check import Checks
from samestep.verify.observers.gradient_coverage import GradientCoverage
from samestep.verify.probed_run import CHECKS

X = torch.randn(8, 4, generator=torch.Generator().manual_seed(1))


def train(model, optimizer, *, steps=6, loss=lambda out: out.square().mean(), call=None):
    for _ in range(steps):
        optimizer.zero_grad()
        loss((call or model)(X)).backward()
        optimizer.step()


def sgd(parameters, lr=0.1):
    return torch.optim.SGD(parameters, lr=lr)


class Parts(nn.Module):
    """A model of three layers, of which the last is used on demand."""

    def __init__(self, *, uses=True):
        super().__init__()
        self.body, self.middle, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)
        self.uses = uses

    def forward(self, x):
        h = self.middle(self.body(x))
        return self.head(h) if self.uses else h


class Experts(nn.Module):
    """A model that calls one of its layers only."""

    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        return self.experts[1](x)


class Hidden(nn.Module):
    """A model with layers in a list."""

    def __init__(self):
        super().__init__()
        self.body, self.layers = nn.Linear(4, 4), [nn.Linear(4, 4)]

    def forward(self, x):
        return self.layers[0](self.body(x))


def unused():
    model = Parts(uses=False)
    train(model, sgd(model.parameters()))


def experts():
    model = Experts()
    train(model, sgd(model.parameters()))


def forgotten():
    model = Parts()
    train(model, sgd([*model.body.parameters(), *model.middle.parameters()]))


def head_alone():
    model = Parts()
    train(model, sgd(model.head.parameters()))


def frozen():
    model = Parts()
    model.middle.requires_grad_(False)
    train(model, sgd(parameter for parameter in model.parameters() if parameter.requires_grad))


def updated_by_hand():
    model = Parts()
    optimizer = sgd([*model.body.parameters(), *model.middle.parameters()])
    for _ in range(4):
        model.zero_grad()
        model(X).square().mean().backward()
        optimizer.step()
        with torch.no_grad():
            for parameter in model.head.parameters():
                parameter -= 0.1 * parameter.grad


def two_optimizers():
    model = Parts()
    first, second = sgd(model.body.parameters()), sgd([*model.middle.parameters(), *model.head.parameters()])
    for step in range(6):
        model.zero_grad()
        model(X).square().mean().backward()
        (first if step % 3 else second).step()


def without_optimizer():
    model = Parts()
    for _ in range(3):
        model(X).square().mean().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
                parameter.grad = None


def listed():
    model = Hidden()
    train(model, sgd(model.parameters()))


def listed_teacher():
    model = Hidden()
    model.layers[0].requires_grad_(False)
    train(model, sgd(model.parameters()))


def copied():
    model = Parts()
    optimizer = sgd(model.parameters())
    train(copy.deepcopy(model), optimizer)


def replaced():
    model = Parts()
    optimizer = sgd(model.parameters())
    model.head = nn.Linear(4, 7)
    train(model, optimizer)


class Flat(nn.Module):
    """A wrapper with one flat parameter in the place of those of a model, as FSDP has."""

    def __init__(self, model, *, padding=0):
        super().__init__()
        parts = [parameter.detach().flatten() for parameter in model.parameters()]
        self.flat = nn.Parameter(torch.cat([*parts, torch.zeros(padding)]))
        self.shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
        self.inner = [model]

    def forward(self, x):
        sizes = [shape.numel() for shape in self.shapes.values()]
        parts = self.flat[: sum(sizes)].split(sizes)
        pairs = zip(self.shapes.items(), parts, strict=True)
        parameters = {name: part.view(shape) for (name, shape), part in pairs}
        return torch.func.functional_call(self.inner[0], parameters, (x,))


def flattened(padding=0):
    model = Parts()
    optimizer = sgd(model.parameters())
    train(Flat(model, padding=padding), optimizer)


def flattened_and_padded():
    flattened(padding=6)


def flattened_before():
    model = Flat(Parts())
    train(model, sgd(model.parameters()))


def averaged():
    model = Parts()
    optimizer = sgd(model.parameters())
    average = copy.deepcopy(model)
    for _ in range(4):
        train(model, optimizer, steps=1)
        with torch.no_grad():
            average(X)
            for mean, weight in zip(average.parameters(), model.parameters(), strict=True):
                mean.lerp_(weight, 0.1)


def cast():
    model = Parts()
    optimizer = sgd(model.parameters())
    model.double().float()
    train(model, optimizer)


def unchanged():
    model = Parts()
    train(model, sgd(model.parameters(), lr=0.0))


def unchanged_without_a_rate():
    model = Parts()
    optimizer = sgd(model.parameters(), lr=0.0)
    optimizer.param_groups[0]["lr"] = None
    optimizer.step = torch.optim.Optimizer.profile_hook_step(lambda *_: None).__get__(optimizer)
    train(model, optimizer)


def rounded_away():
    model = Parts().bfloat16()
    train(model, sgd(model.parameters(), lr=1e-7), call=lambda x: model(x.bfloat16()))


def warmed_up():
    model = Parts()
    optimizer = sgd(model.parameters())
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step / 9)
    for _ in range(6):
        train(model, optimizer, steps=1)
        schedule.step()


def zero_initialized():
    model = Parts()
    nn.init.zeros_(model.head.weight)
    nn.init.zeros_(model.middle.weight)
    train(model, sgd(model.parameters()), loss=lambda out: (out - 1).square().mean())


def detached():
    model = Parts()
    train(
        model, sgd(model.parameters()), loss=lambda out: torch.tensor(out.mean().item(), requires_grad=True)
    )


def sometimes_without_graph():
    model = Parts()
    optimizer = sgd(model.parameters())
    for step in range(6):
        loss = torch.zeros((), requires_grad=True)
        if step % 2:
            loss = loss + model(X).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def adversarial():
    first, second = Parts(), Parts()
    of_first, of_second = sgd(first.parameters()), sgd(second.parameters())
    for _ in range(3):
        of_second.zero_grad()
        second(first.middle(X).detach()).mean().backward()
        of_second.step()
        of_first.zero_grad()
        (second(first.middle(X)).mean() + first(X).mean()).backward()
        of_first.step()


def by_closure():
    model = Parts()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)

    def closure():
        optimizer.zero_grad()
        loss = model(X).square().mean()
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)


@pytest.mark.parametrize(
    ("script", "codes"),
    [
        (unused, ["no-gradient"]),
        (forgotten, ["no-optimizer"]),
        (listed, ["no-optimizer"]),
        (copied, ["optimizer-holds-other"]),
        (replaced, ["optimizer-holds-other"]),
        (flattened, ["optimizer-holds-other"]),
        (flattened_and_padded, ["optimizer-holds-other"]),
        (unchanged, ["no-change"]),
        (unchanged_without_a_rate, ["no-change"]),
        (rounded_away, ["no-change"]),
        (detached, ["loss-without-graph"]),
    ],
    ids=lambda script: getattr(script, "__name__", None),
)
def test_a_mistake_is_noted(noted, script, codes):
    assert noted(script) == codes


@pytest.mark.parametrize(
    "script",
    [
        experts,
        head_alone,
        frozen,
        updated_by_hand,
        two_optimizers,
        without_optimizer,
        listed_teacher,
        flattened_before,
        averaged,
        cast,
        warmed_up,
        zero_initialized,
        sometimes_without_graph,
        adversarial,
        by_closure,
    ],
    ids=lambda script: script.__name__,
)
def test_a_right_script_has_no_note(noted, script):
    assert noted(script) == []


@pytest.mark.parametrize(
    ("script", "line"),
    [
        *((script, "torch.optim.SGD(") for script in (unused, listed, copied, unchanged)),
        (detached, ".backward()"),
    ],
)
def test_a_note_names_the_line_with_the_mistake(named_line, script, line):
    """It is the line that makes the optimizer, or the backward of a loss without a graph."""
    assert line in named_line(script)


def test_a_note_names_the_parameters():
    checks = Checks([GradientCoverage])
    with checks.attached():
        unused()
    (note,) = checks.notes()
    assert "head.weight" in note.message
    assert "head.bias" in note.message


def test_checks_change_no_random_number_and_no_weight():
    def weights():
        torch.manual_seed(3)
        model = Parts()
        train(model, sgd(model.parameters()))
        return [*model.parameters(), torch.rand(2)]

    expected = weights()
    with Checks(CHECKS).attached():
        observed = weights()
    assert all(map(torch.equal, expected, observed))
