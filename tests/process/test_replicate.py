"""`replicate` trains on real processes over Gloo as one process does."""

import copy
import gc
from weakref import ref

import pytest
import torch
from torch import nn
from torch.nn import functional

from samestep.parallel.gradients.bucketed import Bucketed
from samestep.parallel.gradients.replicate import SYNCHRONIZERS, replicate
from samestep.ranks.collectives import direct
from samestep.ranks.collectives.direct import by_connections
from support.backward_cases import (
    assert_equal_gradients,
    gradients,
    network,
    plain,
    samples,
    share_of,
)


def conv_net():
    """The tutorials' network, small: batch norm, pooling and one linear layer, in double precision."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 5, padding=2),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 6, 5, padding=2),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(6 * 2 * 2, 10),
    ).double()


def train(model, *, rank=0, size=1, steps=30):
    """Train with momentum, weight decay and clipping on this rank's shares; return every tenth state.

    Every tenth batch has one sample: all ranks but one go without.
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
    generator = torch.Generator().manual_seed(1)
    states = []
    for step in range(steps):
        count = 1 if step % 10 == 3 else 11
        images = torch.randn(count, 1, 8, 8, generator=generator, dtype=torch.float64)
        labels = torch.randint(0, 10, (count,), generator=generator)
        start, stop = -(-count * rank // size), -(-count * (rank + 1) // size)
        scores = model(images[start:stop])
        loss = functional.cross_entropy(scores, labels[start:stop]) if stop > start else scores.sum()
        optimizer.zero_grad()
        (loss * ((stop - start) * size / count)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 10 == 9:
            states.append(copy.deepcopy(model.state_dict()))
    return states


def train_rank(world, sync, batch_norm):
    model = conv_net()
    options = {"sync": sync, "batch_norm": batch_norm, "bucket_bytes": 2000, "check_every": 7}
    with replicate(model, world, **options) as replicas:
        states = train(model, rank=world.place.rank, size=world.place.size)
        replicas.check()
    return states


def train_directly(world):
    """Train with small and large buckets; return the states, and how many buckets were sent early."""
    model, early = conv_net(), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(direct, "MOST_LATER", 1000)  # bytes: Gloo carries some of the buckets
        patch.setattr(Bucketed, "_average", lambda own: (early.append(own._num_sent), average(own)))
        options = {"sync": "bucketed", "batch_norm": "global", "bucket_bytes": 2000, "check_every": 7}
        with replicate(model, by_connections(world), **options) as replicas:
            states = train(model, rank=world.place.rank, size=world.place.size)
            replicas.check()
    return states, max(early)


average = Bucketed._average


def test_gradients_are_sent_within_backward_beside_batch_norm_over_direct_connections(processes):
    expected = train(conv_net())
    for states, early in processes.run(train_directly, 3):
        assert early > 0
        torch.testing.assert_close(states, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("sync", SYNCHRONIZERS)
def test_training_with_global_batch_norm_is_the_serial_training(processes, sync):
    expected = train(conv_net())
    ranks = processes.run(train_rank, 3, sync, "global")
    for states in ranks:
        torch.testing.assert_close(states, expected, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(states, ranks[0], rtol=0, atol=0)
    assert list(ranks[-1][0]) == list(conv_net().state_dict())


def test_all_synchronizers_train_equally_with_equal_bits(processes):
    found = {sync: processes.run(train_rank, 3, sync, "local") for sync in SYNCHRONIZERS}
    for ranks in found.values():
        for states in ranks:
            torch.testing.assert_close(states, ranks[0], rtol=0, atol=0)
            torch.testing.assert_close(states, found["reference"][0], rtol=1e-10, atol=1e-10)


def chosen_rank(world, compress):
    model = network()
    with replicate(model, world, compress=compress) as replicas:
        return replicas.sync


def test_ranks_of_one_host_use_shared_memory_by_default(processes):
    assert processes.run(chosen_rank, 2, None) == ["flat", "flat"]
    assert processes.run(chosen_rank, 2, "bf16") == ["bucketed", "bucketed"]


class Towers(nn.Module):
    """Two layers whose gradients each fill more than a bucket, and a small one; one or the other is used."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.even, self.odd, self.unused = (nn.Linear(400, 700) for _ in range(3))
        self.small = nn.Linear(700, 1)

    def forward(self, inputs, rank):
        return self.small((self.odd if rank % 2 else self.even)(inputs))


def towers_rank(world, sync):
    model, rank = Towers(), world.place.rank
    inputs = torch.randn(5, 400, generator=torch.Generator().manual_seed(rank))
    with replicate(model, world, sync=sync):
        for _ in range(2):  # the second one finds gradients there
            model(inputs, rank).square().mean().backward()
    return gradients(model)


def test_large_gradients_of_some_ranks_reach_all(processes):
    flat, reference = (processes.run(towers_rank, 3, sync) for sync in ("flat", "reference"))

    for found in flat:
        assert found["unused.weight"] is None
        assert found["odd.weight"] is not None
        assert_equal_gradients(found, reference[0], tolerance=1e-6)
        assert found["even.weight"].equal(flat[0]["even.weight"])


def accumulate_rank(world, sync):
    model, (inputs, weight) = network(), share_of(world, samples(), [4, 3])
    with replicate(model, world, sync=sync) as replicas:
        with replicas.accumulate():
            plain(model, inputs, weight)
            alone = gradients(model)
        plain(model, inputs + 1, weight)
        return alone, gradients(model), list(model.state_dict())


@pytest.mark.parametrize("sync", SYNCHRONIZERS)
def test_accumulated_gradients_are_averaged_once(processes, sync):
    model = network()
    plain(model, samples(), 1.0)
    plain(model, samples() + 1, 1.0)
    (alone_0, found_0, keys), (alone_1, found_1, _) = processes.run(accumulate_rank, 2, sync)
    assert not alone_0["0.weight"].equal(alone_1["0.weight"])
    for found in (found_0, found_1):
        assert_equal_gradients(found, gradients(model))
    assert keys == list(model.state_dict())


class Interrupted(nn.Module):
    """Layers whose last gradients have been sent when backward fails."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.last = nn.Linear(16, 64), nn.Linear(64, 2000), nn.Linear(2000, 400)
        self.fails = False

    def forward(self, inputs):
        hidden = self.first(inputs)
        if self.fails:
            hidden.register_hook(_fail)
        return self.last(self.second(hidden))


def _fail(_):
    raise ZeroDivisionError


def interrupted_rank(world):
    model, inputs = Interrupted(), torch.full((2, 16), 1.0 + world.place.rank)
    rounds = []
    with replicate(model, world, bucket_bytes=1 << 18):
        for step in range(8):
            model.zero_grad()
            model.fails = bool(step % 2)
            try:
                model(inputs).pow(2).mean().backward()
            except ZeroDivisionError:
                model.fails = False
                model.zero_grad()
                model(inputs * 3).pow(2).mean().backward()
            rounds.append(gradients(model))
    return rounds


def test_messages_of_a_failed_backward_do_not_affect_the_next_gradients(processes):
    model = Interrupted()
    inputs = torch.tensor([1.0, 2.0]).repeat_interleave(2).unsqueeze(1).expand(4, 16)
    for rounds in processes.run(interrupted_rank, 2):
        for step, found in enumerate(rounds):
            model.zero_grad()
            model(inputs * (3 if step % 2 else 1)).pow(2).mean().backward()
            assert_equal_gradients(found, gradients(model), tolerance=1e-4)


def half_rank(world, dtype):
    model, (inputs, weight) = network(dtype=dtype), share_of(world, samples(), [4, 3])
    with replicate(model, world, bucket_bytes=80) as replicas:
        for _ in range(3):
            model.zero_grad()
            plain(model, inputs.to(dtype), weight)
        replicas.check()
    return gradients(model)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_gloo_carries_the_dtypes_that_models_have(processes, dtype):
    model = network(dtype=dtype)
    plain(model, samples().to(dtype), 1.0)
    for found in processes.run(half_rank, 2, dtype):
        assert_equal_gradients(found, gradients(model), tolerance=8 * torch.finfo(dtype).eps)


def ddp_trace(world):
    """Return the calls of a forward hook of the model, while and after torch's DDP is attached."""
    model, calls = network(), []
    model.register_forward_hook(lambda *_: calls.append("hook"))
    with replicate(model, world, sync="ddp") as replicas:
        plain(model, samples(), 1.0)
        exposed = replicas.exposed_s
        with torch.no_grad():
            model.eval()(samples())
    model(samples())
    return calls, exposed, "forward" in vars(model)


def test_ddp_runs_the_hooks_of_the_model_once_and_is_removed(processes):
    for calls, exposed, redirected in processes.run(ddp_trace, 2):
        assert calls == ["hook"] * 3
        assert exposed is None
        assert not redirected


def dropped_rank(world, sync):
    original, model = torch.autograd.backward, network()
    replicate(model, world, sync=sync)
    plain(model, samples(), 1.0)
    left = ref(model)
    del model
    gc.collect()
    return left() is None, torch.autograd.backward is original


@pytest.mark.parametrize("sync", SYNCHRONIZERS)
def test_a_dropped_model_is_freed_with_its_hooks(processes, sync):
    assert processes.run(dropped_rank, 2, sync) == [(True, True)] * 2
