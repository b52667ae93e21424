"""Writes to results of split calls are seen where `python` shows them: results may share memory."""

from functools import partial

import pytest
import torch
from torch import Tensor, nn

from samestep.autopilot.split.shared_memory import SHARES, _steps, have_values_of, views_in, with_views


class Layer(nn.Module):
    def __init__(self, results, dim=0):
        super().__init__()
        self.layer, self.results, self.dim = nn.Linear(4, 6), results, dim
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x):
        return self.results(self, self.layer(x), x)


def keeps(model, hidden, x):
    model.kept = hidden[:, :3].detach()
    return hidden, x


RESULTS = {
    "a view": lambda _, hidden, x: (hidden, hidden.view(-1, 2, 3)),
    "columns": lambda _, hidden, x: (hidden[:, 1:], hidden, hidden[:, 2]),
    "views of each other": lambda _, hidden, x: (hidden.view(-1, 3), hidden.view(-1, 2, 3).transpose(1, 2)),
    "detached": lambda _, hidden, x: (hidden.detach(), hidden),
    "expanded": lambda _, hidden, x: (hidden, hidden.unsqueeze(1).expand(-1, 2, 6)),
    "an attribute": keeps,
    "the argument": lambda _, hidden, x: (x.view(-1, 2, 2), hidden),
    "a part of the argument": lambda _, hidden, x: (x[:, 1:3], hidden),
    "a weight": lambda model, hidden, x: (hidden * 1, model.layer.weight.t()),
    "a buffer": lambda model, hidden, x: (model.mean, hidden),
    "a part of a buffer": lambda model, hidden, x: (model.mean[1:], hidden),
}


NEEDED = ("an attribute", "the argument", "a part of the argument", "a weight")
"""Results whose memory the backward needs as it was."""


def written(results, grad):
    """Write to each result, and return the sums of all that may share its memory, and of gradients."""
    torch.manual_seed(3)
    model, found = Layer(RESULTS[results]).double(), []
    for place in (0, 1, 0, 1):
        x = torch.randn(12, 4, dtype=torch.float64)
        with torch.set_grad_enabled(grad):
            results_of_call = model(x)
        with torch.no_grad():
            if not (results == "expanded" and place):
                results_of_call[place].select(-1, 0).add_(place + 1.0)
            tensors = [*results_of_call, x, model.mean, model.layer.weight, getattr(model, "kept", x)]
            found += [(tensor * torch.arange(1, 1 + tensor.size(-1))).sum().item() for tensor in tensors]
        if grad:
            found += [float(tensor.is_leaf) for tensor in tensors]
        if grad and results not in NEEDED:
            sum(tensor.sum() for tensor in results_of_call if tensor.requires_grad).backward()
            found.append(model.layer.weight.grad.sum().item())
    return found


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("results", RESULTS)
def test_a_write_to_a_result_is_seen_in_others(compared, results, grad):
    split, unsplit, _ = compared(written, results, grad)
    assert (split, unsplit) == (4, 0)


def written_through_a_view():
    """Write to a view of a result that requires gradients, as part of the graph."""
    torch.manual_seed(3)
    model, found = Layer(RESULTS["columns"]).double(), []
    for _ in range(3):
        part, whole, column = model(torch.randn(12, 4, dtype=torch.float64))
        part.mul_(2)
        column.add_(1)
        (whole.square().sum() + part.sum()).backward()
        found += [whole.sum().item(), column.sum().item(), model.layer.weight.grad.sum().item()]
    return found


def test_gradients_pass_a_write_to_a_view(compared):
    split, unsplit, _ = compared(written_through_a_view, size=3)
    assert (split, unsplit) == (3, 0)


def in_part(_, hidden, x):
    return hidden[:, :4], hidden[:, 2:]


def written_to_overlapping():
    torch.manual_seed(3)
    model, found = Layer(in_part).double(), []
    for _ in range(2):
        with torch.no_grad():
            first, second = model(torch.randn(12, 4, dtype=torch.float64))
            first.add_(1)
            found += [first.sum().item(), second.sum().item()]
    return found


def test_results_that_overlap_in_part_are_unsplit(compared):
    split, unsplit, lines = compared(written_to_overlapping)
    assert (split, unsplit) == (0, 2)
    assert any(SHARES in line for line in lines)


class Remembers(Layer):
    def forward(self, x):
        before, self.kept = getattr(self, "kept", None), self.layer(x).detach()
        result = self.layer(x)
        return result if before is None else result + before


WRITES = {
    "in place": lambda kept: kept.zero_(),
    "through data": lambda kept: kept.data.zero_(),
    "in part": lambda kept: kept[3:].fill_(2.0),
}


def written_between_calls(how, rows=12):
    torch.manual_seed(3)
    model, found = Remembers(None).double(), []
    for number in range(6):
        found.append(model(torch.randn(rows, 4, dtype=torch.float64)).sum().item())
        if number in (2, 3):
            WRITES[how](model.kept)
    return found


@pytest.mark.parametrize("how", WRITES)
def test_helpers_have_what_the_script_writes_to_an_attribute(compared, how):
    """Catches helpers that go on from the hidden state that a call has left, and not from the script's."""
    split, *_ = compared(written_between_calls, how)
    assert split >= 5


def test_helpers_have_what_the_script_writes_to_a_large_attribute(compared):
    compared(written_between_calls, "in part", 3000)


class Marks(Layer):
    def forward(self, x):
        hidden = self.layer(x)
        result = hidden.relu()
        result.before = hidden
        return result


def attributes_of_results():
    torch.manual_seed(3)
    model, x = Marks(None).double(), torch.randn(12, 4, dtype=torch.float64)
    results = [model(x) for _ in range(2)]
    return [result.before.sum().item() for result in results]


def test_attributes_of_results_are_kept(compared):
    split, unsplit, _ = compared(attributes_of_results)
    assert (split, unsplit) == (0, 2)


def test_a_view_of_a_slice_is_that_of_the_whole_batch_in_each_layout():
    """Catches strides of a slice that are used for the batch: in a time-first result they are others."""
    whole = torch.arange(3 * 8 * 5.0).view(3, 8, 5)
    part = whole[:, :4].contiguous()
    makers = [
        lambda y: y[-1],
        lambda y: y[1:, :, 2:],
        lambda y: y.transpose(0, 1),
        lambda y: y[:, :, 3],
        lambda y: y.permute(2, 1, 0)[1],
    ]
    for make in makers:
        parts, gathered = {(0,): part, (1,): make(part)}, {0: whole, 1: make(whole).clone()}
        views = views_in(parts, [])
        assert have_values_of(views, gathered)
        taken: Tensor = with_views(gathered, views)[1]
        assert taken.data_ptr() == make(whole).data_ptr()
        assert taken.stride() == make(whole).stride()


def test_a_view_that_is_another_one_in_the_batch_has_other_values():
    whole, part = torch.arange(16.0).view(8, 2), torch.arange(8.0).view(4, 2)
    views = views_in({(0,): part, (1,): part.view(2, 4).t()}, [])
    assert not have_values_of(views, {0: whole, 1: torch.zeros(4, 4)})


@pytest.mark.parametrize(
    ("part", "steps"),
    [
        (((1 << 40, 8), (512, 1), 8), ((0, 1, 0), ((1, 0, 0), (0, 0, 1)))),
        (((1 << 40, 64, 3), (512, 8, 1), 2), ((0, 0, 2), ((1, 0, 0), (0, 1, 0), (0, 0, 1)))),
    ],
    ids=["a row", "columns"],
)
def test_the_elements_of_a_large_result_are_not_listed(part, steps):
    assert _steps(((1 << 40, 64, 8), (512, 8, 1), 0), part) == steps


def written_in_the_second_half_of_a_tensor():
    torch.manual_seed(3)
    model, found = Layer(RESULTS["a part of the argument"]).double(), []
    for _ in range(3):
        data = torch.randn(24, 4, dtype=torch.float64)
        with torch.no_grad():
            part, _ = model(data[12:])
            part.add_(1)
            found += [data[:12].sum().item(), data[12:].sum().item()]
    return found


def test_a_result_that_is_a_view_of_a_part_of_a_tensor_begins_in_that_part(compared):
    """Only this finds a batch whose first element is not the first in its memory."""
    split, unsplit, _ = compared(written_in_the_second_half_of_a_tensor)
    assert (split, unsplit) == (3, 0)


class FollowsItsHead(nn.Module):
    """Has a teacher in a list, which is not registered, and averages its head into it in each call."""

    def __init__(self):
        super().__init__()
        self.head, self.teacher = nn.Linear(4, 3), [nn.Linear(4, 3, dtype=torch.float64)]

    def forward(self, x):
        with torch.no_grad():
            target = self.teacher[0](x)
            both = zip(self.teacher[0].parameters(), self.head.parameters(), strict=True)
            for average, weight in both:
                average.mul_(0.9).add_(weight, alpha=0.1)
        return (self.head(x) - target).square().mean()


class BalancesSigns(nn.Module):
    """Moves a buffer by signs, which are those of each slice in most batches; from a call on, if it waits."""

    def __init__(self, waits=0):
        super().__init__()
        self.layer, self.calls, self.waits = nn.Linear(4, 3), 0, waits
        self.layer.weight.data *= 1e-3
        self.layer.bias.data = torch.tensor([4.0, -1.0, -4.0])
        self.register_buffer("shift", torch.zeros(3))

    def forward(self, x):
        scores = self.layer(x) + self.shift
        self.calls += 1
        if self.calls > self.waits:
            load = scores.detach().sigmoid().sum(0)
            self.shift += 0.3 * torch.sign(load.mean() - load)
        return scores.square().mean()


class FollowsLargest(nn.Module):
    """Replaces a buffer by the largest score, once that exceeds what the buffer falls to."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("largest", torch.tensor(50.0))

    def forward(self, x):
        scores = 3 * torch.tanh(self.layer(x))
        self.largest = torch.maximum(self.largest * 0.8, scores.detach().abs().max())
        return (scores / self.largest).square().mean()


def losses_of(make):
    torch.manual_seed(3)
    model, losses = make().double(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(20):
        loss = model(torch.randn(12, 4, dtype=torch.float64))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("make", [FollowsItsHead, BalancesSigns, partial(BalancesSigns, 5), FollowsLargest])
def test_writes_of_slices_into_buffers_and_weights_give_the_serial_result(compared, make):
    compared(losses_of, make)
