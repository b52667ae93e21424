"""Every kind of backward gives the serial gradients, with equal bits on every rank."""

import importlib
from contextlib import nullcontext

import pytest
import torch
from torch import nn

import samestep
from samestep.parallel.gradients.replicate import SYNCHRONIZERS, replicate
from samestep.ranks.world.thread_world import run_ranks
from support.backward_cases import (
    CASES,
    SHARES,
    assert_equal_gradients,
    gradients,
    mean_loss,
    network,
    plain,
    samples,
    share_of,
    two_models,
    two_models_rank,
)

SYNCS = [name for name in SYNCHRONIZERS if name not in ("ddp", "flat")]  # these need processes
TINY = 80  # bytes: a bucket or two per layer

pytestmark = pytest.mark.parametrize("sync", SYNCS)


@pytest.fixture(scope="module", autouse=True)
def dynamo_loaded():
    """Checkpointing loads it, and it writes a variable into the environment."""
    importlib.import_module("torch._dynamo")


def serial(case, *, steps=2, build=network):
    """Return the gradients of each step, in one process on the global batch."""
    model = build()
    rounds = []
    for step in range(steps):
        model.zero_grad()
        case(model, samples() + step, 1.0)
        rounds.append(gradients(model))
    return rounds


def parallel(case, sync, shares, *, steps=2, build=network):
    """Return the gradients of each step on each rank."""

    def on_rank(world):
        model = build()
        with replicate(model, world, sync=sync, bucket_bytes=TINY):
            rounds = []
            for step in range(steps):
                model.zero_grad()
                case(model, *share_of(world, samples() + step, shares))
                rounds.append(gradients(model))
        return rounds

    return run_ranks(on_rank, len(shares))


def assert_serial(ranks, expected, *, tolerance=1e-12):
    for rounds in ranks:
        for found, wanted, first in zip(rounds, expected, ranks[0], strict=True):
            assert_equal_gradients(found, wanted, tolerance=tolerance)
            assert all(value is None or value.equal(first[name]) for name, value in found.items())


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph")
@pytest.mark.parametrize("shares", SHARES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_gradients_are_the_serial_ones(case, sync, shares):
    assert_serial(parallel(case, sync, shares), serial(case))


def test_accumulate_synchronizes_nothing_and_the_next_backward_everything(sync):
    def on_rank(world):
        model, (inputs, weight) = network(), share_of(world, samples(), [4, 3])
        with replicate(model, world, sync=sync) as replicas:
            with samestep.accumulate(model):
                plain(model, inputs, weight)
                alone = gradients(model)
            with replicas.accumulate(), replicas.accumulate():
                plain(model, inputs + 1, weight)
            plain(model, inputs + 2, weight)
        return alone, gradients(model)

    def accumulated(model, inputs, weight):
        for shift in range(3):
            plain(model, inputs + shift, weight)

    (alone_0, found_0), (alone_1, found_1) = run_ranks(on_rank, 2)
    assert not alone_0["0.weight"].equal(alone_1["0.weight"])
    assert_serial([[found_0], [found_1]], serial(accumulated, steps=1))


def test_a_parameter_used_only_under_accumulate_is_averaged_too(sync):
    def micro_batches(model, inputs, weight, accumulate):
        with accumulate(model):
            plain(model, inputs, weight)
        plain(model[:3], inputs, weight)  # the last layer is not in this graph

    expected = serial(lambda *given: micro_batches(*given, lambda _: nullcontext()), steps=1)
    ranks = parallel(lambda *given: micro_batches(*given, samestep.accumulate), sync, [4, 3], steps=1)
    assert_serial(ranks, expected)


def test_ranks_may_use_different_parameters(sync):
    """Serial training uses both branches, each with its part of the batch."""

    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.left, self.right, self.unused = network(0), network(1), network(2), network(3)

        def forward(self, inputs, branch):
            return self.stem(inputs) * getattr(self, branch)(inputs)

    def branching(model, inputs, weight):
        if weight == 1.0:  # serial
            outputs = torch.cat([model(inputs[:4], "left"), model(inputs[4:], "right")])
        else:
            outputs = model(inputs, "left" if len(inputs) == 4 else "right")
        mean_loss(outputs, weight).backward()

    expected = serial(branching, build=Branches)
    assert expected[0]["unused.0.weight"] is None
    assert_serial(parallel(branching, sync, [4, 3], build=Branches), expected)


def test_zeros_left_by_zero_grad_stay_zeros(sync):
    def zeroed(model, inputs, weight):
        plain(model, inputs, weight)
        model.zero_grad(set_to_none=False)
        plain(model[:3], inputs, weight)

    assert_serial(parallel(zeroed, sync, [4, 3]), serial(zeroed))


def test_tied_weights_are_averaged_once(sync):
    def tied():
        model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3)).double()
        with torch.no_grad():
            model[0].weight.copy_(torch.arange(9).view(3, 3) / 10)
            model[0].bias.fill_(0.1)
            model[2].bias.fill_(0.2)
        model[2].weight = model[0].weight
        return model

    assert_serial(parallel(plain, sync, [4, 3], build=tied), serial(plain, build=tied))


def test_clipping_uses_the_gradients_of_the_global_batch(sync):
    def clipped(model, inputs, weight):
        plain(model, inputs, weight)
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)

    assert_serial(parallel(clipped, sync, [4, 3]), serial(clipped))


def test_frozen_parameters_may_be_unfrozen_and_frozen_again(sync):
    def frozen():
        return network().requires_grad_(False)

    def thawing(model, inputs, weight):
        """Step 0 trains the last layer alone, step 1 all of them, step 2 the last again."""
        thawing.step[model] = step = thawing.step.get(model, -1) + 1
        model.requires_grad_(step == 1)
        model[4].requires_grad_()
        plain(model, inputs, weight)

    thawing.step = {}
    assert_serial(
        parallel(thawing, sync, [4, 3], build=frozen, steps=3), serial(thawing, build=frozen, steps=3)
    )


def test_a_model_frozen_at_first_is_synchronized_later(sync):
    def frozen():
        return network().requires_grad_(False)

    def late(model, inputs, weight):
        model[4].requires_grad_()
        plain(model, inputs, weight)

    assert_serial(parallel(late, sync, [4, 3], build=frozen), serial(late, build=frozen))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_gradients_of_other_dtypes(sync, dtype):
    def build():
        return network(dtype=dtype)

    def half(model, inputs, weight):
        plain(model, inputs.to(dtype), weight)

    assert_serial(
        parallel(half, sync, [4, 3], build=build),
        serial(half, build=build),
        tolerance=8 * torch.finfo(dtype).eps,
    )


def test_a_model_of_mixed_dtypes(sync):
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = network(), network(1, torch.float32)
            self.turn = nn.Parameter(torch.tensor([1 + 2j, 3 - 1j], dtype=torch.complex128))

        def forward(self, inputs):
            turned = torch.view_as_real(self.first(inputs) * self.turn).flatten(1)[:, :3]
            return self.second(turned.float())

    assert_serial(parallel(plain, sync, [4, 3], build=Mixed), serial(plain, build=Mixed), tolerance=1e-5)


@pytest.mark.parametrize("initial", [torch.resolve_conj, torch.conj])
def test_complex_weights_and_gradients_that_are_conjugated_lazily(sync, initial):
    class Turn(nn.Module):
        def __init__(self):
            super().__init__()
            self.turn = nn.Parameter(initial(torch.tensor([1 + 2j, 3 - 1j], dtype=torch.complex128)))

    def turned(model, inputs, weight):
        loss = (model.turn.conj() * inputs[:, :2] * (1 + 2j)).real.sum() * weight / max(len(inputs), 1)
        loss.backward()
        assert weight == 1.0 or not model.turn.grad.is_conj()

    assert_serial(parallel(turned, sync, [4, 3], build=Turn), serial(turned, build=Turn))


def test_a_large_half_precision_sum_does_not_overflow(sync):
    def build():
        return nn.Linear(1, 1, bias=False).half()

    def steep(model, inputs, weight):
        (model(torch.ones(1, 1, dtype=torch.float16)) * 60000).sum().backward()

    for rounds in parallel(steep, sync, [3, 4], build=build):
        assert rounds[0]["weight"].item() == 60000


def test_lbfgs_takes_the_serial_steps(sync):
    def train(model, inputs, weight):
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4)

        def closure():
            optimizer.zero_grad()
            plain(model, inputs, weight)
            return 0.0  # the loss, which has no effect without line search

        for _ in range(3):
            optimizer.step(closure)

    assert_serial(parallel(train, sync, [4, 3], steps=1), serial(train, steps=1), tolerance=1e-10)


def gan(build, inputs, weight, *, steps=3):
    """Train a generator and a critic on `inputs`; return the weights of both."""
    generator, critic = build()
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) for model in (critic, generator)]
    for _ in range(steps):
        optimizers[0].zero_grad()
        fake = generator(inputs).repeat(1, 2)[:, :3]
        (mean_loss(critic(inputs), weight) - mean_loss(critic(fake.detach()), weight)).backward()
        optimizers[0].step()
        optimizers[1].zero_grad()
        mean_loss(critic(fake), weight).backward()
        optimizers[1].step()
    return {**generator.state_dict(prefix="generator."), **critic.state_dict(prefix="critic.")}


def test_two_models_in_one_backward(sync):
    expected = gan(lambda: (network(0), network(1)), samples(), 1.0)

    def on_rank(world):
        models = network(0), network(1)
        handles = [replicate(model, world, sync=sync, bucket_bytes=TINY) for model in models]
        found = gan(lambda: models, *share_of(world, samples(), [4, 3]))
        for handle in handles:
            handle.detach()
        return found

    for found in run_ranks(on_rank, 2):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_several_models_are_synchronized_in_one_order_whichever_backward_reaches_first(sync):
    models = [network(0), network(1)]
    two_models(models, samples(), 1.0)
    for found in run_ranks(two_models_rank, 3, sync):
        for one, model in zip(found, models, strict=True):
            assert_equal_gradients(one, gradients(model))


def test_a_rank_that_cannot_run_the_model_contributes_nothing(sync):
    def on_rank(world):
        model, (inputs, weight) = network(), share_of(world, samples(), [7, 0])
        rounds = []
        with replicate(model, world, sync=sync, bucket_bytes=TINY) as replicas:
            for step in range(2):
                model.zero_grad()
                if len(inputs):
                    plain(model, inputs + step, weight)
                else:
                    replicas.contribute_nothing()
                rounds.append(gradients(model))
        return rounds

    assert_serial(run_ranks(on_rank, 2), serial(plain))


def test_an_empty_share_contributes_zeros_even_where_its_loss_is_nan(sync):
    def careless(model, inputs, weight):
        (model(inputs).pow(2).mean() * weight).backward()  # the mean of nothing is NaN

    assert_serial(parallel(careless, sync, [7, 0]), serial(plain))


def test_a_failed_backward_does_not_affect_the_next(sync):
    def interrupted(model, inputs, weight):
        hidden = model[:3](inputs)
        hidden.register_hook(_fail)
        with pytest.raises(ZeroDivisionError):
            mean_loss(model[3:](hidden), weight).backward()
        model.zero_grad()
        plain(model, inputs, weight)

    assert_serial(parallel(interrupted, sync, [4, 3]), serial(plain))


def _fail(_):
    raise ZeroDivisionError


def test_sparse_gradients_are_refused_by_name(sync):
    def on_rank(world):
        class Functional(nn.Module):
            def __init__(self):
                super().__init__()
                self.table = nn.Parameter(torch.ones(4, 2))

            def forward(self, rows):
                return nn.functional.embedding(rows, self.table, sparse=True)

        model = Functional()
        with (
            replicate(model, world, sync=sync),
            pytest.raises(samestep.Error, match=r" table .*sparse=False"),
        ):
            model(torch.tensor([1])).sum().backward()

    run_ranks(on_rank, 2)


def test_an_old_reference_to_backward_is_refused(sync):
    old = torch.autograd.backward

    def on_rank(world):
        model = network()
        with replicate(model, world, sync=sync), pytest.raises(samestep.Error, match=r"replicate\(\)"):
            old(mean_loss(model(samples()), 1.0))

    run_ranks(on_rank, 2)
