"""Backwards that run code of the script: hooks on weights, and functions with a backward of their own."""

from functools import partial

import pytest
import torch
from torch import nn

from support.split_check_models import drawn


def weighted(model):
    for number, parameter in enumerate(model.parameters()):
        parameter.data = drawn(*parameter.shape, seed=number) * 0.3
    return model.double()


class Heads(nn.Module):
    """Two heads, of which the losses below use one at a time."""

    def __init__(self):
        super().__init__()
        self.body, self.first, self.second = nn.Linear(5, 8), nn.Linear(8, 4), nn.Linear(8, 3)

    def forward(self, x):
        h = torch.tanh(self.body(x))
        return self.first(h), self.second(h)


def clipped_by_hooks(model):
    """Hooks would raise an error if they got None."""
    for weight in model.parameters():
        weight.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))


def clipped_by_hook_on_one(model):
    model.second.weight.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))


def descending(model):
    def descend(weight):
        weight.data.sub_(weight.grad * 0.1)
        weight.grad = None

    for weight in model.parameters():
        weight.register_post_accumulate_grad_hook(descend)


def with_hooks_on_heads(register):
    """Return losses, weights, and which weights have no gradient in each step."""
    model, found, missing = weighted(Heads()), [], []
    register(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for number in range(6):
        optimizer.zero_grad()
        loss = model(drawn(7, 5, seed=number))[number % 2].square().mean()
        loss.backward()
        missing += [float(weight.grad is None) for weight in model.parameters()]
        optimizer.step()
        found.append(loss.item())
    return [*found, *missing, *(weight.sum().item() for weight in model.parameters())]


@pytest.mark.parametrize("register", [clipped_by_hooks, clipped_by_hook_on_one, descending])
def test_hooks_on_weights_that_a_loss_does_not_use_are_not_called(compared, register):
    split, unsplit, _ = compared(with_hooks_on_heads, register)
    assert (split, unsplit) == (6, 0)


class Towers(nn.Module):
    """Two outputs that have nothing in common."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(5, 4), nn.Linear(5, 3)

    def forward(self, x, y):
        return torch.tanh(self.first(x)), torch.tanh(self.second(y))


class Halves(torch.autograd.Function):
    """Torch calls this backward with zeros where its output has no gradient."""

    @staticmethod
    def forward(_, x):
        return x * 1.0

    @staticmethod
    def backward(_, gradient):
        return gradient / 2


def one_after_another(first, second, number):
    first.square().mean().backward()
    second.square().mean().backward()


def one_of_two(first, second, number):
    (second if number % 2 else first).square().mean().backward()


def one_twice(first, second, number):
    first.square().mean().backward()
    with pytest.raises(RuntimeError, match="second time"):
        first.sum().backward()
    second.square().mean().backward()


def with_towers(backward, make_inputs):
    model, before = weighted(Towers()), nn.Parameter(drawn(5, 5, seed=9) * 0.3)
    optimizer, found = torch.optim.AdamW([*model.parameters(), before], lr=0.1), []
    for number in range(6):
        optimizer.zero_grad()
        first, second = model(*make_inputs(drawn(7, 5, seed=number), before))
        backward(first, second, number)
        found.append(float(before.grad is None))
        optimizer.step()
        found += [weight.sum().item() for weight in (before, *model.parameters())]
    return found


def plain_inputs(x, before):
    return x, x.flip(1)


def computed_inputs(x, before):
    """The graph of the second one has a backward of its own."""
    return x, Halves.apply(x @ before)


@pytest.mark.parametrize("backward", [one_after_another, one_of_two, one_twice])
@pytest.mark.parametrize("make_inputs", [plain_inputs, computed_inputs])
def test_outputs_with_nothing_in_common_have_backwards_of_their_own(compared, backward, make_inputs):
    split, unsplit, _ = compared(with_towers, backward, make_inputs)
    assert (split, unsplit) == (6, 0)


class OfOwner(torch.autograd.Function):
    """The identity; its backward has the module that calls it."""

    @staticmethod
    def forward(ctx, x, owner):
        ctx.owner = owner
        return x.view_as(x)


class Norm(OfOwner):
    """Keeps the norm of its gradient in a buffer."""

    @staticmethod
    def backward(ctx, gradient):
        ctx.owner.norm.copy_(gradient.norm())
        return gradient, None


class Tap(OfOwner):
    """Assigns its gradient to an attribute."""

    @staticmethod
    def backward(ctx, gradient):
        ctx.owner.kept = gradient.clone()
        return gradient, None


class Reversal(OfOwner):
    """Reads the factor of its gradient in the backward."""

    @staticmethod
    def backward(ctx, gradient):
        return -ctx.owner.scale * gradient, None


class Limit(torch.autograd.Function):
    """Limits the norm of its gradient."""

    @staticmethod
    def forward(ctx, x, owner):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        norm = gradient.norm()
        return gradient * (200 / norm) if norm > 200 else gradient, None


class Drop(torch.autograd.Function):
    """Drops what is small in its gradient."""

    @staticmethod
    def forward(ctx, x, owner):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return torch.where(gradient.abs() < 1e-3, 0 * gradient, gradient), None


class Once(torch.autograd.Function):
    """Releases what its backward needs."""

    @staticmethod
    def forward(ctx, x, owner):
        ctx.factor = 2
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        factor = ctx.factor
        del ctx.factor
        return factor * gradient, None


class Applies(nn.Module):
    function, of_weight = None, False

    def __init__(self):
        super().__init__()
        self.one, self.two, self.scale, self.kept = nn.Linear(5, 8), nn.Linear(8, 4), 1.0, None
        self.register_buffer("norm", torch.zeros(()))

    def forward(self, x):
        h, weight = torch.tanh(self.one(x)), self.two.weight
        if self.of_weight:
            weight = self.function.apply(weight, self)
        else:
            h = self.function.apply(h, self)
        return nn.functional.linear(h, weight)


class KeepsNorm(Applies):
    function = Norm


class Taps(Applies):
    function = Tap


class Reverses(Applies):
    function = Reversal


class Limits(Applies):
    function = Limit


class Drops(Applies):
    function, of_weight = Drop, True


class RunsOnce(Applies):
    function = Once


class Recomputes(Applies):
    """Computes a part again in the backward, by what it then holds."""

    def forward(self, x):
        h = torch.utils.checkpoint.checkpoint(
            lambda y: (self.one(y) * self.scale).tanh(), x, use_reentrant=False
        )
        return self.two(h)


class Reenters(Applies):
    """Computes a part again in the backward, by a backward within that."""

    def forward(self, x):
        h = self.one(x)
        return torch.utils.checkpoint.checkpoint(
            lambda y: self.two((y * self.scale).tanh()), h, use_reentrant=True
        )


class Centering(torch.autograd.Function):
    @staticmethod
    def forward(_, x):
        return x.clone()

    @staticmethod
    def backward(_, gradient):
        return gradient - gradient.mean(0)


class Grouped(Applies):
    """Takes groups of samples only, so that no smaller batch of another size can be checked."""

    def forward(self, x):
        return self.two(Centering.apply(self.one(x).view(-1, 4, 8).cumsum(1).view(-1, 8)))


def with_own_backward(make, factor, *, changes=False):
    """Return losses, weights and what the backward has kept; the script may change what it reads."""
    model = weighted(make())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 / factor)
    found = []
    for number in range(6):
        model.scale = 1.0
        optimizer.zero_grad()
        loss = model(drawn(7, 5, seed=number)).square().mean()
        if changes:
            model.scale = 1.0 + number
        (factor * loss).backward()
        optimizer.step()
        found += [loss.item(), model.norm.item(), 0.0 if model.kept is None else model.kept.norm().item()]
    return [*found, *(weight.sum().item() for weight in model.parameters())]


@pytest.mark.parametrize(
    ("make", "factor"), [(KeepsNorm, 1), (Taps, 1), (Limits, 1e4), (Drops, 0.02)], ids=lambda case: str(case)
)
def test_a_backward_that_is_none_of_slices_is_of_the_whole_batch(compared, make, factor):
    split, unsplit, _ = compared(with_own_backward, make, factor)
    assert (split, unsplit) == (0, 6)


@pytest.mark.parametrize("make", [Reverses, Recomputes, Reenters])
def test_a_backward_reads_what_the_script_has_changed_since_the_call(compared, make):
    split, unsplit, _ = compared(partial(with_own_backward, changes=True), make, 1)
    assert split > 0
    assert unsplit > 0


@pytest.mark.parametrize("make", [Reverses, Recomputes, RunsOnce, Reenters])
def test_calls_with_a_backward_of_their_own_are_split(compared, make):
    split, unsplit, _ = compared(with_own_backward, make, 1)
    assert (split, unsplit) == (6, 0)


class WithLoss(Applies):
    def forward(self, x):
        scores = self.two(torch.tanh(self.one(x)))
        return scores, scores.square().mean()


class Scores(WithLoss):
    def forward(self, x):
        return super().forward(x)[0]


class Losses(WithLoss):
    def forward(self, x):
        return super().forward(x)[1]


def printed(make):
    """Return which names of operations printed outputs have."""
    model = weighted(make())
    names = "AddmmBackward0", "MeanBackward0"
    outputs = [model(drawn(7, 5, seed=number)) for number in range(3)]
    texts = [str(output[1] if isinstance(output, tuple) else output) for output in outputs]
    return [float(f"grad_fn=<{name}>" in text) for name in names for text in texts]


@pytest.mark.parametrize("make", [Scores, Losses, WithLoss])
def test_a_printed_output_names_the_operation_that_has_computed_it(compared, make):
    split, unsplit, _ = compared(printed, make)
    assert (split, unsplit) == (3, 0)


def evaluated_and_trained(*, trains):
    """Call a model in evaluation; call a part of it, in training if it `trains`, before the backward."""
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5)).double()
    model = nn.Sequential(encoder, nn.Linear(5, 3)).double()
    found = []
    for _ in range(3):
        model.eval()
        outputs = model(torch.randn(6, 4, dtype=torch.float64))
        encoder.train(trains)
        encoder(torch.randn(6, 4, dtype=torch.float64))
        model.zero_grad()
        outputs.square().mean().backward()
        found += [weight.grad.sum().item() for weight in model.parameters()]
        found += encoder[0].weight.grad.flatten().tolist()
    return found


@pytest.mark.parametrize("trains", [False, True])
def test_a_backward_reads_the_statistics_that_a_later_call_has_changed(compared, trains):
    """Torch computes the gradients of batch norm in evaluation by the statistics at the backward."""
    split, unsplit, _ = compared(partial(evaluated_and_trained, trains=trains))
    assert split > 0
    assert (unsplit > 0) is trains


class Changing(nn.Module):
    """Computes with numbers, a container, a layer's setting and buffers, which the script changes."""

    def __init__(self):
        super().__init__()
        self.body, self.norm, self.drop = nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Dropout(0.0)
        self.factor, self.settings = 1.0, {"scale": 0.5}
        self.register_buffer("center", torch.zeros(4))

    def forward(self, x):
        hidden = self.drop(self.norm(self.body(x))) * self.factor
        return torch.tanh(hidden - self.center) * self.settings["scale"]


def sets_number(model, number):
    model.factor = 0.1 + number


def sets_item(model, number):
    model.settings["scale"] = 0.1 + number


def sets_layer(model, number):
    model.drop.p = 0.7 * number


def replaces_buffer(model, number):
    model.center = torch.full((4,), 0.3 + number, dtype=torch.float64)


def trains(model, number):
    if number:
        model.train()
        model(3 * drawn(6, 5, seed=7) + 1)
    model.eval()


def with_penalty_after(change):
    """Change the model between a call and the gradients of it, of which a penalty is computed."""
    model, found = weighted(Changing()), []
    for number in range(3):
        change(model, 0)
        x = drawn(6, 5, seed=number).requires_grad_()
        scores = model(x)
        change(model, 1)
        (slope,) = torch.autograd.grad(scores.square().sum(), x, create_graph=True)
        model.zero_grad()
        slope.square().mean().backward()
        found += [weight.grad.sum().item() for weight in model.parameters()]
    return found


@pytest.mark.parametrize("change", [sets_number, sets_item, sets_layer, replaces_buffer, trains])
def test_a_call_is_computed_again_as_the_model_was_at_the_call(compared, change):
    """Only this finds that it is computed with what the script has changed since."""
    split, *_ = compared(with_penalty_after, change)
    assert split


def evaluated_before_training():
    """A backward of a call in evaluation reads the statistics that later calls write, by a new mirror."""
    model, found = weighted(Changing()), []
    for number in range(4):
        sets_number(model, 0)
        model.eval()
        scores = model(drawn(6, 5, seed=number))
        sets_number(model.train(), 1)
        loss = scores.square().mean() + model(3 * drawn(6, 5, seed=7 + number) + 1).square().mean()
        model.zero_grad()
        loss.backward()
        found += [weight.grad.sum().item() for weight in model.parameters()]
    return found


def test_graphs_of_an_earlier_mirror_have_the_buffers_of_the_module(compared):
    split, *_ = compared(evaluated_before_training)
    assert split


def gradients_of_groups():
    model, found = weighted(Grouped()), []
    for number in range(3):
        model.zero_grad()
        model(drawn(16, 5, seed=number)).square().mean().backward()
        found += [weight.grad.norm().item() for weight in model.parameters() if weight.grad is not None]
    return found


def test_gradients_are_compared_for_a_full_batch_too_if_no_smaller_one_can_be_computed(compared):
    """Calls were split by outputs alone, and their backward, which compares samples, was that of slices."""
    _, _, lines = compared(gradients_of_groups)
    assert not [line for line in lines if line.startswith("Grouped") and line.endswith("split")], lines
