"""The noise of a sample depends on the sample, not on its batch, and differs between samples."""

import random

import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, TensorDataset

from samestep.hooks.random_draws import RngState
from samestep.verify.compare import Comparison
from samestep.verify.rank_features import exceptions_of, per_sample_randomness, rank_features_disabled
from samestep.verify.run_record import RunRecord
from samestep.verify.trace import Facts, Trace

X = torch.randn(12, 3, generator=torch.Generator().manual_seed(2))
DRAWS = {
    "randn_like": torch.randn_like,
    "randint": lambda x: torch.randint(1000, (len(x),)),
    "in place": lambda x: torch.empty(2, len(x)).exponential_().T,
    "normal of a size": lambda x: torch.normal(0.0, 1.0, size=(len(x), 2)),
    "normal of means": lambda x: torch.normal(x, x.abs()),
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid()),
    "bernoulli of one probability": lambda x: torch.empty(len(x), 9).bernoulli_(0.5),
    "bernoulli into integers": lambda x: torch.empty_like(x, dtype=torch.int64).bernoulli_(x.sigmoid()),
    "flattened": lambda x: torch.rand(len(x) * 4).reshape(len(x), 4),
    "distribution": lambda x: torch.distributions.Normal(x, 1.0).rsample(),
}


@pytest.fixture(autouse=True)
def _as_before():
    before = RngState.now()
    yield
    before.restore()


class Drawing(nn.Module):
    """A module whose forward calls a function that draws."""

    def __init__(self, draw):
        super().__init__()
        self.weight, self.draw = nn.Parameter(torch.zeros(())), draw

    def forward(self, x):
        return self.draw(x)


def drawn(draw, batches, *, seed, in_call):
    """Return the noise of the samples in these batches."""
    torch.manual_seed(seed)
    model = Drawing(draw)
    with per_sample_randomness():
        if in_call:
            return torch.cat([model(X[batch]) for batch in batches])
        loader = DataLoader(TensorDataset(X), batch_sampler=[batch.tolist() for batch in batches])
        return torch.cat([draw(x) for (x,) in loader])


@pytest.mark.parametrize("in_call", [True, False], ids=["call", "loop"])
@pytest.mark.parametrize("name", DRAWS)
def test_noise_depends_on_the_sample_alone(name, in_call):
    order = torch.arange(12)
    whole = drawn(DRAWS[name], [order], seed=1, in_call=in_call)
    apart = drawn(DRAWS[name], [order[5:], order[:5]], seed=2, in_call=in_call)
    assert torch.equal(apart, torch.cat([whole[5:], whole[:5]]))
    assert len(whole.double().reshape(12, -1).unique(dim=0)) > (8 if name.startswith("rand") else 4)


@pytest.mark.filterwarnings("ignore:.*nested tensors")
def test_a_view_has_the_noise_of_its_values_and_a_nested_tensor_has_no_samples():
    view = torch.complex(X, X + 1).conj()
    with per_sample_randomness():
        noise = [Drawing(lambda x: torch.rand(len(x)))(x) for x in (view, view.resolve_conj())]
        assert Drawing(lambda x: x.size(0))(torch.nested.nested_tensor([X[:2], X[2:]])) == 2
    assert torch.equal(*noise)


def test_draws_for_the_same_samples_differ_from_each_other():
    with per_sample_randomness():
        one, other = Drawing(lambda x: (torch.randn_like(x), torch.randn_like(x)))(X)
    assert not torch.equal(one, other)


def test_noise_of_no_sample_is_equal_on_all_ranks_within_a_call():
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        random.seed(seed)
        model = Drawing(lambda x: (float(torch.rand(())), random.random()))
        with per_sample_randomness():
            found.append([model(X), model(X)])
    assert found[0] == found[1]
    assert found[0][0] != found[0][1]


def test_the_scripts_generators_do_not_advance():
    before = RngState.now()
    with per_sample_randomness():
        model = Drawing(lambda x: torch.randn_like(x) + torch.rand(()))
        for (x,) in DataLoader(TensorDataset(X), batch_size=4, generator=torch.Generator()):
            model(x)
            torch.randn_like(x)
    assert before.same(RngState.now())


def test_orders_of_samples_and_user_defined_generators_are_unchanged():
    with per_sample_randomness():
        orders = []
        for _ in range(2):
            next(iter(DataLoader(TensorDataset(X), batch_size=12)))
            torch.manual_seed(5)
            own = torch.Generator().manual_seed(5)
            orders.append((torch.randperm(12), torch.randint(50, (12,), generator=own)))
            expected = torch.randint(50, (12,), generator=torch.Generator().manual_seed(5))
    assert torch.equal(orders[0][0], orders[1][0])
    assert torch.equal(orders[1][1], expected)


class Noisy(Dataset):
    """Draws noise for each sample, or for the samples of a batch that it gets at once."""

    def __len__(self):
        return 12

    def __getitem__(self, index):
        return torch.rand(len(index) if isinstance(index, list) else ())


@pytest.mark.parametrize(
    "how",
    [
        {"sampler": BatchSampler(range(12), 4, drop_last=False), "batch_size": None},
        {"sampler": torch.arange(12), "batch_size": 4},
    ],
    ids=["lists", "tensors"],
)
def test_samples_are_seeded_by_any_index(how):
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        with rank_features_disabled():
            found.append(torch.cat(list(DataLoader(Noisy(), **how))))
    assert torch.equal(*found)
    assert len(found[0].unique()) == 12


@pytest.mark.parametrize(
    ("streams", "cause"),
    [
        ((3, 3), "random-alike-on-workers"),
        ((3, 4), "augmentation-per-worker"),
        ((0, 0), "augmentation-per-worker"),
    ],
)
def test_augmentation_from_equal_seeds_is_not_that_of_each_worker(streams, cause):
    facts = [Facts(rank=rank, augmented=True, fetch_stream=stream) for rank, stream in enumerate(streams)]
    run = RunRecord([Trace(rank_facts, [], 0) for rank_facts in facts], runs_once=False)
    assert [finding.cause for finding in exceptions_of(Comparison(run, run, run))] == [cause]
