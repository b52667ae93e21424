"""The script gets the gradients of outputs from which other outputs of a split call are computed."""

import pytest
import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge


def drawn(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


class Generator(nn.Module):
    """Returns latents, what it computes from them, and a parameter."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(5, 8), nn.Linear(8, 4)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x):
        latents = torch.tanh(self.one(x))
        return latents, self.two(latents), self.scale


class Coordinates(Generator):
    """Returns its input as a leaf of the graph."""

    def forward(self, x):
        x = x.clone().detach().requires_grad_()
        return x, self.two(torch.tanh(self.one(x))), self.scale


class Twins(Generator):
    """Returns outputs that do not depend on each other."""

    def forward(self, x):
        return self.one(x), self.two(torch.ones_like(self.one(x)) * x.sum(1, keepdim=True)), self.scale


class Losses(Generator):
    """Returns a loss, what it computes from it, and a parameter."""

    def forward(self, x):
        _, output, scale = super().forward(x)
        loss = output.sin().mean()
        return loss, 2 * loss, scale


def slope(operand, output, loss, *, create_graph=False, grad=torch.autograd.grad):
    of_output = output.square().sum() + operand.sum()
    (gradient,) = grad(of_output, operand, retain_graph=True, create_graph=create_graph)
    (loss + gradient.square().mean() * output.mean()).backward()
    return gradient


def penalty(operand, output, loss):
    return slope(operand, output, loss, create_graph=True)


def slope_by_todays_function(operand, output, loss):
    """Differentiate by the function that torch has within a block, and not by that from before it."""
    return slope(operand, output, loss, grad=torch.autograd.grad)


def slopes_by_name(operand, output, loss):
    """Get the gradients in a dict."""
    loss.backward(retain_graph=True)
    return torch.autograd.grad(output.square().sum(), {"of": operand})["of"]


def retained(operand, output, loss):
    operand.retain_grad()
    loss.backward()
    return operand.grad


def retained_twice(operand, output, loss):
    operand.retain_grad()
    loss.backward(retain_graph=True)
    output.sum().backward()
    return operand.grad


def hooked(operand, output, loss):
    gradients = []
    operand.register_hook(lambda gradient: gradients.append(gradient) or 2 * gradient)
    loss.backward()
    return gradients[0]


def backward_to_it(operand, output, loss):
    (output.square().sum() + operand.sum()).backward(inputs=[operand], retain_graph=True)
    loss.backward()
    return operand.grad


def backward_to_retained(operand, output, loss):
    operand.retain_grad()
    return backward_to_it(operand, output, loss)


def trained_with(make, use, shape=(7, 5), steps=4):
    """Return the losses and gradients of a training."""
    torch.manual_seed(0)
    model, results = make().double(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(steps):
        optimizer.zero_grad()
        operand, output, scale = model(drawn(*shape, seed=number))
        loss = output.square().mean() + operand.sin().mean() + scale.square()
        gradient = use(operand, output, loss)
        optimizer.step()
        results += [loss.item(), gradient.norm().item(), *(p.norm().item() for p in model.parameters())]
    return results


USES = [
    *(slope, slope_by_todays_function, slopes_by_name, penalty),
    *(retained, retained_twice, hooked, backward_to_it, backward_to_retained),
]


@pytest.mark.parametrize("make", [Generator, Losses])
@pytest.mark.parametrize("use", USES)
def test_the_gradient_of_an_operand_includes_that_by_other_outputs(compared, use, make):
    """Only this finds that a script gets the gradient of an output without that by the outputs after it."""
    split, *_ = compared(trained_with, make, use)
    assert split


@pytest.mark.parametrize("use", [slope, penalty, retained, hooked])
def test_an_output_that_forward_makes_a_leaf_gets_a_gradient(compared, use):
    *_, lines = compared(trained_with, Coordinates, use)
    assert any("requires_grad_" in line for line in lines)


def test_a_leaf_is_the_reason_also_where_samples_are_in_the_second_dimension(compared):
    """Only this finds that the points of one image count as too few samples."""
    *_, lines = compared(trained_with, Coordinates, penalty, (1, 7, 5))
    assert any("requires_grad_" in line for line in lines)


@pytest.mark.parametrize("use", [retained, hooked])
def test_calls_with_independent_outputs_are_split_after_hooks_on_them(compared, use):
    split, unsplit, _ = compared(trained_with, Twins, use)
    assert (split, unsplit) == (4, 0)


def called_hooks(use, steps=3):
    """Return how often hooks on weights and on an input were called, and the gradients that they changed."""
    torch.manual_seed(0)
    model, first, calls, found = Generator().double(), nn.Linear(5, 5).double(), [], []
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: calls.append(0) or 2 * gradient)
    for number in range(steps):
        x = first(drawn(7, 5, seed=number))
        x.retain_grad()
        x.register_hook(lambda gradient: calls.append(0) or 3 * gradient)
        operand, output, scale = model(x)
        found += [use(operand, output, output.sum() + scale).norm().item(), float(len(calls))]
        found += [x.grad.norm().item(), *(p.grad.norm().item() for p in [*model.parameters(), first.weight])]
    return found


@pytest.mark.parametrize("use", [slope, penalty, retained, hooked, backward_to_it])
def test_hooks_of_sources_are_called_once_in_a_backward(compared, use):
    """Only this finds hooks that a call which is computed again calls, too: each would double a gradient."""
    split, *_ = compared(called_hooks, use)
    assert split


class ReturnsTwice(Generator):
    """Returns its input between two references to one output."""

    def forward(self, x):
        scores = self.two(torch.tanh(self.one(x)))
        return scores, x, scores


def slopes_of_inputs(steps=3):
    """Return losses with a penalty on the gradients of the inputs."""
    torch.manual_seed(0)
    model, losses = ReturnsTwice().double(), []
    for number in range(steps):
        x = drawn(7, 5, seed=number).requires_grad_()
        scores, _, again = model(x)
        (slopes,) = torch.autograd.grad(scores.sum(), x, create_graph=True)
        loss = again.square().mean() + slopes.square().mean()
        losses += [loss.item(), torch.autograd.grad(loss, model.one.weight)[0].norm().item()]
    return losses


def test_a_call_that_returns_a_tensor_twice_and_its_input_is_computed_again(compared):
    """Only this finds that its outputs are counted in another way than those of the split call."""
    split, *_ = compared(slopes_of_inputs)
    assert split == 1


def several_gradients(latents, output):
    several = torch.eye(4, dtype=torch.float64)
    return torch.autograd.grad(output.sum(0), latents, several, is_grads_batched=True)[0]


def gradient_of_an_edge(latents, output):
    return torch.autograd.grad(output.square().sum(), get_gradient_edge(latents))[0]


def gradients_of_latents(take, steps=3):
    torch.manual_seed(0)
    model, found = Generator().double(), []
    for number in range(steps):
        latents, output, _ = model(drawn(7, 5, seed=number))
        found += take(latents, output).flatten().tolist()
        with pytest.raises(RuntimeError, match="second time"):
            output.sum().backward()
    return found


@pytest.mark.parametrize("take", [several_gradients, gradient_of_an_edge])
def test_gradients_of_an_operand_by_torchs_other_ways_are_as_on_one_worker(compared, take):
    assert compared(gradients_of_latents, take)[0] >= 1


def with_unused_latents():
    """Return whether torch refuses the gradient of an output that the loss does not depend on."""
    torch.manual_seed(0)
    model = Generator().double()
    latents, _, scale = model(drawn(7, 5))
    with pytest.raises(RuntimeError, match="not have been used"):
        torch.autograd.grad(scale, latents)
    return [float(torch.autograd.grad(scale.square(), latents, allow_unused=True)[0] is None)]


def test_an_unused_operand_is_an_error_unless_it_may_be_unused(compared):
    compared(with_unused_latents)


def hooks_after_a_gradient():
    torch.manual_seed(0)
    latents, output, _ = Generator().double()(drawn(7, 5))
    torch.autograd.grad(output.sum(), latents, retain_graph=True)
    call = getattr(latents.grad_fn, "call", None)  # none on one worker
    return [0.0 if call is None else float(len(call._hooks))]


def test_no_hook_is_left_that_would_compute_each_later_backward_of_the_call_again(compared):
    compared(hooks_after_a_gradient)


class Counts(nn.Module):
    """Changes a buffer, and then computes with it."""

    def __init__(self):
        super().__init__()
        self.one, self.calls = nn.Linear(4, 3, dtype=torch.float64), 0
        self.register_buffer("factors", torch.ones(3, dtype=torch.float64))
        for parameter in self.parameters():
            parameter.data = drawn(*parameter.shape)

    def forward(self, x):
        self.calls += 1
        self.factors.mul_(0.9)
        return self.one(x).tanh() * self.factors * self.calls


def penalty_on_slopes(steps=2):
    model, found = Counts(), []
    for step in range(steps):
        x = drawn(8, 4, seed=step).requires_grad_()
        (slopes,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        slopes.square().sum().backward()
        found += [model.one.weight.grad.sum().item(), model.factors.sum().item(), float(model.calls)]
    return found


def test_a_call_is_computed_again_from_the_state_before_it(compared):
    assert compared(penalty_on_slopes)[0] >= 1


def after_a_write_to_an_input():
    model = nn.Bilinear(4, 4, 3, dtype=torch.float64)
    x, fixed = drawn(8, 4).requires_grad_(), drawn(8, 4)
    outputs = model(x, fixed)
    fixed.add_(1)
    with pytest.raises(RuntimeError, match="inplace"):
        torch.autograd.grad(outputs.sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="inplace"):
        outputs.sum().backward()
    return []


def test_no_call_is_computed_again_after_a_write_to_an_input(compared):
    compared(after_a_write_to_an_input)
