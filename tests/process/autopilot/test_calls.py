"""Calls of modules are split, or stay unsplit with a reason, and give the results of one rank either way."""

import io
import random
import re
import sys
import warnings
from contextlib import nullcontext, redirect_stdout
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import count

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from samestep.autopilot.equivalence.check import AT_ONCE, TRAINS, EquivalenceCheck, Pace
from samestep.autopilot.equivalence.split_comparison import NOT_GATHERED
from samestep.autopilot.equivalence.unsplit_call import SPARSE
from samestep.autopilot.helpers.call_states import CHECKED, CheckTime
from samestep.autopilot.helpers.main_calls import DIFFERS, MainCalls
from samestep.autopilot.script.call_account import FEWER, LONGER_SPLIT
from samestep.autopilot.script.options import Options
from samestep.autopilot.split.short_calls import FIRST, MEASURED, TIMED, ShortCalls
from samestep.autopilot.split.slice_call import WRITES_INPUT


def drawn(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def labels(*shape, classes=4, seed=0):
    return torch.randint(0, classes, shape, generator=torch.Generator().manual_seed(seed))


def weighted(module):
    """Give a module weights of double precision that do not depend on earlier random numbers."""
    for number, parameter in enumerate(module.parameters()):
        parameter.data = drawn(*parameter.shape, seed=number) * 0.3
    return module.double()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.norm, self.two = nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Linear(8, 4)


class Plain(Net):
    def forward(self, x):
        return self.two(torch.relu(self.norm(self.one(x))))


class KeepsBatchNorm(Net):
    """Calls torch's own batch norm, which a notebook may have kept from before its block of workers."""

    normalize = staticmethod(F.batch_norm)

    def forward(self, x):
        norm = self.norm
        statistics = norm.running_mean, norm.running_var
        scores = self.normalize(self.one(x), *statistics, norm.weight, norm.bias, self.training)
        return self.two(torch.relu(scores))


class KeepsCheckpoint(Net):
    """Calls torch's own checkpoint, which a notebook may have kept from before its block of workers."""

    is_reentrant = False

    def __init__(self):
        super().__init__()
        self.drop, self.compute = nn.Dropout(0.2), partial(checkpoint, use_reentrant=self.is_reentrant)

    def forward(self, x):
        return self.two(self.compute(lambda h: self.drop(self.norm(h)).tanh(), self.one(x)))


class KeepsReentrant(KeepsCheckpoint):
    is_reentrant = True


@dataclass
class Output:
    scores: torch.Tensor
    loss: torch.Tensor | None = None


class LossInside(Net):
    def forward(self, x, *, targets=None):
        scores = self.two(torch.relu(self.one(x)))
        loss = None if targets is None else F.cross_entropy(scores, targets, ignore_index=-1)
        return Output(scores, loss)


class TimeFirst(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.out = nn.LSTM(5, 6, num_layers=2), nn.Linear(6, 4)

    def forward(self, x, hidden=None):
        y, hidden = self.rnn(x, hidden)
        return self.out(y).view(-1, 4), hidden


class MeanOfKernels(Net):
    """Has a loss that is 0 for large samples, such as those of a check."""

    def forward(self, x):
        return torch.exp(-self.two(self.one(x)).square().sum(1)).mean()


def of_kernels(model, number):
    return model(drawn(7, 5, seed=number))


def test_a_loss_that_is_constant_for_large_samples_is_split(trained):
    split, unsplit, _ = trained(MeanOfKernels, of_kernels)
    assert (split, unsplit) == (4, 0)


class NormalizedByFunction(Net):
    """Has a batch norm of its own, like those of libraries that add an activation."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("variance", torch.ones(8))

    def forward(self, x):
        h = self.one(x)
        own = F.batch_norm(
            h, self.mean, self.variance, self.norm.weight, training=self.training, momentum=0.2
        )
        return self.two(own + F.batch_norm(h, None, None, training=True))


def of_both_modes(model, number):
    return model.train(number != 3)(drawn(7, 5, seed=number)).square().mean()


def test_a_function_that_normalizes_a_batch_has_the_statistics_of_all_samples(trained):
    split, unsplit, lines = trained(NormalizedByFunction, of_both_modes)
    assert (split, unsplit) == (4, 0), lines


class GivesSparse(Net):
    def forward(self, x):
        return torch.relu(self.two(self.one(x))).to_sparse()


def sum_of_sparse(model, number):
    return torch.sparse.sum(model(drawn(7, 5, seed=number)))


class OfSigns(Net):
    """Has a loss that is 0 for labels other than 1 and -1."""

    def forward(self, x, other, signs):
        return F.cosine_embedding_loss(self.one(x), self.one(other), signs, margin=0.1)


def of_signs(model, number):
    signs = labels(7, classes=2, seed=number) * 2.0 - 1 if number else torch.ones(7)
    return model(drawn(7, 5, seed=number), drawn(7, 5, seed=number + 9), signs.double())


def test_a_loss_of_labels_that_are_compared_is_split(trained):
    split, unsplit, _ = trained(OfSigns, of_signs)
    assert (split, unsplit) == (4, 0)


class PullsTogether(Net):
    """Compares the samples that are labelled 1 with each other."""

    def forward(self, x, signs):
        scores, is_labelled = self.two(self.one(x)), signs == 1
        distances = (scores[:, None] - scores[None]).square().sum(-1)
        return (distances * is_labelled[:, None] * is_labelled[None]).sum() / 100, scores


def pulled(model, number, others=(-1.0,) * 8):
    labels = [1.0, *([1.0] * 8 if number else others)]
    loss, scores = model(drawn(9, 5, seed=number), torch.tensor(labels).double())
    return loss + scores.mean()


@pytest.mark.parametrize("others", [(-1.0,) * 8, (0.0, 2.0) * 4], ids=["two", "three"])
def test_labels_of_few_values_show_that_samples_are_compared(trained, others):
    split, unsplit, _ = trained(PullsTogether, partial(pulled, others=others))
    assert (split, unsplit) == (0, 4)


class LeavesPenalty(Plain):
    def forward(self, x):
        scores = super().forward(x)
        self.penalty = scores.square().mean()
        self.kept = [scores.detach(), x.sum(0)]
        return scores


class KeepsState(Net):
    """Starts from the state of its last call."""

    state = None

    def forward(self, x):
        before = 0.0 if self.state is None else self.state.detach()
        self.state = torch.tanh(self.one(x) + before)
        return self.two(self.state)


class StartsToCompare(nn.Linear):
    """Makes an attribute in its first call; the later ones compare their samples."""

    def __init__(self):
        super().__init__(5, 4)

    def forward(self, x):
        scores = super().forward(x)
        if "has_started" in vars(self):
            return scores / scores.norm()
        self.has_started = True
        return scores


def test_a_call_is_checked_again_if_the_first_one_makes_an_attribute(trained):
    split, unsplit, _ = trained(StartsToCompare, plain)
    assert (split, unsplit) == (1, 3)


class CachesByVersion(Plain):
    """Computes something of its weights again after they were written to, as of an average in evaluation."""

    version = None

    def forward(self, x):
        if self.training:
            return super().forward(x)
        if self.version != self.two.weight._version:
            self.version, self.scale = self.two.weight._version, self.two.weight.detach().norm()
        return super().forward(x) / self.scale


def evaluated_thrice(model, number):
    with torch.no_grad():
        model.eval()
        found = sum(model(drawn(7, 5, seed=number + 9 * call)).sum() for call in range(3))
        model.train()
    return plain(model, number) + found.detach()


def test_a_value_that_is_cached_by_the_version_of_a_weight_is_that_of_one_worker(trained):
    split, unsplit, _ = trained(CachesByVersion, evaluated_thrice)
    assert (split, unsplit) == (0, 16)


class KeepsOfLongTexts(Net):
    """Keeps a mean of its samples, if these are long."""

    kept = None

    def forward(self, x):
        scores = self.two(torch.relu(self.one(x))).mean(1)
        if x.size(1) > 6:
            self.kept = scores.detach().mean(0)
        return scores


class ListsOfLongTexts(KeepsOfLongTexts):
    """Adds that mean to those of earlier calls."""

    def __init__(self):
        super().__init__()
        self.kept = []

    def forward(self, x):
        scores = self.two(torch.relu(self.one(x))).mean(1)
        if x.size(1) > 6:
            self.kept.append(scores.detach().mean(0))
        return scores


def of_a_longer_text(model, number):
    scores = model(drawn(8, 3 + number, 5, seed=number))
    kept = model.kept if isinstance(model.kept, list) else [model.kept]
    penalty = sum(mean.square().sum() for mean in kept if mean is not None)
    return F.cross_entropy(scores, labels(8, seed=number)) + penalty


@pytest.mark.parametrize("make", [KeepsOfLongTexts, ListsOfLongTexts])
def test_a_call_that_keeps_tensors_as_no_checked_one_has_the_result_of_one_worker(trained, make):
    """The fifth size of a call is not checked. An undone call left its tensors in a list."""
    work = partial(train, number_of_steps=9)
    split, unsplit, _ = trained(make, of_a_longer_text, work=work)
    assert (split, unsplit) == (8, 1)


class MixesSeldom(Net):
    """Mixes samples in one of some twenty calls."""

    def forward(self, x):
        if random.random() < 0.05:
            x = 0.6 * x + 0.4 * x.flip(0)
        return self.two(torch.relu(self.one(x)))


class MixesSeldomByTensor(Net):
    def forward(self, x):
        if torch.rand(()) < 0.05:
            x = x[torch.randperm(len(x))]
        return self.two(torch.relu(self.one(x)))


def train_seeded(make, steps):
    random.seed(2)
    torch.manual_seed(2)
    return train(make, steps, number_of_steps=40)


@pytest.mark.parametrize("make", [MixesSeldom, MixesSeldomByTensor])
def test_a_random_branch_that_no_check_has_taken_has_the_result_of_one_worker(trained, make):
    split, unsplit, _ = trained(make, plain, work=train_seeded)
    assert min(split, unsplit) > 0


class CentresLate(Net):
    """Compares samples in the last calls, by a number that no constant of its code is."""

    def forward(self, x, step, total):
        scores = self.two(torch.relu(self.one(x)))
        return scores - scores.mean(0) if step > 0.7 * total else scores


class CentresLateLikeItsWeights(Net):
    """Computes the same of its weights in each call."""

    def forward(self, x, step, total):
        scores = nn.functional.linear(x, self.one.weight - self.one.weight.mean(0))
        scores = self.two(torch.relu(scores))
        return scores - scores.mean(0) if step > 0.55 * total else scores


class CentresLittleByLittle(Net):
    def forward(self, x, weights):
        scores = self.two(torch.relu(self.one(x)))
        return weights[0] * scores - weights[1] * scores.mean(0)


def of_step(model, number):
    return F.cross_entropy(model(drawn(7, 5, seed=number), number, 20), labels(7, seed=number))


def weighted_by_step(model, number):
    weights = torch.tensor([1.0, max(0, number - 2)], dtype=torch.float64)
    return F.cross_entropy(model(drawn(7, 5, seed=number), weights), labels(7, seed=number))


@pytest.mark.parametrize(
    ("make", "steps", "some_are_split"),
    [
        (CentresLate, of_step, True),
        (CentresLateLikeItsWeights, of_step, True),
        (CentresLittleByLittle, weighted_by_step, False),
    ],
)
def test_samples_that_are_compared_in_late_steps_are_those_of_the_batch(trained, make, steps, some_are_split):
    split, unsplit, _ = trained(make, steps, work=partial(train, number_of_steps=20))
    assert unsplit > 0
    assert (split > 0) is some_are_split


class AveragesLate(Net):
    """Keeps an average of its samples in the last calls, in a buffer so large that helpers see its memory."""

    def __init__(self):
        super().__init__()
        self.register_buffer("average", torch.zeros(4096, 4, dtype=torch.float64))

    def forward(self, x, step, total):
        scores = self.two(torch.relu(self.one(x)))
        if step > 0.55 * total:
            self.average.mul_(0.9).add_(scores.detach().mean(0))
        return scores + self.average[0]


def test_a_shared_buffer_is_as_before_a_call_that_was_split_in_vain(trained):
    split, unsplit, _ = trained(AveragesLate, of_step, work=partial(train, number_of_steps=20))
    assert min(split, unsplit) > 0


class CountsInNewGlobal(Plain):
    """Makes a global and an attribute of its class in its first call, and counts in both."""

    def forward(self, x):
        global calls_so_far
        calls_so_far = globals().get("calls_so_far", 0) + 1
        type(self).calls = getattr(type(self), "calls", 0) + 1
        return super().forward(x) * (calls_so_far + type(self).calls)


def train_from_no_count(make, steps):
    globals().pop("calls_so_far", None)
    if hasattr(make, "calls"):
        del make.calls
    return train(make, steps)


def test_a_global_and_a_class_attribute_that_a_check_makes_are_removed(trained):
    trained(CountsInNewGlobal, plain, work=train_from_no_count)


@lru_cache
def basis(width):
    return torch.rand(width, dtype=torch.float64)


class ProjectsAtRandom(Plain):
    """Draws a basis for each width at its first use."""

    width = 3

    def forward(self, x):
        return super().forward(x) * basis(self.width).mean()


def train_with_basis(make, steps):
    basis.cache_clear()
    torch.manual_seed(0)
    return train(make, steps, number_of_steps=6)


def of_some_width(model, number):
    model.width = (3, 4, 3, 5, 4, 3)[number]
    return plain(model, number)


def test_cached_random_numbers_are_those_of_one_worker(trained):
    split, unsplit, _ = trained(ProjectsAtRandom, of_some_width, work=train_with_basis)
    assert (split, unsplit) == (6, 0)


def doubled(x):
    return x * 2


class MarksFunction(Plain):
    """Sets an attribute of a function in its first call, in which it does something else."""

    def forward(self, x):
        scores = super().forward(x)
        if getattr(doubled, "is_marked", False):
            return scores
        doubled.is_marked = True
        return doubled(scores)


def train_by_function(make, steps):
    vars(doubled).clear()
    return train(make, steps)


def test_an_attribute_that_a_check_sets_of_a_function_is_restored(trained):
    trained(MarksFunction, plain, work=train_by_function)


class ComparesWithLast(Net):
    """Compares samples with all those of its last call, which it keeps; before the first call with zeros."""

    def __init__(self):
        super().__init__()
        self.last = torch.zeros(7, 8, dtype=torch.float64)

    def forward(self, x):
        h = torch.tanh(self.one(x))
        found = self.two(h + self.last.mean(0))
        self.last = h.detach()
        return found


class ComparesWithLastIfAny(Net):
    """Keeps nothing before its first call."""

    def __init__(self):
        super().__init__()
        self.last = None

    def forward(self, x):
        h = torch.tanh(self.one(x))
        found = self.two(h if self.last is None else h + self.last.mean(0))
        self.last = h.detach()
        return found


@pytest.mark.parametrize("make", [ComparesWithLast, ComparesWithLastIfAny])
def test_a_state_is_not_split_if_its_rows_are_compared(trained, make):
    split, unsplit, _ = trained(make, plain)
    assert (split, unsplit) == (1, 3)


class AddsLastIfAny(Net):
    """Goes on from the hidden state of its last call; the first call has none, and branches."""

    def __init__(self):
        super().__init__()
        self.last = None

    def forward(self, x):
        h = torch.tanh(self.one(x))
        self.last = h.detach() if self.last is None else torch.lerp(h, self.last, 0.5).detach()
        return self.two(h + self.last)


class AddsLast(AddsLastIfAny):
    """Has a hidden state of as many samples before its first call."""

    def __init__(self):
        super().__init__()
        self.last = torch.ones(7, 8, dtype=torch.float64)


@pytest.mark.parametrize("make", [AddsLast, AddsLastIfAny])
def test_a_check_gives_slices_of_the_state_that_earlier_calls_have_left(trained, make):
    """Catches a check that gives all rows to each slice, which then raises: calls stayed unsplit."""
    split, unsplit, _ = trained(make, plain)
    assert (split, unsplit) == (4, 0)


class KeepsLastInTraining(Net):
    """Keeps a tensor with a graph in training, and None in evaluation."""

    last = None

    def forward(self, x):
        h = torch.tanh(self.one(x))
        self.last = h if self.training else None
        return self.two(h)


def with_evaluation(model, number):
    """Return a loss that is larger by 1 if an evaluation after the call leaves a tensor."""
    loss = plain(model.train(), number) + model.last.square().mean()
    model.eval()(drawn(6, 5))
    return loss if model.last is None else loss + 1


def test_an_attribute_that_a_call_resets_stays_reset(trained):
    """Catches a split call that puts the tensor of an earlier call back."""
    split, unsplit, _ = trained(KeepsLastInTraining, with_evaluation)
    assert (split, unsplit) == (8, 0)


class DropsWeights(nn.Module):
    """Assigns a weight of a recurrent layer in each call, as AWD-LSTM does; a parameter in evaluation."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(5, 4)
        raw = self.rnn.weight_hh_l0
        del self.rnn.weight_hh_l0
        self.raw = nn.Parameter(raw.data)

    def forward(self, x):
        self.rnn.weight_hh_l0 = F.dropout(self.raw, 0.5, self.training)
        return self.rnn(x)[0]


def over_time_then_evaluated(model, number):
    torch.manual_seed(number)
    if number == 3:
        model.eval()
    return model(drawn(3, 6, 5, seed=number)).square().mean()


def test_recurrent_layers_with_dropped_weights_are_split(trained):
    """Catches the layer's own list of its weights being taken for state of samples."""
    split, unsplit, _ = trained(DropsWeights, over_time_then_evaluated)
    assert (split, unsplit) == (4, 0)


class FillsMasked(Net):
    """Keeps -inf in a weight without gradients, and in a row for each sample, as pointer networks do."""

    def __init__(self):
        super().__init__()
        self.least = nn.Parameter(torch.zeros(1), requires_grad=False)

    def forward(self, x):
        self.fill = self.least.repeat(len(x), 4)
        masked = torch.cat([x[:, :1] > 0, x[:, 1:4] > 9], dim=1)
        return F.softmax(torch.where(masked, self.fill, self.two(self.one(x))), dim=1)


def with_least(model, number):
    model.least.data.fill_(-torch.inf)
    return plain(model, number)


def test_calls_with_constants_of_minus_infinity_are_split(trained):
    """Catches noise of an infinite weight, which was NaN, and constants that count as failed outputs."""
    split, unsplit, _ = trained(FillsMasked, with_least)
    assert (split, unsplit) == (4, 0)


class Padded(nn.Module):
    """Averages over all places, those of padding included."""

    def __init__(self, reads):
        super().__init__()
        self.embed, self.reads = nn.Embedding(9, 8), reads
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1)

    def forward(self, tokens):
        padding = tokens == 0
        scale = 2.0 if self.reads and padding.any() else 1.0
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The PyTorch API of nested tensors")
            return self.encoder(self.embed(tokens), src_key_padding_mask=padding).mean(1) * scale


def evaluated_with_padding(reads):
    torch.manual_seed(3)
    model, found = Padded(reads).double().eval(), []
    with torch.no_grad():
        for first, last in ((0, 0), (0, 0), (1, 0), (0, 1), (1, 1)):
            tokens = torch.randint(1, 9, (8, 6))
            tokens[::3, 4:] = 0
            tokens[1, 2] = 0 if first else 1
            tokens[6, 2] = 0 if last else 1
            found.append(model(tokens).square().sum().item())
    return found


@pytest.mark.parametrize("reads", [False, True])
def test_padding_is_dropped_from_slices_as_from_the_whole_batch(compared, reads):
    """Catches slices that are aligned in a batch that is not, and other numbers of watched layers."""
    split, unsplit, lines = compared(evaluated_with_padding, reads)
    assert (split, unsplit) == (5, 0), lines


class Faint(Padded):
    """Compares samples, and begins with an encoder that has no effect, for which a check could split time."""

    def forward(self, tokens):
        h = self.embed(tokens)
        h = h + 0.0 * self.encoder.layers[0](h, src_key_padding_mask=tokens == 0)
        return h - h.mean(0)


def evaluated_with_padding_only():
    torch.manual_seed(3)
    model = Faint(reads=False).double().eval()
    tokens = torch.ones(8, 6, dtype=torch.long)
    tokens[::2, 3:] = 0
    with torch.no_grad():
        return [model(tokens).square().sum().item() for _ in range(3)]


def test_slices_of_padding_only_are_compared_as_calls_of_the_run_compute_them(compared):
    """Torch's fast layers return NaN for them, and those that are watched do not."""
    compared(evaluated_with_padding_only)


def compiled_as_one_graph():
    torch.manual_seed(3)
    torch.compiler.reset()
    layers = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Linear(8, 4)).double()
    model, results = torch.compile(layers, backend="eager", fullgraph=True), []
    for number in range(6):
        layers.train(number < 4)
        loss = model(torch.randn(7, 5).double()).square().sum()
        if layers.training:
            loss.backward()
        results.append(loss.item())
    return results


def test_a_model_with_batch_norm_is_compiled_as_one_graph(compared):
    """A graph that a split call breaks, as ranks communicate in it, is no error of the script."""
    split, _, lines = compared(compiled_as_one_graph)
    assert split == 2, lines  # those in evaluation
    assert any("Unsupported" in line for line in lines), lines  # the code in place of torch's is traced


def scripted():
    torch.manual_seed(3)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        norm = torch.jit.script(nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8)).double())
        encoder = torch.jit.script(nn.TransformerEncoder(layer, 1).double())
    padding = torch.arange(6) > 3 + torch.arange(7)[:, None] % 3
    return [
        encoder(norm(torch.randn(42, 5).double()).view(7, 6, 8), src_key_padding_mask=padding).std().item()
        for _ in range(3)
    ]


def test_models_are_compiled_by_torchscript_as_without_samestep(compared):
    """TorchScript compiles the functions that a model calls, also those that are replaced by Python code."""
    split, _, lines = compared(scripted)
    assert not split, lines


def evaluated_after_compiled_dropout():
    """Return results of training and evaluation, and how often compiled code ran in the last evaluation."""
    torch.manual_seed(3)
    runs = []

    def backend(graph, _):
        def run(*inputs):
            runs.append(1)
            return graph(*inputs)

        return run

    torch.compiler.reset()
    layers = nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.2), nn.Linear(8, 4)).double()
    model, found = torch.compile(layers, backend=backend), []
    for number in range(6):
        layers.train(number < 3)
        runs.clear()
        with torch.set_grad_enabled(number < 3):
            found.append(model(torch.randn(7, 5).double()).square().sum().item())
    return [*found, len(runs)]


def test_code_with_dropout_runs_compiled_in_evaluation(compared):
    """Catches compiled code that a split call runs while draws are watched: torch never compiles it then."""
    split, unsplit, lines = compared(evaluated_after_compiled_dropout)
    assert (split, unsplit) == (6, 0), lines


def compiled_with_its_loss():
    torch.manual_seed(3)
    torch.compiler.reset()
    net = LossWithScores().double()
    model, losses = torch.compile(net, backend="aot_eager"), []
    for number in range(3):
        loss = model(drawn(7, 5, seed=number), labels(7, seed=number))[1]
        loss.backward()
        losses.append(loss.item())
    return [*losses, net.one.weight.grad.sum().item()]


class LossWithScores(Net):
    def forward(self, x, y):
        scores = self.two(torch.relu(self.one(x)))
        return scores, F.cross_entropy(scores, y)


def test_a_compiled_model_with_its_loss_is_split(compared):
    """A compiled graph does not show the weight of a loss: its operations are watched instead."""
    split, unsplit, lines = compared(compiled_with_its_loss)
    assert (split, unsplit) == (3, 0), lines


class ComparesSamples(Plain):
    def forward(self, x):
        y = super().forward(x)
        return y @ y.T


class FixedSize(Plain):
    def forward(self, x):
        return super().forward(x.view(7, 5))


class WritesInput(Plain):
    def forward(self, x):
        return super().forward(x.mul_(2))


class LoopsByValue(Net):
    """Normalizes as often as its samples require."""

    def forward(self, x):
        h, halted = self.one(x), torch.zeros(len(x), dtype=torch.float64)
        while (halted < 1).any():
            halted = halted + 0.2 + torch.sigmoid(h.detach().sum(1))
            h = torch.tanh(self.norm(h))
        return self.two(h)


class HidesBehindZeros(Net):
    """Compares samples; its last weights begin as zeros, so that the first outputs do not show it."""

    def forward(self, x):
        h = self.one(x)
        return self.two(torch.relu((h - h.mean(0)) / (h.std(0) + 1e-5)))


class SwitchesLater(Net):
    """Compares samples from its second epoch on."""

    epoch = 0

    def forward(self, x):
        h = torch.relu(self.one(x))
        return self.two(h - h.mean(0) if self.epoch > 0 else h)


class SwitchedByArgument(Net):
    def forward(self, x, centred):
        h = torch.relu(self.one(x))
        return self.two(h - h.mean(0) if centred else h)


class GivesAccuracy(Net):
    def forward(self, x, y):
        scores = self.two(torch.relu(self.one(x)))
        return F.cross_entropy(scores, y), (scores.argmax(1) == y + 9).double().mean().item()


class Decays(Plain):
    """Keeps a tensor as an attribute, with a new value after each call; it has no gradient."""

    def __init__(self):
        super().__init__()
        self.shift = torch.ones((), dtype=torch.float64)

    def forward(self, x):
        self.shift = 0.9 * self.shift
        return super().forward(x) + self.shift * self.one(x).mean(1, keepdim=True)


class WritesTable(Net):
    """Adds to a row of its table in place; its inputs are positions."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(7, 5)

    def forward(self, x):
        self.table.weight.data[0] += 0.125
        return self.two(torch.relu(self.one(self.table(x))))


class LimitsTable(WritesTable):
    """Limits the norm of the rows of its table, which the first steps do not exceed."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(7, 5, max_norm=10.0)

    def forward(self, x):
        return self.two(torch.relu(self.one(self.table(x))))


class CountsSamples(Net):
    def __init__(self):
        super().__init__()
        self.seen = 0

    def forward(self, x):
        self.seen += len(x)
        return self.two(torch.relu(self.one(x))) / self.seen


class KeepsLosses(Net):
    def __init__(self):
        super().__init__()
        self.losses = []

    def forward(self, x):
        scores = self.two(torch.relu(self.one(x)))
        self.losses.append(scores.mean().item())
        return scores * (1 + self.losses[-1])


class ClipsWithin(Net):
    def forward(self, x):
        h = torch.relu(self.one(x))
        if h.requires_grad:
            h.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
        return self.two(h)


class CountsCalls(Net):
    def __init__(self):
        super().__init__()
        self.calls, self.tau = 0, 1.0

    def forward(self, x):
        self.calls += 1
        self.tau *= 0.99
        return self.two(torch.relu(self.one(x))) / self.tau


def train(make, steps, number_of_steps=4):
    """Train by plain PyTorch; return the loss of each step, the final weights and the buffers."""
    model = weighted(make())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    found = []
    for number in range(number_of_steps):
        optimizer.zero_grad()
        loss = steps(model, number)
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found, [one.tolist() for one in (*model.parameters(), *model.buffers())]


def plain(model, number):
    return F.cross_entropy(model(drawn(7, 5, seed=number)), labels(7, seed=number))


def of_positions(model, number):
    return F.cross_entropy(model(labels(8, classes=7, seed=number)), labels(8, seed=number + 1))


def loss_inside(model, number):
    targets = labels(8, seed=number)
    targets[: 3 + number] = -1  # most of them in the first slices
    return model(drawn(8, 5, seed=number), targets=targets).loss


def time_first(model, number):
    x, targets = drawn(3, 7, 5, seed=number), labels(3, 7, seed=number)
    first, hidden = model(x)
    second, _ = model(x, hidden)
    return F.cross_entropy(first, targets.view(-1)) + F.cross_entropy(second, targets.view(-1))


def seeded(model, number):
    torch.manual_seed(number)
    return plain(model, number)


def with_penalty(model, number):
    return plain(model, number) + model.penalty + model.kept[0].std() + model.kept[1].sum()


def with_noise_on_inputs(model, number):
    return with_noise_by_kept_function(model, number, torch.autograd.grad)


def with_noise_by_kept_function(model, number, grad=torch.autograd.grad):
    """Differentiate by a function that a notebook may have imported before its block of workers."""
    x = drawn(7, 5, seed=number).requires_grad_()
    scores = model(x)
    (slope,) = grad(scores.logsumexp(1).sum(), x, create_graph=True)
    return F.cross_entropy(scores, labels(7, seed=number)) + slope.square().sum()


def mean_of_outputs(model, number):
    return model(drawn(7, 5, seed=number)).mean()


def detached(model, number):
    """Return a loss whose backward has no effect: the model has trained itself."""
    return model(drawn(7, 5, seed=number)).sum() + 0 * model.two.bias.sum()


def by_epoch(model, number):
    model.epoch = number // 2
    return plain(model, number)


def by_argument(model, number):
    return F.cross_entropy(model(drawn(7, 5, seed=number), number > 1), labels(7, seed=number))


def accuracy(model, number):
    loss, right = model(drawn(8, 5, seed=number), labels(8, seed=number))
    return loss * (1 + right)


class Adapts(Net):
    """Trains its norm with each batch that it is called with, as test-time adaptation does."""

    def __init__(self):
        super().__init__()
        self.optimizer = torch.optim.Adam(self.norm.parameters(), lr=0.1)

    def forward(self, x):
        scores = self.two(torch.relu(self.norm(self.one(x))))
        (own,) = torch.autograd.grad(scores.logsumexp(1).sum(), self.norm.weight, retain_graph=True)
        self.norm.weight.grad = own
        self.optimizer.step()
        return scores.detach()


class CallsBackward(Net):
    """Calls backward in forward, and returns a number."""

    def forward(self, x):
        loss = self.two(self.one(x)).logsumexp(1).mean()
        loss.backward()
        return loss.detach()


class Recomputed(torch.autograd.Function):
    """Computes a layer again in its backward, which adds to the gradients of the layer's weights."""

    @staticmethod
    def forward(ctx, x, layer):
        ctx.x, ctx.layer = x.detach(), layer
        return layer(x)

    @staticmethod
    def backward(ctx, gradient):
        x = ctx.x.requires_grad_()
        with torch.enable_grad():
            torch.autograd.backward(ctx.layer(x), gradient)
        return x.grad, None


class Recomputes(Net):
    """Has a checkpoint of its own, as reversible layers have."""

    def forward(self, x):
        return Recomputed.apply(self.one(x), self.two)


class SeesModes(Net):
    """Computes something else where its operations are watched, as torch's transformers do."""

    def forward(self, x):
        h = self.two(torch.relu(self.one(x)))
        return h if torch.overrides._get_current_function_mode_stack() else h - h.mean(0)


class ReadsText(nn.Module):
    """Reads sequences of different lengths, with dropout of their rows in all places."""

    def __init__(self):
        super().__init__()
        self.rnn, self.out = nn.GRU(5, 6, num_layers=3, dropout=0.4, bidirectional=True), nn.Linear(12, 4)

    def forward(self, x, lengths):
        packed = pack_padded_sequence(x, lengths, enforce_sorted=False)
        packed = packed._replace(data=F.dropout(packed.data, 0.3))
        states, last = self.rnn(packed)
        padded, _ = pad_packed_sequence(states._replace(data=F.dropout(states.data, 0.3)))
        return self.out(padded.mean(0) + F.dropout(torch.cat([last[-2], last[-1]], 1), 0.2))


def texts(model, number):
    lengths = 1 + labels(9, classes=6, seed=number)
    torch.manual_seed(number)
    return F.cross_entropy(model(drawn(6, 9, 5, seed=number), lengths), labels(9, seed=number))


class ReadsTwoTexts(nn.Module):
    """Drops rows of the first of two packed sequences; both may have equally many rows in one slice."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(5, 4)

    def forward(self, x, lengths, other_lengths):
        one, two = (
            pack_padded_sequence(self.out(x), of, enforce_sorted=False) for of in (lengths, other_lengths)
        )
        both = [pad_packed_sequence(each._replace(data=F.dropout(each.data, 0.5)))[0] for each in (one, two)]
        return both[0].sum(0) + 2 * both[1].sum(0)


def two_texts(model, number):
    lengths = torch.tensor([5, 2, 3, 1])
    other_lengths = torch.tensor([[1, 4, 2, 2], [2, 5, 1, 3]][number // 2])  # equally many in the last slice
    torch.manual_seed(number)
    found = model(drawn(5, 4, 5, seed=number), lengths, other_lengths)
    return F.cross_entropy(found, labels(4, seed=number))


SPLIT = [
    (Decays, plain),
    (ReadsText, texts),
    (Plain, plain),
    (KeepsBatchNorm, plain),
    (KeepsCheckpoint, seeded),
    (KeepsReentrant, seeded),
    (LossInside, loss_inside),
    (TimeFirst, time_first),
    (LeavesPenalty, with_penalty),
    (KeepsState, plain),
    (CountsCalls, plain),
]
UNSPLIT = [
    (ComparesSamples, mean_of_outputs, NOT_GATHERED),
    (FixedSize, plain, "shape '\\[7, 5\\]' is invalid"),
    (WritesInput, plain, WRITES_INPUT),
    (GivesSparse, sum_of_sparse, SPARSE),
    (GivesAccuracy, accuracy, r"output\[1\]"),
    (CountsSamples, plain, "seen"),
    (WritesTable, of_positions, "writes into its parameters"),
    (LimitsTable, of_positions, "writes into its parameters"),
    (KeepsLosses, plain, "losses"),
    (ClipsWithin, plain, "hook"),
    (LoopsByValue, plain, "different numbers of times|slice"),
    (Adapts, detached, TRAINS),
    (CallsBackward, detached, TRAINS),
    (Recomputes, plain, TRAINS),
    (SeesModes, plain, DIFFERS),
]


class Hooked(Plain):
    """Has a hook on the call of a layer."""

    def __init__(self):
        super().__init__()
        self.one.register_forward_hook(print_nothing)


def print_nothing(*_):
    """Do nothing, as a hook that cannot be sent to a helper."""


class Elements(TorchDispatchMode):
    """Counts the elements that operations return."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        self.count += result.numel() if isinstance(result, Tensor) else 0
        return result


def counting(counted, model, number):
    """Count the elements of one call within a dispatch mode."""
    with Elements() if number == counted else nullcontext() as elements:
        loss = plain(model, number)
    return loss if elements is None else loss + elements.count


def two_calls_for_one_backward(model, number):
    """Return the loss of two calls, of which the first is unsplit once."""
    if number == 0:
        return plain(model, number)
    with Elements() if number == 2 else nullcontext():
        first = plain(model, number)
    return first + plain(model, number + 10)


def descend(parameter):
    parameter.data.sub_(parameter.grad)
    parameter.grad = None


def with_optimizer_in_backward(model, number):
    if number == 0:
        for one in model.parameters():
            one.register_post_accumulate_grad_hook(descend)
    return plain(model, number)


def of_two_samples(model, number):
    return F.mse_loss(model(drawn(2, 5, seed=number)), drawn(2, 4, seed=number))


def of_one_sample_first(model, number):
    return model(drawn(1 if number == 0 else 6, 5, seed=number)).scores.square().mean()


def of_nine_and_eight(model, number):
    return model(drawn((9, 8, 9, 8)[number % 4], 5, seed=number)).square().mean()


class StartsWithFirstBatch(Plain):
    """Sets a flag in its first call, in which it does something else."""

    has_started = False

    def forward(self, x):
        scores = super().forward(x)
        if not self.has_started:
            self.has_started = True
            return scores * 2
        return scores


class ComparesNine(Net):
    """Compares the samples in batches of nine."""

    def forward(self, x):
        h = self.two(torch.relu(self.one(x)))
        return h - h.mean(0) if len(x) == 9 else h


def with_penalty_on_slopes(model, number):
    """Return a loss with a penalty on the gradients of the weights."""
    loss = plain(model, number)
    slopes = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
    return loss + sum(one.square().sum() for one in slopes)


def with_penalty_of_functional_call(model, number):
    """Return a penalty on the gradients of weights that a functional call gets."""
    weights = dict(model.named_parameters())
    scores = torch.func.functional_call(model, weights, (drawn(7, 5, seed=number),))
    loss = F.cross_entropy(scores, labels(7, seed=number))
    slopes = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
    return plain(model, number) + sum(one.square().sum() for one in slopes)


class Grows(Plain):
    """Computes with a tensor that is no parameter of it, and with one that it gets after its first call."""

    def __init__(self):
        super().__init__()
        self.shift = [drawn(4).requires_grad_()]

    def forward(self, x):
        return super().forward(x) * getattr(self.two, "scale", 1.0) + self.shift[0]


@pytest.fixture
def trained(run):
    """Trains with helpers, and shows that the result is that of one worker; returns counts and the report."""

    def trained(make, steps, size=2, *, work=train, **how):
        (losses, state), *report = run(size, work, make, steps, **how)
        serial, serial_state = work(make, steps)
        assert losses == pytest.approx(serial, rel=0, abs=1e-12)
        for one, other in zip(state, serial_state, strict=True):
            torch.testing.assert_close(torch.tensor(one), torch.tensor(other), rtol=0, atol=1e-12)
        return report

    return trained


def reasons_of(lines):
    """Return the reasons of unsplit calls."""
    found = (re.search(r" calls? unsplit \((.*)\)$", line) for line in lines)
    return [one[1] for one in found if one]


def test_packed_sequences_of_equal_sizes_are_not_confused(trained):
    split, unsplit, _ = trained(ReadsTwoTexts, two_texts)
    assert split + unsplit == 4


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(("make", "steps"), SPLIT, ids=lambda one: one.__name__)
def test_split_calls_train_as_on_one_worker(trained, size, make, steps):
    split, unsplit, _ = trained(make, steps, size)
    assert split >= 4
    assert not unsplit


@pytest.mark.parametrize(("make", "steps", "why"), UNSPLIT, ids=lambda one: getattr(one, "__name__", ""))
def test_unsplit_calls_train_as_on_one_worker_and_have_a_reason(trained, make, steps, why):
    split, _, lines = trained(make, steps)
    assert not split
    (reason,) = reasons_of(lines)
    assert re.search(why, reason)


@pytest.mark.parametrize(
    ("make", "steps", "counts"),
    [
        (Plain, with_optimizer_in_backward, (4, 0)),
        (Plain, two_calls_for_one_backward, (6, 1)),
        (Plain, partial(counting, 0), (3, 1)),
        (Plain, partial(counting, 2), (3, 1)),
        (SwitchesLater, by_epoch, (2, 2)),
        (SwitchedByArgument, by_argument, (2, 2)),
        (ComparesNine, of_nine_and_eight, (2, 2)),
        (Plain, with_noise_on_inputs, (1, 3)),
        (Plain, with_noise_by_kept_function, (1, 3)),
        (Plain, with_penalty_on_slopes, (1, 3)),
        (Plain, with_penalty_of_functional_call, (4, 4)),
        (Grows, plain, (4, 0)),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_calls_of_which_some_are_split_train_as_on_one_worker(trained, make, steps, counts):
    split, unsplit, lines = trained(make, steps)
    assert (split, unsplit) == counts, lines


class EndsIfDisturbed(Plain):
    """Ends the script if it does not compute with weights like those of the training."""

    def forward(self, x):
        if (self.one.weight - drawn(8, 5) * 0.3).abs().max() > 0.3:
            sys.exit("diverged")
        return super().forward(x)


def test_a_check_does_not_end_the_script(trained):
    """Only this finds a training that ends early, as its model ends it for the values of a check."""
    split, unsplit, _ = trained(EndsIfDisturbed, plain)
    assert split + unsplit == 4


class EndsAtItsThirdCall(Plain):
    """Prints a last line and ends the script at its third call, which is one that is compared."""

    calls = 0

    def forward(self, x):
        self.calls += 1
        if self.calls == 3:
            print("the budget is spent")
            sys.exit(3)
        return super().forward(x)


def ended_by_its_model():
    model, values, printed = EndsAtItsThirdCall().double(), [], io.StringIO()
    with redirect_stdout(printed):
        try:
            values += [model(drawn(8, 5, seed=step)).sum().item() for step in range(5)]
        except SystemExit as end:
            values.append(float(end.code))
    return [*values, float(len(printed.getvalue()))]


def test_a_comparison_does_not_end_the_script(compared):
    """Only this finds that what a model prints last is lost."""
    compared(ended_by_its_model)


class Flattened(TimeFirst):
    """Returns rows that vary slower than samples, of which sequences of length 1 have one for each sample."""

    def forward(self, x):
        scores, _ = super().forward(x)
        return F.dropout(scores, 0.3)


def train_flattened(lengths):
    torch.manual_seed(0)

    def steps(model, number):
        rows = lengths[number] * 6
        return (model(drawn(lengths[number], 6, 5, seed=number)) * drawn(rows, 4, seed=number + 50)).mean()

    return train(Flattened, steps, len(lengths))


@pytest.mark.parametrize("lengths", [[3, 1, 3], [9, 7, 5, 1, 8, 6]])
def test_a_size_is_not_split_in_the_way_that_only_another_size_allows(run, lengths):
    (losses, _), *_ = run(2, train_flattened, lengths)
    serial, _ = train_flattened(lengths)
    assert losses == pytest.approx(serial, rel=0, abs=1e-12)


class MaskedByLabel(Net):
    """Leaves out the samples of a label, and divides by at least one."""

    def forward(self, x, y):
        mask = (y != 2).double()
        each = F.cross_entropy(self.two(torch.relu(self.one(x))), y, reduction="none")
        return (each * mask).sum() / mask.sum().clamp(min=1)


def mask_a_slice_at_third(model, number):
    y = labels(7, classes=2, seed=number)
    y[(number != 2) * 2 : 4] = 2
    return model(drawn(7, 5, seed=number), y)


def test_a_slice_of_masked_samples_only_has_no_weight_by_a_clamp(trained):
    split, unsplit, _ = trained(MaskedByLabel, mask_a_slice_at_third)
    assert (split, unsplit) == (2, 2)


def test_fewer_samples_than_workers_are_unsplit(trained):
    *_, lines = trained(Plain, of_two_samples, 3)
    assert reasons_of(lines) == [FEWER]


def test_a_later_call_of_another_size_is_checked_again(trained):
    split, _, lines = trained(LossInside, of_one_sample_first)
    assert split == 3
    assert reasons_of(lines) == [FEWER]


def with_zeros_in_the_last_layer():
    """Return losses of a model that compares samples, which the first outputs do not show."""
    model = weighted(HidesBehindZeros())
    nn.init.zeros_(model.two.weight)
    optimizer, found = torch.optim.SGD(model.parameters(), lr=0.1), []
    for number in range(4):
        optimizer.zero_grad()
        loss = plain(model, number)
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def test_a_comparison_of_samples_is_found_behind_weights_of_zero(run):
    found, split, *_ = run(2, with_zeros_in_the_last_layer)
    assert found == pytest.approx(with_zeros_in_the_last_layer(), rel=0, abs=1e-12)
    assert not split


def checks_in(make):
    """Train, and return the number of checks on this process."""
    checked, check = [], EquivalenceCheck.run
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EquivalenceCheck, "run", lambda one, pace: checked.append(one) or check(one, pace))
        train(make, plain)
    return len(checked)


@pytest.mark.parametrize(("make", "checks"), [(Plain, 1), (StartsWithFirstBatch, 2)])
def test_a_call_is_checked_again_if_the_first_one_changes_more_than_counters_of_batch_norm(run, make, checks):
    found, _, unsplit, _ = run(2, checks_in, make)
    assert found == checks
    assert not unsplit


class DividesByNorm(Plain):
    def forward(self, x):
        scores = super().forward(x)
        return scores / scores.norm()


def test_a_model_with_batch_norm_that_cannot_be_split_is_checked_once(run):
    parts = 3
    found, _, unsplit, _ = run(2, checks_in, DividesByNorm)
    assert found == 1 + parts
    assert unsplit


class CountsTwice(Plain):
    """Counts its calls in an attribute and in a tensor, and raises its scale with the first."""

    def __init__(self):
        super().__init__()
        self.calls = 0
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        self.steps += 1
        return super().forward(x) * (1 + 0.01 * self.calls)


class DropsOut(Plain):
    def forward(self, x):
        return F.dropout(super().forward(x), 0.3)


def of_other_sizes(model, number):
    size = 7 + number % 3
    return F.cross_entropy(model(drawn(size, 5, seed=number)), labels(size, seed=number))


def in_pauses(make, steps):
    """Train for 80 steps with checks of two comparisons at each second call."""
    comparisons = count(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MainCalls, "_pace", lambda *_, begins: Pace(lambda: next(comparisons) % 2 == 0))
        patch.setattr(CheckTime, "is_over", property(lambda _: next(comparisons) % 2 == 0))
        torch.manual_seed(0)
        return train(make, steps, 80)


@pytest.mark.parametrize("steps", [plain, of_other_sizes], ids=lambda one: one.__name__)
@pytest.mark.parametrize("make", [Plain, CountsTwice, DropsOut])
def test_a_check_in_pauses_of_the_training_ends_with_calls_split(trained, make, steps):
    """Only this finds a check that does not survive the changes of a module between two of its calls."""
    split, unsplit, lines = trained(make, steps, work=in_pauses)
    assert split >= 10
    assert unsplit >= 5
    assert reasons_of(lines) == [CHECKED]


class CentresThirteen(Plain):
    """Compares samples in batches of one size, which comes seldom."""

    def forward(self, x):
        found = super().forward(x)
        return found - found.mean(0) if len(x) == 13 else found


def seldom_thirteen(model, number):
    size = 13 if number % 20 == 19 else 8
    return F.cross_entropy(model(drawn(size, 5, seed=number)), labels(size, seed=number))


class LargestOfBatch(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient - 0.001 * gradient.abs().max(0, keepdim=True).values


class WarmsUp(Plain):
    """Compares samples in its backward from the second call on."""

    is_warm = False

    def forward(self, x):
        found = super().forward(x)
        found = LargestOfBatch.apply(found) if self.is_warm else found
        self.is_warm = True
        return found


class MeanOverTime(Net):
    def forward(self, x, mask):
        return (self.two(self.one(x)) * mask[..., None]).mean(1)


def first_as_long_as_wide(model, number):
    length = 8 if number == 0 else 9 + number % 3
    found = model(drawn(8, length, 5, seed=number), torch.ones(8, length, dtype=torch.float64))
    return F.cross_entropy(found, labels(8, seed=number))


@pytest.mark.parametrize(
    ("make", "steps", "has_split"),
    [
        (CentresThirteen, seldom_thirteen, True),
        (WarmsUp, plain, False),
        (MeanOverTime, first_as_long_as_wide, True),
    ],
)
def test_a_check_in_pauses_is_of_what_is_split(trained, make, steps, has_split):
    """Its calls may have other sizes, another state, or other ways to be split than the first one."""
    split, *_ = trained(make, steps, work=in_pauses)
    assert bool(split) == has_split


def compares_samples_in_pauses():
    return in_pauses(HidesBehindZeros, plain)


def test_a_check_in_pauses_finds_a_comparison_of_samples(run):
    _, split, unsplit, lines = run(2, compares_samples_in_pauses)
    assert (split, unsplit) == (0, 80)
    assert any(NOT_GATHERED in one for one in reasons_of(lines))


def evaluated():
    """Return the outputs of calls without gradients."""
    model = weighted(LossInside()).eval()
    with torch.no_grad():
        return [model(drawn(7, 5, seed=number)).scores.tolist() for number in range(3)]


def test_evaluation_is_split_with_the_outputs_of_one_worker(run):
    found, split, *_ = run(2, evaluated)
    torch.testing.assert_close(torch.tensor(found), torch.tensor(evaluated()), rtol=0, atol=1e-6)
    assert split == 3


class ComparesFlipped(Plain):
    def forward(self, x):
        return super().forward(x - x.flip(0))


def called_from_two_lines():
    model = weighted(ComparesFlipped())
    for _ in range(2):
        model(drawn(6, 5))
    model(drawn(6, 5))


def test_calls_of_one_signature_from_several_lines_have_the_same_reason(run):
    """A signature is checked once, and other lines that call it have the reason too."""
    *_, lines = run(2, called_from_two_lines)
    one, other = reasons_of(lines)
    assert one == other


class Raises(nn.Linear):
    def forward(self, x=None):
        if x is None:
            return self.weight.sum()
        if self.training:
            raise ValueError
        return super().forward(x)


def calls_that_raise():
    model = weighted(Raises(5, 4))
    for _ in range(2):
        with pytest.raises(ValueError):  # noqa: PT011 - the script's own
            model(drawn(6, 5))
    model()


def test_calls_after_an_error_and_without_tensors_have_a_reason(run):
    *_, lines = run(2, calls_that_raise)
    assert len(reasons_of(lines)) == 2


class Field(Net):
    def forward(self, y):
        return self.two(torch.tanh(self.norm(self.one(y))))[:, :1].expand_as(y)


def integrated(model, number):
    """Return the loss of an Euler integration with 36 calls."""
    state, loss = drawn(7, 5, seed=number), torch.zeros(())
    for _ in range(36):
        state = state + 0.1 * model(state)
        loss = loss + state.square().mean() / 36
    return loss


def with_slow_splits(make, steps):
    """Train with measured times of 9 ms for each split call, and of 1 ms for each unsplit one."""
    end = ShortCalls.end

    def end_late(calls, kind, module):
        kind.began = -1e-3 if kind.is_unsplit else -9e-3
        end(calls, kind, module)

    with pytest.MonkeyPatch.context() as patch:
        # The object exists already: the work begins when the helpers have started.
        patch.setattr(ShortCalls, "_now", lambda _: 0.0)
        patch.setattr(ShortCalls, "end", end_late)
        patch.setattr(MainCalls, "_pace", lambda *_, begins: AT_ONCE)  # however busy the machine is
        return train(make, steps)


@pytest.mark.parametrize("short_calls", ["auto", "split"])
def test_a_training_with_short_calls_has_the_serial_result(trained, short_calls):
    options = Options(short_calls=short_calls)
    split, unsplit, lines = trained(Field, integrated, work=with_slow_splits, options=options)
    assert unsplit == (0 if short_calls == "split" else 144 - FIRST - 3 * TIMED)
    assert split == 144 - unsplit
    assert {one.split(":")[0] for one in reasons_of(lines)} <= {LONGER_SPLIT, MEASURED}
