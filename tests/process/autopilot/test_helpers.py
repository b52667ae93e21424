"""A script that runs once, with helpers, gives what it gives without them, whatever it does to its model."""

import io
import os
import signal
import threading
import time
import warnings
from contextlib import nullcontext, redirect_stderr, suppress
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.backends import cudnn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils import parameters_to_vector, parametrizations, parametrize, vector_to_parameters

from samestep.autopilot.once_script import script_with_helpers
from samestep.autopilot.script.options import Options
from samestep.parallel.exact.identity import float32_precisions, set_precisions
from support.helper_processes import helpers_of_this_process
from support.split_check_models import step
from support.tiers import long_param

STEPS = 6


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Linear(16, 3)
        self.scale = 1.0

    def forward(self, x):
        return self.last(torch.tanh(self.norm(self.first(x)))) * self.scale


def made():
    torch.manual_seed(3)
    model = Net().double()
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), torch.randn(14, 6).double()


def average_of_weights():
    """Evaluate an average of the weights, which is written through `data`, buffers included."""
    model, optimizer, x = made()
    average = Net().double().eval()
    found = []
    for _ in range(STEPS):
        step(model, optimizer, x)
        for of_average, of_model in zip(
            average.state_dict().values(), model.state_dict().values(), strict=True
        ):
            of_average.data.copy_(of_model)
        with torch.no_grad():
            found.append(average(x).sum().item())
    return found


def statistics_of_unsplit_calls():
    """Evaluate after batches of one sample, which are too small to be split, have changed the statistics."""
    model, optimizer, x = made()
    found = []
    for _ in range(STEPS):
        step(model, optimizer, x)
        with torch.no_grad():
            model.norm.momentum = 0.5
            model.train()
            model.norm(model.first(x))
            model.eval()
            found.append(model(x).sum().item())
            model.train()
    return found


def changed_attributes():
    model, optimizer, x = made()
    found = []
    for number in range(STEPS):
        model.scale = 1 + number % 3
        found.append(step(model, optimizer, x))
    return found


def replaced_weights():
    model, optimizer, x = made()
    found = []
    for number in range(STEPS):
        found.append(step(model, optimizer, x))
        if number % 2:
            model.first.weight.data = model.first.weight.data.clone() * 0.5
            model.last.load_state_dict({k: v * 0.9 for k, v in model.last.state_dict().items()})
    return found


def weights_under_another_name():
    """Write to a weight through a tensor that shared its memory before the first call."""
    model, optimizer, x = made()
    alias = model.last.weight.data.numpy()
    found = []
    for _ in range(STEPS):
        found.append(step(model, optimizer, x))
        alias *= 0.9
    return found


def gradients_of_a_call_before_a_check():
    model, _, x = made()
    before = model(x).square().mean()
    model(x[:5])
    with torch.no_grad():
        model(x)
    return [one.sum().item() for one in torch.autograd.grad(before, list(model.parameters()))]


def gradient_penalty():
    model, optimizer, x = made()
    found = []
    for _ in range(STEPS):
        given = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(model(given).sum(), given, create_graph=True)
        loss = model(x).square().mean() + slope.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def recurrent_calls_computed_again():
    """Differentiate calls whose inputs were computed by the same weights, and compute them again here."""
    torch.manual_seed(3)
    cell, inputs = nn.RNNCell(3, 4, dtype=torch.float64), torch.randn(5, 8, 3).double()

    def loss():
        hidden = torch.zeros(8, 4).double()
        for given in inputs:
            hidden = cell(given, hidden)
        return hidden.square().sum()

    slopes = torch.autograd.grad(loss(), [*cell.parameters()], create_graph=True)
    penalty = sum(slope.square().sum() for slope in slopes)
    (penalty + loss()).backward()
    return [penalty.item(), *(weight.grad.norm().item() for weight in cell.parameters())]


def recurrent_weights_replaced_before_a_backward():
    torch.manual_seed(3)
    cell, inputs = nn.RNNCell(3, 4, dtype=torch.float64), torch.randn(5, 8, 3).double()
    hidden = torch.zeros(8, 4).double()
    for given in inputs:
        hidden = cell(given, hidden)
    for weight in cell.parameters():
        weight.data = weight.data.clone()
    hidden.square().sum().backward()
    return [weight.grad.norm().item() for weight in cell.parameters()]


def two_backwards():
    model, _, x = made()
    loss = model(x).square().mean()
    loss.backward(retain_graph=True)
    once = model.first.weight.grad.sum().item()
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()
    return [once, model.first.weight.grad.sum().item()]


def gradients_of_an_attribute():
    """The module computes with a tensor that the script has computed, and that it holds as an attribute."""
    model, _, x = made()
    weight = torch.ones(3, requires_grad=True, dtype=torch.float64)
    found = []
    for _ in range(2):
        model.scale = torch.tanh(weight)
        (gradient,) = torch.autograd.grad(model(x).square().sum(), weight)
        found += gradient.tolist()
    return found


class Talks(Net):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        if self.calls == 4:
            print("call", self.calls)
        return super().forward(x)


class Draws(Net):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x + 0.1 * torch.rand_like(x) if self.calls == 4 else x)


def numbers_that_only_a_later_call_draws():
    """The main rank alone finds it; the helpers wait for it in a collective, and must leave that."""
    _, _, x = made()
    model = Draws().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return [step(model, optimizer, x) for _ in range(STEPS)]


def precisions_by_their_new_names():
    """Set a precision by its new name, after which torch refuses to read the old names."""
    before = float32_precisions()
    model, optimizer, x = made()
    try:
        if hasattr(torch.backends, "fp32_precision"):  # torch 2.9 and newer
            torch.backends.mkldnn.matmul.fp32_precision = "bf16"
        return [step(model, optimizer, x) for _ in range(STEPS)]
    finally:
        set_precisions(before)


def weights_in_another_form():
    """Catches mirrors that have the address of a weight only: the rows and columns there are others."""
    torch.manual_seed(3)
    model, x = nn.Linear(6, 6).double(), torch.randn(14, 6).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = [step(model, optimizer, x)]
    model.weight.data = model.weight.data.t()
    found.append(step(model, optimizer, x))
    optimizer.zero_grad()
    model.weight.data, model.bias.data = model.weight.data[:4], model.bias.data[:4]
    return [*found, step(model, optimizer, x)]


class Scaled(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(x) * 1.5


def new_weights_called_by_another_module_first():
    """New memory of weights may have the address of the memory that helpers saw at the last call."""
    torch.manual_seed(3)
    model, x = nn.Linear(6, 6).double(), torch.randn(14, 6).double()
    scaled, found = Scaled(model), []
    for _ in range(STEPS):
        loss = model(x).square().mean()
        model.zero_grad()
        loss.backward()
        for weight in model.parameters():
            weight.data = weight.data - 0.1 * weight.grad
        found += [loss.item(), scaled(x).sum().item()]
        del loss
    return found


def weights_replaced_between_call_and_backward():
    """Torch differentiates a convolution with the values that its weight has in the backward."""
    torch.manual_seed(3)
    model, x = nn.Conv1d(2, 3, 2).double(), torch.randn(14, 2, 6).double()
    x.requires_grad_()
    found = []
    for _ in range(STEPS):
        precise = model.weight.data
        model.weight.data = precise.sign()
        loss = model(x).square().mean()
        model.weight.data = precise
        (gradient,) = torch.autograd.grad(loss, x)
        model.weight.data = precise * 0.9
        found += [loss.item(), gradient.norm().item()]
    return found


def weights_in_a_flat_tensor():
    """The weights are views of one tensor, to which the script writes between a call and its backward."""
    torch.manual_seed(3)
    model, x = nn.Conv1d(2, 3, 2).double(), torch.randn(14, 2, 6).double()
    x.requires_grad_()
    flat, found = parameters_to_vector(model.parameters()).detach(), []
    vector_to_parameters(flat, model.parameters())
    for _ in range(STEPS):
        loss = model(x).square().mean()
        flat *= 0.9
        found += [loss.item(), torch.autograd.grad(loss, x)[0].norm().item()]
    return found


def weights_that_two_calls_compute_once():
    torch.manual_seed(3)
    model, x = parametrizations.orthogonal(nn.Linear(6, 6).double()), torch.randn(14, 6).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = [step(model, optimizer, x)]
    for _ in range(STEPS):
        with parametrize.cached():
            loss = (model(x) * model(x + 1)).square().mean()
            optimizer.zero_grad()
            loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


class TwoHeads(Net):
    def forward(self, x):
        return super().forward(x), self.first(x)


def weights_frozen_between_call_and_backward():
    """Torch gives a weight no gradient that was frozen since the call, and gives the others theirs."""
    torch.manual_seed(3)
    model, x = TwoHeads().double(), torch.randn(14, 6).double()
    found = []
    for frozen in (model.last, model.first, model):
        model.requires_grad_(True).zero_grad()
        first, second = model(x)
        frozen.requires_grad_(False)
        (first.square().sum() + second.sum()).backward()
        found += [0.0 if weight.grad is None else weight.grad.norm().item() for weight in model.parameters()]
    model.last.requires_grad_(True)
    first, _ = model(x)
    model.requires_grad_(True)
    gradients = torch.autograd.grad(first.square().sum(), [model.last.weight], create_graph=True)
    return [*found, gradients[0].norm().item()]


class Bank(nn.Module):
    """Has a large memory beside its weights, to which it writes in each call."""

    def __init__(self, *, is_split):
        super().__init__()
        self.inner, self.is_split = nn.Linear(6, 3), is_split
        self.register_buffer("bank", torch.zeros(20_000))

    def forward(self, x):
        self.bank += 1
        outputs = self.inner(x) * self.bank[-3:]
        return outputs if self.is_split else outputs - outputs.mean(0)


def large_buffers_that_calls_write_to():
    """Catches ranks that read what others write, and weights on the pages that a helper has written to."""
    found = []
    for is_split in (True, False):
        torch.manual_seed(3)
        model, x = Bank(is_split=is_split).double(), torch.randn(14, 6).double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for number in range(STEPS):
            found += [step(model, optimizer, x), step(model.inner, optimizer, x), model.bank.sum().item()]
            if number == 2:
                model.bank.data.zero_()
    return found


class Switches(Net):
    """Computes by the switches and the default device, as a kernel that draws numbers of its own would."""

    def forward(self, x):
        backends = torch.backends
        switches = (
            *(backends.cudnn.enabled, backends.cuda.math_sdp_enabled()),
            *(backends.cuda.flash_sdp_enabled(), backends.cuda.mem_efficient_sdp_enabled()),
            *(backends.cuda.cudnn_sdp_enabled(), torch.empty(0).is_meta),
        )
        return super().forward(x) * sum(2.0**place for place, is_on in enumerate(switches) if is_on)


def switches_of_kernels():
    """Select kernels around the calls, also those without a state of their own that dropout needs."""
    _, _, x = made()
    torch.manual_seed(3)
    model = Switches().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    with sdpa_kernel(SDPBackend.MATH), cudnn.flags(enabled=False), torch.device("meta"):
        return [step(model, optimizer, x) for _ in range(STEPS)]


def settings_of_layers():
    model, optimizer, x = made()
    found = []
    for number in range(STEPS):
        model.norm.momentum = 0.1 * (1 + number)
        found.append(step(model, optimizer, x))
    return [*found, model.norm.running_var.sum().item()]


def statistics_after_a_call_that_prints():
    """The fourth call prints: it is computed again, as a whole, from the statistics before it."""
    _, _, x = made()
    model = Talks().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = [step(model, optimizer, x) for _ in range(STEPS)]
    return [*found, model.norm.running_mean.sum().item(), model.norm.num_batches_tracked.item(), model.calls]


def hooks_on_gradients():
    """A hook on a weight gets the gradient of the whole batch, once."""
    model, optimizer, x = made()
    seen = []
    model.first.weight.register_hook(lambda gradient: seen.append(gradient.norm().item()))
    for _ in range(STEPS):
        step(model, optimizer, x)
    return seen


class ListedParts(Net):
    """Its class and the module itself replace methods of `nn.Module`."""

    def __init__(self):
        super().__init__()
        self.__dict__["modules"] = [self.first, self.norm]
        self.__dict__["buffers"] = []

    def parameters(self, recurse=True):
        return [*super().parameters(recurse)]

    def named_parameters(self, prefix="", recurse=True):
        return [*super().named_parameters(prefix, recurse)]


def replaced_methods():
    """Catches methods of `nn.Module` that a check, a call or a mirror takes from the script's class."""
    torch.manual_seed(3)
    model = ListedParts().double()
    optimizer, x = torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(14, 6).double()
    return [step(model, optimizer, x) for _ in range(STEPS)]


def sparse_gradients():
    """Catches a warning about the average of sparse gradients, which no script causes itself."""
    torch.manual_seed(3)
    model, ids = nn.Embedding(9, 3, sparse=True).double(), torch.arange(14).view(7, 2) % 9
    optimizer = torch.optim.SparseAdam(model.parameters(), lr=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return [step(model, optimizer, ids) for _ in range(STEPS)]


class Collects(Net):
    def __init__(self):
        super().__init__()
        self.collected = []

    def forward(self, x):
        self.collected.append(super().forward(x))
        return self.collected[-1]


def a_list_that_grows():
    """Catches a list of the module that a check or a call empties, or leaves with the parts of slices."""
    torch.manual_seed(3)
    model, x = Collects().double(), torch.randn(14, 6).double()
    found = []
    for number in range(STEPS):
        total = model(x).sum() + model(x[:10]).sum()
        found += [
            len(model.collected),
            sum(one.square().sum() for one in model.collected).item(),
            total.item(),
        ]
        if number == 2:
            model.collected.clear()
    return found


class Repeats(Net):
    def forward(self, x, mask):
        self.hidden = super().forward(x) * mask
        return self.hidden, self.hidden, mask, x


def results_under_several_names():
    """Change results in place: catches copies where a call returns an argument or an attribute as it is."""
    torch.manual_seed(3)
    model, x, mask = Repeats().double(), torch.randn(14, 6).double(), torch.ones(14, 1).double()
    found = []
    for grad in (True, False) * 2:
        with torch.set_grad_enabled(grad):
            given = (x * 1).requires_grad_(grad)
            first, second, returned, same = model(given, mask)
        found += [second.sum().item(), float(same is given)]
        if grad:
            (first.sum() * 2 + second.square().sum() + same.square().sum()).backward()
            found.append(given.grad.sum().item())
        else:
            first.add_(1)
            first.detach_()
        with torch.no_grad():
            returned.mul_(0.5)
        found += [second.sum().item(), model.hidden.sum().item(), mask.sum().item()]
    return found


def gradients_that_are_changed_and_saved():
    """Change a gradient while a graph needs another, and save that: catches gradients that share memory."""
    model, _, x = made()
    scale = torch.ones(3, requires_grad=True, dtype=torch.float64)
    model(x).square().mean().backward()
    bias, weight = model.last.bias.grad, model.first.weight.grad
    loss = (bias * scale).square().sum()
    weight.mul_(0.5)
    loss.backward()
    return [*scale.grad.tolist(), weight.sum().item(), bias.untyped_storage().nbytes()]


def in_a_forked_child():
    """A child has the weights of the moment at which it was forked, and computes alone."""
    model, optimizer, x = made()
    step(model, optimizer, x)
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        torch.set_num_threads(1)  # a fork has none of the threads that its parent computes with
        time.sleep(0.2)
        with torch.no_grad():
            os.write(writes, f"{model.eval()(x).sum().item():.12f}".encode())
        os._exit(0)
    for _ in range(3):
        step(model, optimizer, x)
    os.waitpid(child, 0)
    return [float(os.read(reads, 100)), step(model, optimizer, x)]


def in_two_threads():
    models = [made() for _ in range(2)]
    found = [[], []]

    def train(number):
        found[number] += [step(*models[number]) for _ in range(STEPS)]

    threads = [threading.Thread(target=train, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [*found[0], *found[1]]


SCRIPTS = [
    *(average_of_weights, statistics_of_unsplit_calls, changed_attributes, replaced_weights),
    *(weights_under_another_name, gradients_of_a_call_before_a_check, gradient_penalty, two_backwards),
    *(
        recurrent_calls_computed_again,
        recurrent_weights_replaced_before_a_backward,
        statistics_after_a_call_that_prints,
        numbers_that_only_a_later_call_draws,
        settings_of_layers,
        weights_in_another_form,
        new_weights_called_by_another_module_first,
        weights_frozen_between_call_and_backward,
        weights_replaced_between_call_and_backward,
        weights_in_a_flat_tensor,
        weights_that_two_calls_compute_once,
        large_buffers_that_calls_write_to,
        precisions_by_their_new_names,
        gradients_of_an_attribute,
        hooks_on_gradients,
        gradients_that_are_changed_and_saved,
        replaced_methods,
        results_under_several_names,
        a_list_that_grows,
        sparse_gradients,
        in_a_forked_child,
        in_two_threads,
    ),
]


def with_helpers(_, script, helpers):
    if not helpers:
        return script(), []
    with script_with_helpers(1 + helpers, forks=True) as account:
        return script(), account.lines()


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda one: one.__name__)
def test_changes_of_a_model_reach_the_helpers(processes, script):
    ((alone, _),) = processes.run(with_helpers, 1, script, 0)
    ((found, account),) = processes.run(with_helpers, 1, script, 1)
    assert found == pytest.approx(alone, rel=1e-9, abs=1e-12)
    assert [line for line in account if "split" in line and "unsplit" not in line], account


class Scales(nn.Module):
    """Has two layers and a buffer, of which a script may freeze some and replace others."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 5), nn.Linear(5, 4)
        self.register_buffer("scale", torch.linspace(0.5, 2, 5))

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)) * self.scale)


def replaced_before_backward(_, frozen, replaced, helpers):
    torch.manual_seed(3)
    model, x = Scales().double(), torch.randn(14, 6).double()
    for name, weight in model.named_parameters():
        weight.requires_grad_(not name.startswith(frozen))
    optimizer = torch.optim.SGD((weight for weight in model.parameters() if weight.requires_grad), lr=0.1)
    tensors = [
        tensor for name, tensor in model.state_dict(keep_vars=True).items() if name.startswith(replaced)
    ]
    found = []
    with script_with_helpers(1 + helpers, forks=True) if helpers else nullcontext() as account:
        for _ in range(3):
            precise = [tensor.data for tensor in tensors]
            for tensor in tensors:
                tensor.data = tensor.data.round(decimals=1)
            loss = model(x).square().mean()
            for tensor, data in zip(tensors, precise, strict=True):
                tensor.data = data
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found, account.lines() if helpers else []


@pytest.mark.parametrize("frozen", ["none", "first", "second"])
@pytest.mark.parametrize(
    "replaced", [("first",), ("second",), ("first", "second"), ("scale",), ("scale", "first")]
)
def test_tensors_replaced_before_a_backward_have_their_numbers_of_the_call(processes, frozen, replaced):
    """Only this finds a call that is computed again with the present numbers of a frozen layer."""
    ((alone, _),) = processes.run(replaced_before_backward, 1, frozen, replaced, 0)
    ((found, account),) = processes.run(replaced_before_backward, 1, frozen, replaced, 1)
    assert found == pytest.approx(alone, rel=1e-9, abs=1e-12)
    assert [line for line in account if "split" in line and "unsplit" not in line], account


def backward_after_the_block(_, helpers, fails):
    """Return the gradients of a call whose backward comes after the helpers' end, and lines on stderr."""
    model, _, x = made()
    errors = io.StringIO()
    with redirect_stderr(errors), suppress(KeyError), script_with_helpers(1 + helpers, forks=True):
        found = model(x)
        if fails:
            raise KeyError
    with redirect_stderr(errors):
        found.sum().backward(retain_graph=True)
        found.sum().backward()
    return [parameter.grad.sum().item() for parameter in model.parameters()], errors.getvalue()


@pytest.mark.parametrize("fails", [False, True])
def test_a_backward_after_the_block_is_computed_without_helpers_and_accuses_none(processes, fails):
    """Only this finds the last output of a notebook's block, used in a later cell."""
    ((alone, _),) = processes.run(backward_after_the_block, 1, 0, fails)
    ((found, errors),) = processes.run(backward_after_the_block, 1, 1, fails)
    assert found == pytest.approx(alone, rel=1e-9, abs=1e-12)
    assert errors == ""


def test_helpers_select_kernels_as_the_script_does(run):
    """Only this finds a helper whose kernels draw their own dropout, or whose new tensors are elsewhere."""
    found, split, unsplit, lines = run(2, switches_of_kernels)
    assert found == pytest.approx(switches_of_kernels(), rel=1e-9, abs=1e-12)
    assert (split, unsplit) == (STEPS, 0), lines


def runs(process):
    """Return whether a process runs; a zombie does not."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except FileNotFoundError:
        return False


def with_lost_helpers(_, number, when):
    model, optimizer, x = made()
    with script_with_helpers(3, forks=True, timeout_s=1) as account:
        found = [step(model, optimizer, x)]
        for _ in range(4):
            if when == "before a call":
                os.kill(helpers_of_this_process()[0], number)
                found.append(step(model, optimizer, x))
            else:
                loss = model(x).square().mean()
                os.kill(helpers_of_this_process()[1], number)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                found.append(loss.item())
        found.append(step(model, optimizer, x))
        left = helpers_of_this_process()
    time.sleep(0.1)
    return found, account.lines(), [one for one in left if runs(one)]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("when", ["before a call", "before a backward"])
def test_a_lost_helper_costs_its_slice_not_the_run(processes, when, number):
    """One that is stopped for longer than the limit, here a second, is lost, too."""
    ((found, account, left),) = processes.run(with_lost_helpers, 1, number, when)
    model, optimizer, x = made()
    assert found == pytest.approx([step(model, optimizer, x) for _ in range(6)], rel=1e-9)
    assert not left
    if when == "before a call" and number == signal.SIGSTOP:  # a killed one may be missed before the call
        assert any("helper was lost" in line for line in account), account


def killed_with_helpers(_):
    """Return the helpers of a process that are left a second after it was killed; a fork of it is left."""
    reads, writes = os.pipe()
    process = os.fork()
    if not process:
        model, optimizer, x = made()
        with script_with_helpers(3, forks=True):
            step(model, optimizer, x)
            fork = os.fork()
            if fork:
                os.write(writes, " ".join(map(str, (fork, *helpers_of_this_process()))).encode())
            time.sleep(60)
            os._exit(0)
    fork, *helpers = map(int, os.read(reads, 100).split())
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    time.sleep(1)
    left = [one for one in helpers if runs(one)]
    os.kill(fork, signal.SIGKILL)
    return len(helpers), left


def test_helpers_end_with_their_main_process(processes):
    """Only this finds helpers that live as long as a fork of the script, which has all its files."""
    assert processes.run(killed_with_helpers, 1) == [(2, [])]


def children(process):
    return [int(one) for one in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def children_of_script(_, forks):
    """Return the children that a script finds, and the helpers left after its end, which a fork outlives."""
    reads, writes = os.pipe()
    model, optimizer, x = made()
    with script_with_helpers(2, forks=forks):
        found = [step(model, optimizer, x), step(model, optimizer, x)]
        with pytest.raises(ChildProcessError):
            os.wait()
        listed, helpers = children(os.getpid()), helpers_of_this_process()
        fork = os.fork()
        if not fork:
            os.close(writes)
            os.read(reads, 1)  # ends when its parent closes the pipe
            os._exit(0)
    left = [one for one in helpers if runs(one)]
    os.close(writes)
    os.waitpid(fork, 0)
    os.close(reads)
    return found, listed, len(helpers), left


@pytest.mark.parametrize("forks", [True, long_param(False, id="an interpreter of its own")])
def test_helpers_are_no_children_of_the_script_and_end_before_its_forks(processes, forks):
    """Only this finds an endless wait for all children, and an end that waits for the script's forks."""
    ((found, listed, number, left),) = processes.run(children_of_script, 1, forks)
    model, optimizer, x = made()
    assert found == pytest.approx([step(model, optimizer, x) for _ in range(2)], rel=1e-9)
    assert (listed, number, left) == ([], 1, [])


class Compared(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, x):
        h = self.linear(x)
        return h - h.mean(0)


def evidence(_):
    torch.manual_seed(0)
    with script_with_helpers(2, Options(explain=True), forks=True) as account:
        Compared().double()(torch.randn(8, 6).double())
    return account.lines()


def test_evidence_has_the_ways_tried_and_the_size_of_a_difference(processes):
    ((lines,),) = [processes.run(evidence, 1)]
    _, unsplit, first, *_ = lines
    assert "it differs by 0." in unsplit
    assert "[0] split along dimension 0" in first
    assert "rounding explains" in first
