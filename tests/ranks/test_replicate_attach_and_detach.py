"""`replicate` makes the models of all ranks equal without wrapping them, and detaching removes every hook."""

import copy
import gc
import io
import pickle
from weakref import ref

import pytest
import torch
from torch import nn

import samestep
from samestep.base.errors import OutOfStep, UsageError
from samestep.parallel.gradients.replicate import replicate
from samestep.ranks.world.protocol import SoloWorld
from samestep.ranks.world.thread_world import run_ranks
from support.backward_cases import network, plain, samples


def normed(seed=0, dtype=torch.float64):
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), network(seed, dtype)).to(dtype)


def with_sparse_buffer():
    model = nn.Linear(2, 2)
    model.register_buffer("adjacency", torch.eye(2).to_sparse())
    return model


def test_all_ranks_begin_with_the_values_of_rank_0():
    def on_rank(world):
        torch.manual_seed(world.place.rank)  # the threads share one generator: any values will do
        model = normed(world.place.rank)
        model.register_buffer("flags", torch.tensor([True, False]) ^ bool(world.place.rank))
        model.register_buffer("nothing", torch.zeros(0))
        model.register_buffer("odd_bytes", torch.tensor([world.place.rank], dtype=torch.int8))
        model.register_buffer("expanded", torch.full((1, 2), float(world.place.rank)).expand(3, 2))
        model.register_buffer("conjugate", torch.tensor([1 + 1j * world.place.rank]).conj())
        model[1].running_mean.fill_(world.place.rank)
        model.to(memory_format=torch.channels_last if world.place.rank else torch.contiguous_format)
        with replicate(model, world):
            return copy.deepcopy(model.state_dict())

    states = run_ranks(on_rank, 3)
    assert states[0]["1.running_mean"].eq(0).all()
    for state in states:
        torch.testing.assert_close(state, states[0], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("build", "difference"),
    [
        (
            lambda rank: nn.Linear(2, 3 + rank),
            r"weight \(float32 \[3, 2\]\) on rank 0 .*weight \(float32 \[4, 2\]\) on rank 1",
        ),
        (
            lambda rank: nn.Linear(2, 3).to([torch.float32, torch.float64][rank]),
            r"float64 \[3, 2\]\) on rank 1",
        ),
        (
            lambda rank: nn.Sequential(*[nn.Linear(2, 2)] * 1, *[nn.Linear(2, 2)] * rank),
            r"1\.weight .* on rank 1",
        ),
        (
            lambda rank: nn.Linear(2, 3).requires_grad_(not rank),
            r"weight \(float32 \[3, 2\]\) on rank 0 .*weight \(float32 \[3, 2\], frozen\) on rank 1",
        ),
        (lambda rank: nn.Linear(2, 3, bias=not rank), r"bias \(float32 \[3\]\) .*missing on rank 1"),
    ],
)
def test_models_that_differ_are_refused_on_all_ranks_with_the_first_difference(build, difference):
    def on_rank(world):
        backward = torch.autograd.backward
        with pytest.raises(OutOfStep, match=difference):
            replicate(build(world.place.rank), world)
        assert torch.autograd.backward is backward

    run_ranks(on_rank, 2)


@pytest.mark.parametrize(
    ("model", "options", "named"),
    [
        (nn.Embedding(3, 2, sparse=True), {}, "sparse=False"),
        (nn.Sequential(nn.LazyLinear(3)), {}, r"0\.weight"),
        (nn.Linear(2, 2, device="meta"), {}, "meta"),
        (with_sparse_buffer(), {}, "adjacency .*sparse_coo"),
        (
            nn.Linear(2, 2),
            {"sync": "telepathy"},
            "sync='telepathy'.* auto, reference, bucketed, flat, ddp",
        ),
        (nn.Linear(2, 2), {"batch_norm": "none"}, "batch_norm='none'.* local, global"),
        (nn.Linear(2, 2), {"bucket_bytes": 0}, "bucket_bytes=0"),
        (nn.Linear(2, 2), {"check_every": -1}, "check_every=-1"),
    ],
)
@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_unsupported_models_and_options_are_refused_before_work(model, options, named):
    with pytest.raises(UsageError, match=named):
        replicate(model, SoloWorld(), **options)


def test_ddp_needs_a_process_group():
    def on_rank(world):
        model = network()
        with pytest.raises(UsageError, match=rf"sync='ddp'.* {type(world).__name__}"):
            replicate(model, world, sync="ddp")
        assert_untouched(model)

    run_ranks(on_rank, 2)


def test_flat_needs_processes_of_one_host():
    def on_rank(world):
        model = network()
        with pytest.raises(UsageError, match="sync='flat'"):
            replicate(model, world, sync="flat")
        assert_untouched(model)
        with replicate(model, world) as replicas:
            return replicas.sync

    assert run_ranks(on_rank, 2) == ["bucketed", "bucketed"]


def test_a_buffer_of_inference_mode_gets_the_value_of_rank_0():
    """Only this finds an error of torch that ends the ranks above 0."""

    def on_rank(world):
        model = nn.Linear(2, 1)
        with torch.inference_mode():
            model.register_buffer("kept", torch.full((3,), float(world.place.rank)))
        with replicate(model, world):
            return model.kept.tolist(), model.weight.requires_grad

    assert run_ranks(on_rank, 2) == [([0.0] * 3, True)] * 2


def test_a_model_is_replicated_once():
    model = network()
    with replicate(model, SoloWorld()), pytest.raises(UsageError, match=r"Sequential.*detach"):
        replicate(model, SoloWorld())
    replicate(model, SoloWorld()).detach()


def test_only_replicated_models_accumulate():
    with pytest.raises(UsageError, match=r"Sequential.*replicate\(model\)"), samestep.accumulate(network()):
        pass


def test_the_current_world_is_the_default():
    def on_rank(world):
        model = network(world.place.rank)
        with samestep.replicate(model):
            return model[0].weight.detach().clone()

    first, second = run_ranks(on_rank, 2)
    assert first.equal(second)


def test_a_world_of_one_attaches_nothing():
    model, backward = normed(), torch.autograd.backward
    with replicate(model, SoloWorld(), batch_norm="global") as replicas:
        assert torch.autograd.backward is backward
        assert_untouched(model)
        with samestep.accumulate(model), replicas.accumulate():
            replicas.check()
            replicas.contribute_nothing()
        assert replicas.exposed_s == 0


def assert_untouched(model):
    for module in model.modules():
        assert "forward" not in vars(module)
    for parameter in model.parameters():
        assert not parameter._post_accumulate_grad_hooks


@pytest.mark.parametrize("batch_norm", ["local", "global"])
@pytest.mark.parametrize("sync", ["reference", "bucketed"])
def test_keys_and_class_are_unchanged_and_detach_removes_all_hooks(sync, batch_norm):
    original = torch.autograd.backward

    def on_rank(world):
        model, plain_model = normed(), normed()
        replicas = replicate(model, world, sync=sync, batch_norm=batch_norm)
        assert torch.autograd.backward is not original
        assert list(model.state_dict()) == list(plain_model.state_dict())
        assert type(model) is nn.Sequential
        world.barrier()
        replicas.detach()
        replicas.detach()  # once more does no harm
        assert_untouched(model)

    run_ranks(on_rank, 2)
    assert torch.autograd.backward is original


def test_a_freed_model_leaves_no_hooks():
    original = torch.autograd.backward

    def on_rank(world):
        model = normed()
        replicate(model, world)
        plain(model[3], samples(), 1.0)

    run_ranks(on_rank, 2)
    gc.collect()
    assert torch.autograd.backward is original


@pytest.mark.parametrize("batch_norm", ["local", "global"])
def test_a_model_that_is_one_batch_norm_is_freed(batch_norm):
    def on_rank(world):
        model = nn.BatchNorm1d(3)
        replicate(model, world, batch_norm=batch_norm)
        model(torch.ones(2, 3)).sum().backward()
        return ref(model)

    models = run_ranks(on_rank, 2)
    gc.collect()
    assert [model() for model in models] == [None, None]


def test_a_copy_and_a_pickle_are_plain_models():
    def on_rank(world):
        model = normed()
        with replicate(model, world, batch_norm="global"):
            loaded = pickle.loads(pickle.dumps(model))
            saved = io.BytesIO()
            torch.save(model, saved)
            copied = copy.deepcopy(model).eval()
            assert copied[1].forward.__self__ is copied[1]
            for other in (loaded, copied):
                torch.testing.assert_close(other.state_dict(), model.state_dict())
                if world.place.is_main:  # on one rank only: the copy does not communicate
                    other[1].train()(torch.ones(3, 2, 4, 4, dtype=torch.float64))
                    assert other[1].num_batches_tracked == 1
        copied[1].train()(torch.ones(3, 2, 4, 4, dtype=torch.float64))
        world.barrier()

    run_ranks(on_rank, 2)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
@pytest.mark.parametrize("batch_norm", ["global", "local"])
def test_a_copy_and_a_pickle_can_be_replicated(copied, batch_norm):
    """Only this finds an average of the weights whose batch norm cannot be updated over all ranks."""

    def on_rank(world):
        model = normed()
        with replicate(model, world, batch_norm="global"):
            plain = copied(copied(model))
            with replicate(plain, world, batch_norm=batch_norm):
                plain[:2](torch.full((2, 1, 4, 4), float(world.place.rank), dtype=torch.float64))
            return plain[1].num_batches_tracked.item()

    assert run_ranks(on_rank, 2) == [1, 1]


@pytest.mark.filterwarnings("ignore:.*has replaced torch.autograd.backward:RuntimeWarning")
def test_a_patch_of_backward_by_another_library_is_kept():
    original, calls = torch.autograd.backward, []

    def on_rank(world):
        model = network()
        with replicate(model, world):
            world.barrier()
            ours = torch.autograd.backward

            def theirs(*args, **kwargs):
                calls.append(world.place.rank)
                return ours(*args, **kwargs)

            if world.place.is_main:
                torch.autograd.backward = theirs
            world.barrier()
            plain(model, samples(), 1.0)
            world.barrier()
        world.barrier()
        with replicate(network(1), world):
            world.barrier()
        plain(model, samples(), 1.0)

    try:
        run_ranks(on_rank, 2)
        assert len(calls) == 4
    finally:
        torch.autograd.backward = original
