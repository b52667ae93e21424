"""Global batch norm equals serial batch norm; under local batch norm the running statistics stay equal."""

import copy

import pytest
import torch
from torch import nn

from samestep.base.errors import UsageError
from samestep.parallel.gradients.replicate import replicate
from samestep.ranks.world.thread_world import run_ranks
from support.backward_cases import share_of

SHAPES = {1: (7, 3), 2: (7, 3, 4, 2), 3: (7, 3, 2, 2, 2)}
NORMS = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
SHARES = [[4, 3], [7, 0], [1, 6], [3, 3, 1], [0, 7, 0]]
SHARES_OF_DIMS = list(zip((2, 3, 1, 2, 1), SHARES, strict=True))


def batch(shape, step=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(step)
    return (torch.randn(shape, generator=generator, dtype=torch.float64) * 3 + 5).to(dtype)


def build(dims=2, *, dtype=torch.float64, no_longer=None, **options):
    """A batch norm between channel-wise layers, so that its input needs a gradient.

    `no_longer` names a flag that is set to False after construction.
    """
    norm = NORMS[dims](3, **options)
    if no_longer:
        setattr(norm, no_longer, False)
    if norm.affine:
        with torch.no_grad():
            norm.weight.copy_(torch.tensor([0.5, -1.0, 2.0]))
            norm.bias.copy_(torch.tensor([0.1, 0.2, 0.3]))
    return nn.ModuleDict({"before": Scale(), "norm": norm, "after": Scale()}).to(dtype)


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.5, 0.7, -0.3]))

    def forward(self, inputs):
        return inputs * self.weight.view(1, -1, *[1] * (inputs.dim() - 2))


def loss_of(model, inputs, weight):
    """A loss in which every element counts differently; as a mean over samples."""
    outputs = model["after"](model["norm"](model["before"](inputs))).tanh().pow(2)
    return outputs.flatten(1).sum(1).mean() * weight if len(inputs) else outputs.sum()


def train(model, inputs, weight, steps=3, optimizer=None):
    """Train; return the state dict and the gradients of the inputs."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    grads = []
    for step in range(steps):
        optimizer.zero_grad()
        inputs = (inputs * (1 + step)).detach().requires_grad_()
        loss_of(model, inputs, weight).backward()
        grads.append(inputs.grad / max(weight, 1e-9) if weight != 1.0 else inputs.grad)
        optimizer.step()
    return copy.deepcopy(dict(model.state_dict())), grads


def train_ranks(shares, shape, *, make=build, batch_norm="global", inputs=None, **options):
    """Return the state after training on each rank."""
    inputs = batch(shape) if inputs is None else inputs

    def on_rank(world):
        model = make(**options)
        with replicate(model, world, batch_norm=batch_norm) as replicas:
            found = train(model, *share_of(world, inputs, shares))
            replicas.check()
        return found

    return run_ranks(on_rank, len(shares))


def assert_state(found, expected, *, tolerance=1e-12):
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("dims", "shares"), SHARES_OF_DIMS, ids=str)
def test_global_batch_norm_trains_as_in_serial(dims, shares):
    expected, _ = train(build(dims), batch(SHAPES[dims]), 1.0)
    ranks = train_ranks(shares, SHAPES[dims], dims=dims)
    for state, _ in ranks:
        assert_state(state, expected)
        torch.testing.assert_close(state, ranks[0][0], rtol=0, atol=0)


@pytest.mark.parametrize(
    "options",
    [
        {"momentum": None},
        {"momentum": 0.0},
        {"momentum": 0.7, "eps": 0.1},
        {"track_running_stats": False},
        {"affine": False},
        {"affine": False, "track_running_stats": False},
        {"no_longer": "track_running_stats"},
    ],
    ids=str,
)
def test_global_batch_norm_with_other_options(options):
    expected, _ = train(build(**options), batch(SHAPES[2]), 1.0)
    for state, _ in train_ranks([4, 3], SHAPES[2], **options):
        assert_state(state, expected)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_gradients_of_the_inputs_are_the_serial_ones(layout):
    inputs = batch(SHAPES[2]).to(memory_format=layout)
    model = build()

    def input_grad(model, inputs, weight):
        inputs = inputs.detach().requires_grad_()
        loss_of(model, inputs, weight).backward()
        return inputs.grad

    expected = input_grad(model, inputs, 1.0)

    def on_rank(world):
        model = build()
        with replicate(model, world, batch_norm="global"):
            # The loss of a rank is N times its part of the global loss.
            return input_grad(model, *share_of(world, inputs, [4, 3])) / world.place.size

    assert_state(torch.cat(run_ranks(on_rank, 2)), expected)


def test_three_dimensional_input_of_batch_norm_1d():
    expected, _ = train(build(1), batch((7, 3, 5)), 1.0)
    for state, _ in train_ranks([4, 3], (7, 3, 5), dims=1):
        assert_state(state, expected)


def penalized(model, inputs, weight):
    """A gradient penalty: backward through backward of batch norm."""
    inputs = inputs.detach().requires_grad_()
    outputs = model["after"](model["norm"](model["before"](inputs))).tanh()
    (slope,) = torch.autograd.grad(outputs.sum(), inputs, create_graph=True)
    penalty = slope.flatten(1).norm(dim=1).pow(2)
    (penalty.mean() * weight if len(inputs) else penalty.sum() + outputs.sum()).backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize(
    ("shares", "options"), [*((shares, {}) for shares in SHARES), ([4, 3], {"affine": False})], ids=str
)
def test_global_batch_norm_can_be_differentiated_twice(shares, options):
    expected = penalized(build(**options), batch(SHAPES[2]), 1.0)

    def on_rank(world):
        model = build(**options)
        with replicate(model, world, batch_norm="global"):
            return penalized(model, *share_of(world, batch(SHAPES[2]), shares))

    for found in run_ranks(on_rank, len(shares)):
        assert_state(found, expected, tolerance=1e-10)


def test_a_first_layer_that_is_a_batch_norm():
    def make():
        return nn.BatchNorm2d(3).double()

    def on_rank(world, *, shares=(4, 3)):
        model = make()
        inputs, weight = share_of(world, batch(SHAPES[2]), shares)
        with replicate(model, world, batch_norm="global"):
            (model(inputs).tanh().mean() * weight).backward()
        return model.weight.grad, model.bias.grad, model.running_var

    model = make()
    model(batch(SHAPES[2])).tanh().mean().backward()
    for found in run_ranks(on_rank, 2):
        assert_state(found, (model.weight.grad, model.bias.grad, model.running_var))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_global_batch_norm_of_other_dtypes(dtype):
    inputs = batch(SHAPES[2], dtype=dtype)
    expected, _ = train(build(dtype=dtype), inputs, 1.0)
    for state, _ in train_ranks([4, 3], SHAPES[2], inputs=inputs, dtype=dtype):
        assert {value.dtype for value in state.values()} == {dtype, torch.int64}
        assert_state(state, expected, tolerance=16 * torch.finfo(dtype).eps)


def test_bf16_activations_with_single_precision_weights():
    """What autocast hands to a batch norm."""
    inputs = batch(SHAPES[2], dtype=torch.bfloat16)

    def run(model, inputs, weight):
        (model(inputs).float().tanh().sum(dim=(1, 2, 3)).mean() * weight).backward()
        return model.weight.grad, model.running_mean

    expected = run(nn.BatchNorm2d(3), inputs, 1.0)

    def on_rank(world):
        model = nn.BatchNorm2d(3)
        with replicate(model, world, batch_norm="global"):
            return run(model, *share_of(world, inputs, [4, 3]))

    for found in run_ranks(on_rank, 2):
        assert_state(found, expected, tolerance=0.02)


def gradient_of_inputs(norm, inputs, gradient):
    inputs = inputs.clone().requires_grad_()
    norm(inputs).backward(gradient)
    return inputs.grad


def test_gradients_in_float16_may_have_terms_beyond_its_range():
    """A constant channel has the deviation 0.003: the terms are 950,000 each, their sum at most 28,000."""
    inputs = torch.zeros(8, 1, dtype=torch.float16)
    gradient = torch.full((8, 1), 3000.0, dtype=torch.float16)
    gradient[3] = 3100.0
    expected = gradient_of_inputs(nn.BatchNorm1d(1), inputs, gradient)

    def on_rank(world):
        norm = nn.BatchNorm1d(1)
        part, of_part = (share_of(world, tensor, [4, 4])[0] for tensor in (inputs, gradient))
        with replicate(norm, world, batch_norm="global"):
            return gradient_of_inputs(norm, part, of_part)

    found = torch.cat(run_ranks(on_rank, 2))
    assert expected.isfinite().all()
    torch.testing.assert_close(found, expected, rtol=2e-3, atol=0)


def test_forward_without_gradients_and_in_evaluation():
    def run(model, inputs):
        with torch.no_grad():
            trained = model["norm"](inputs)
        model.eval()
        return trained, model["norm"](inputs), model.train()["norm"].running_var.clone()

    expected = run(build(), batch(SHAPES[2]))

    def on_rank(world):
        model = build()
        with replicate(model, world, batch_norm="global"):
            return run(model, share_of(world, batch(SHAPES[2]), [4, 3])[0])

    ranks = run_ranks(on_rank, 2)
    for row in (0, 1):
        assert_state(torch.cat([found[row] for found in ranks]), expected[row])
    assert_state(ranks[1][2], expected[2])


def test_one_value_per_channel_in_the_global_batch_is_refused_on_all_ranks():
    def on_rank(world):
        model = build(1)
        with (
            replicate(model, world, batch_norm="global"),
            pytest.raises(UsageError, match=r" 1 .*\[[01], 3\]"),
        ):
            model["norm"](share_of(world, batch((1, 3)), [1, 0])[0])

    run_ranks(on_rank, 2)


def test_one_value_per_channel_on_a_rank_is_enough():
    expected, _ = train(build(1), batch((2, 3)), 1.0)
    for state, _ in train_ranks([1, 1], (2, 3), dims=1):
        assert_state(state, expected)


def test_large_means_do_not_cost_precision():
    inputs = batch(SHAPES[2], dtype=torch.float32) + 1e4
    model = nn.BatchNorm2d(3)
    model(inputs)

    def on_rank(world):
        model = nn.BatchNorm2d(3)
        with replicate(model, world, batch_norm="global"):
            model(share_of(world, inputs, [4, 3])[0])
        return model.running_var

    torch.testing.assert_close(run_ranks(on_rank, 2)[0], model.running_var, rtol=1e-4, atol=0)


class Odd(nn.BatchNorm1d):
    """A batch norm with an activation, as in some libraries."""

    def forward(self, inputs):
        return super().forward(inputs).relu()


def with_own_forward(form):
    """Return a batch norm with a user-defined forward, of its class or of the instance."""
    if form == "class":
        return Odd(3).double()
    norm = nn.BatchNorm1d(3).double()
    original = norm.forward
    norm.forward = lambda inputs: original(inputs).relu()
    return norm


@pytest.mark.parametrize("form", ["class", "instance"])
def test_global_batch_norm_refuses_a_user_defined_forward(form):
    def on_rank(world):
        with pytest.raises(UsageError, match=r"^norm \((Odd|BatchNorm1d)\).* batch_norm='local'"):
            replicate(nn.ModuleDict({"norm": with_own_forward(form)}), world, batch_norm="global")

    run_ranks(on_rank, 2)


@pytest.mark.parametrize("form", ["class", "instance"])
def test_a_user_defined_forward_runs_under_local_batch_norm(form):
    inputs = batch(SHAPES[1])
    expected = with_own_forward(form)
    wanted = torch.cat([expected(inputs[:4]), expected(inputs[4:])])

    def on_rank(world):
        norm = with_own_forward(form)
        with replicate(norm, world, batch_norm="local") as replicas:
            outputs = norm(share_of(world, inputs, [4, 3])[0])
            outputs.sum().backward()
            replicas.check()
            with pytest.raises(UsageError, match="contribute_nothing"):
                norm(inputs[:0])
        return outputs.detach(), norm.running_mean.clone()

    ranks = run_ranks(on_rank, 2)
    assert_state(torch.cat([outputs for outputs, _ in ranks]), wanted.detach())
    assert ranks[0][1].equal(ranks[1][1])
    assert ranks[0][1].ne(0).all()


def test_contribute_nothing_is_refused_under_global_batch_norm():
    def on_rank(world):
        model = build()
        with (
            replicate(model, world, batch_norm="global") as replicas,
            pytest.raises(UsageError, match=r"contribute_nothing\(\).* batch_norm='global'"),
        ):
            replicas.contribute_nothing()

    run_ranks(on_rank, 2)


# local


def local_statistics(shares, *, sync="bucketed", momentum=0.1, steps=2):
    def on_rank(world):
        model = build(momentum=momentum)
        with replicate(model, world, sync=sync, batch_norm="local") as replicas:
            train(model, *share_of(world, batch(SHAPES[2]), shares), steps=steps)
            replicas.check()
        return {name: buffer.clone() for name, buffer in model["norm"].named_buffers()}

    return run_ranks(on_rank, len(shares))


@pytest.mark.parametrize(("sync", "momentum"), [("reference", 0.1), ("bucketed", None)])
def test_local_running_statistics_are_the_average_over_ranks(sync, momentum):
    ranks = local_statistics([4, 3], sync=sync, momentum=momentum, steps=1)
    alone = []
    for start, stop in ((0, 4), (4, 7)):
        model = build(momentum=momentum)
        loss_of(model, batch(SHAPES[2])[start:stop], 1.0)
        alone.append(model["norm"])
    for found in ranks:
        torch.testing.assert_close(found, ranks[0], rtol=0, atol=0)
        for name in ("running_mean", "running_var"):
            assert_state(found[name], (getattr(alone[0], name) + getattr(alone[1], name)) / 2)


@pytest.mark.parametrize(
    ("sync", "shares"), [("reference", [7, 0]), ("bucketed", [0, 7]), ("bucketed", [0, 7, 0])], ids=str
)
def test_a_rank_without_samples_does_not_change_local_statistics(sync, shares):
    model = build()
    train(model, batch(SHAPES[2]), 1.0, steps=2)
    for found in local_statistics(shares, sync=sync):
        assert_state(found, dict(model["norm"].named_buffers()))


def test_local_statistics_of_micro_batches_are_averaged_once():
    def on_rank(world):
        model = build()
        inputs, weight = share_of(world, batch(SHAPES[2]), [4, 3])
        with replicate(model, world, batch_norm="local") as replicas:
            with replicas.accumulate():
                loss_of(model, inputs, weight).backward()
            loss_of(model, inputs + 1, weight).backward()
        return model["norm"].running_mean.clone()

    alone = []
    for start, stop in ((0, 4), (4, 7)):
        model = build()
        for shift in (0, 1):
            loss_of(model, batch(SHAPES[2])[start:stop] + shift, 1.0)
        alone.append(model["norm"].running_mean)
    for found in run_ranks(on_rank, 2):
        assert_state(found, (alone[0] + alone[1]) / 2)


@pytest.mark.parametrize("batch_norm", ["local", "global"])
def test_frozen_statistics_keep_their_bits(batch_norm):
    def on_rank(world):
        model = build()
        model["norm"].running_mean.fill_(1 / 3)
        model["norm"].eval()
        with replicate(model, world, batch_norm=batch_norm):
            train(model, *share_of(world, batch(SHAPES[2]), [3, 3, 1]))
        return model["norm"].running_mean.clone()

    for found in run_ranks(on_rank, 3):
        assert found.eq(torch.tensor(1 / 3, dtype=torch.float64)).all()


def test_a_rank_that_contributes_nothing_counts_the_step():
    def on_rank(world):
        model = build()
        with replicate(model, world, batch_norm="local") as replicas:
            if world.place.is_main:
                loss_of(model, batch(SHAPES[2]), 2.0).backward()
            else:
                replicas.contribute_nothing()
            replicas.check()
        return model["norm"].running_var.clone()

    model = build()
    loss_of(model, batch(SHAPES[2]), 1.0)
    for found in run_ranks(on_rank, 2):
        assert_state(found, model["norm"].running_var)


def test_statistics_of_another_dtype_are_averaged_in_a_separate_message():
    def on_rank(world):
        model = build()
        model.before.double()
        model["norm"].float()
        model["norm"].weight = model["norm"].bias = None
        with replicate(model, world) as replicas:
            inputs, _ = share_of(world, batch(SHAPES[2]), [4, 3])
            model["before"](model["norm"](inputs.float()).double()).sum().backward()
            replicas.check()
        return model["norm"].running_mean.clone()

    first, second = run_ranks(on_rank, 2)
    assert first.equal(second)


def test_all_ranks_count_the_same_steps_where_a_batch_norm_runs_twice():
    def on_rank(world):
        model = build()
        with replicate(model, world, batch_norm="local") as replicas:
            if world.place.is_main:
                (loss_of(model, batch(SHAPES[2]), 1.0) + loss_of(model, batch(SHAPES[2]), 1.0)).backward()
            else:
                replicas.contribute_nothing()
            replicas.check()
        return model["norm"].num_batches_tracked.item()

    assert run_ranks(on_rank, 2) == [2, 2]


def test_an_empty_share_keeps_its_dtype_under_local_batch_norm():
    def on_rank(world):
        norm = nn.BatchNorm2d(3)
        with replicate(norm, world, batch_norm="local"):
            outputs = norm(share_of(world, batch(SHAPES[2], dtype=torch.bfloat16), [7, 0])[0])
            outputs.sum().backward()
        return outputs.dtype, norm.weight.grad.dtype

    assert run_ranks(on_rank, 2) == [(torch.bfloat16, torch.float32)] * 2


def test_local_batch_norm_refuses_a_shard_of_one_value():
    def on_rank(world):
        norm = nn.BatchNorm1d(3)
        with (
            replicate(norm, world, batch_norm="local"),
            pytest.raises(UsageError, match=r"\[1, 3\].* batch_norm='global'"),
        ):
            norm(batch((1, 3), dtype=torch.float32))

    run_ranks(on_rank, 2)


def test_the_check_averages_statistics_of_forwards_without_backward():
    """As when statistics are recomputed after averaging weights."""

    def on_rank(world):
        model = build()
        with replicate(model, world, batch_norm="local") as replicas:
            with torch.no_grad():
                model["norm"](share_of(world, batch(SHAPES[2]), [4, 3])[0])
            alone = model["norm"].running_var.clone()
            replicas.check()
            found = model["norm"].running_var.clone()
            loss_of(model, batch(SHAPES[2]), 1.0).backward()  # the buckets still carry them
            replicas.check()
        return alone, found, model["norm"].num_batches_tracked.item()

    ranks = run_ranks(on_rank, 2)
    for _, found, steps in ranks:
        assert_state(found, (ranks[0][0] + ranks[1][0]) / 2)
        assert steps == 2


def test_statistics_are_averaged_with_the_gradients_after_a_check():
    """Only this finds buckets that no longer carry them: the next check would average them, too."""

    def on_rank(world):
        model = build()
        with replicate(model, world, batch_norm="local") as replicas:
            replicas.check()
            loss_of(model, *share_of(world, batch(SHAPES[2]), [4, 3])).backward()
        return model["norm"].running_mean

    first, second = run_ranks(on_rank, 2)
    assert torch.equal(first, second)


@pytest.mark.parametrize("training", [True, False])
def test_a_graph_with_local_batch_norm_can_be_kept_for_a_second_backward(training):
    def on_rank(world):
        model = build()
        model["norm"].train(training)
        with replicate(model, world, batch_norm="local"):
            loss = loss_of(model, *share_of(world, batch(SHAPES[2]), [4, 3]))
            loss.backward(retain_graph=True)
            once = model["norm"].weight.grad.clone()
            loss.backward()
        return once, model["norm"].weight.grad

    for once, twice in run_ranks(on_rank, 2):
        assert_state(twice, 2 * once)


# instance norm


@pytest.mark.parametrize(
    ("shares", "batch_norm"), [([3, 3], "local"), ([4, 2], "local"), ([6, 0], "global")], ids=str
)
def test_running_statistics_of_instance_norm_are_the_serial_ones(shares, batch_norm):
    def make():
        return nn.Sequential(Scale(), nn.InstanceNorm1d(3, affine=True, track_running_stats=True)).double()

    def run(model, inputs, weight):
        outputs = model(inputs)
        (outputs.tanh().mean() * weight if len(inputs) else outputs.sum()).backward()
        return model[0].weight.grad, model[1].weight.grad, dict(model[1].named_buffers())

    inputs = batch((6, 3, 5))
    expected = run(make(), inputs, 1.0)

    def on_rank(world):
        model = make()
        with replicate(model, world, batch_norm=batch_norm, check_every=1):
            return run(model, *share_of(world, inputs, shares))

    for found in run_ranks(on_rank, 2):
        assert_state(found, expected)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("norm", [nn.InstanceNorm1d, nn.BatchNorm1d], ids=["instance", "batch"])
def test_a_rank_without_samples_has_an_empty_output_of_norms(norm, training):
    def on_rank(world):
        model = norm(3, affine=True, track_running_stats=True).train(training)
        with replicate(model, world, batch_norm="local"):
            return model(share_of(world, batch((6, 3, 5), dtype=torch.float32), [6, 0])[0]).shape

    assert run_ranks(on_rank, 2) == [(6, 3, 5), (0, 3, 5)]
