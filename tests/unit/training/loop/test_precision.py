"""Each precision computes in its dtype, overflow skips a step, and unsupported precisions are refused."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from samestep.base.errors import CheckpointError, UsageError
from samestep.observe.instants import HostInstants
from samestep.observe.step_reader import LoopClock
from samestep.parallel.gradients.replicate import replicate
from samestep.parallel.sharding import Position
from samestep.ranks.world.protocol import SoloWorld
from samestep.training.data.loader import Batch
from samestep.training.loop.learner import build_optimizer, build_schedule
from samestep.training.loop.precision import Precision, machine_has_bf16
from samestep.training.loop.step import ReplicatedStep
from samestep.training.settings import Settings

CPU = torch.device("cpu")
OPTIMIZERS = [
    {"momentum": 0.0},
    {"momentum": 0.9},
    {"momentum": 0.9, "nesterov": True},
    {"optimizer": "adamw"},
]


def settings(**changes):
    return Settings(**{"epochs": 2, "batch_size": 8, "lr": 0.05, "precision": "fp16", **changes})


def network(precision):
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 3)).to(
        precision.weights
    )


def stepper(model, precision, optimizer, *, clip=None, schedule=None, forward=None):
    """Return the step of a training, on one worker."""
    learner = SimpleNamespace(
        model=model, optimizer=optimizer, schedule=schedule, precision=precision, average=None
    )
    return ReplicatedStep(
        learner=learner,
        settings=settings(clip_norm=clip),
        forward=model if forward is None else forward,
        replicas=replicate(model, SoloWorld()),
        clock=LoopClock(HostInstants()),
    )


def batch(precision, *, factor=1.0):
    """Return samples whose loss is multiplied by `factor`."""
    images = torch.randn(5, 1, 4, 4, generator=torch.Generator().manual_seed(1)).to(precision.images)
    return Batch(
        images=images,
        labels=torch.tensor([0, 1, 2, 0, 1]),
        weight=factor,
        global_count=5,
        ids=torch.arange(5),
        after=Position(),
    )


def rescale(precision, scale):
    precision.scaler.load_state_dict({**precision.scaler.state_dict(), "scale": scale})


@pytest.mark.parametrize(
    ("name", "weights", "scores"),
    [
        ("fp32", torch.float32, torch.float32),
        ("fp64", torch.float64, torch.float64),
        ("bf16", torch.float32, torch.bfloat16),
        ("fp16", torch.float32, torch.float16),
        ("bf16-true", torch.bfloat16, torch.bfloat16),
        ("fp16-true", torch.float16, torch.float16),
    ],
)
def test_each_precision_has_its_dtypes_of_weights_and_of_computation(name, weights, scores):
    precision = Precision.of(name, CPU)
    model = network(precision)

    found = []

    def forward(images):
        found.append(model(images))
        return found[-1]

    optimizer = build_optimizer(model, settings(precision=name))
    loss = stepper(model, precision, optimizer, forward=forward)(batch(precision))

    assert precision.weights == precision.images == weights
    assert [one.dtype for one in found] == [scores]
    assert loss.dtype == (torch.float64 if name == "fp64" else torch.float32)
    assert {parameter.dtype for parameter in model.parameters()} == {weights}
    assert precision.scaler.is_enabled() == (name == "fp16")


def test_a_state_of_another_device_is_loaded_without_its_form():
    """A GPU's is fused, and fused SGD skips weights of half precision on a CPU."""
    model = nn.Linear(64, 64, dtype=torch.bfloat16)
    optimizer = build_optimizer(model, settings(precision="bf16-true"))
    state = optimizer.state_dict()
    for group in state["param_groups"]:
        group |= {"fused": True, "foreach": None}
    optimizer.load_state_dict(state)
    before = model.weight.detach().clone()

    model(torch.ones(4, 64, dtype=torch.bfloat16)).sum().backward()
    optimizer.step()

    assert bool((model.weight != before).all())


@pytest.mark.parametrize("name", ["fp32", "bf16", "bf16-true", "fp16-true", "fp64"])
def test_the_scaler_has_no_effect_if_the_precision_needs_no_scaling(name):
    precision = Precision.of(name, CPU)
    loss = torch.tensor(2.0, requires_grad=True)

    assert precision.scaler.scale(loss) is loss
    assert precision.state_dict() == {}


@pytest.mark.parametrize("options", OPTIMIZERS, ids=str)
@pytest.mark.parametrize("clip", [None, 0.5])
def test_loss_scaling_does_not_change_the_steps(options, clip):
    trained = {}
    for scale in (1.0, 2.0**10):
        precision = Precision.of("fp16", CPU)
        rescale(precision, scale)
        model = network(precision)
        step = stepper(model, precision, build_optimizer(model, settings(**options)), clip=clip)
        for _ in range(4):
            step(batch(precision))
        trained[scale] = model.state_dict()

    for name, value in trained[1.0].items():
        # Half precision rounds gradients of another magnitude alike, unless they are tiny.
        torch.testing.assert_close(trained[2.0**10][name], value, rtol=2e-2, atol=2e-3)


@pytest.mark.parametrize("options", OPTIMIZERS, ids=str)
@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("skipped", [0, 1], ids=["first step", "second step"])
def test_an_overflow_halves_the_scale_and_has_no_other_effect(options, clip, skipped):
    disturbed, undisturbed = (Precision.of("fp16", CPU) for _ in range(2))
    one, other = network(disturbed), network(undisturbed)
    for model in (one, other):
        model[1].eval()  # running statistics would show a forward whose step is skipped
    first, second = (
        stepper(model, precision, build_optimizer(model, settings(**options)), clip=clip)
        for model, precision in ((one, disturbed), (other, undisturbed))
    )

    for count in range(3):
        if count == skipped:
            before = disturbed.scaler.get_scale()
            first(batch(disturbed, factor=float("inf")))
            assert disturbed.scaler.get_scale() == before / 2
            rescale(undisturbed, before / 2)
        first(batch(disturbed))
        second(batch(undisturbed))

    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


class NoTensorReads(TorchDispatchMode):
    """Fails if a number is read from a tensor, which on a GPU waits for all earlier kernels."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func is not torch.ops.aten._local_scalar_dense.default, "a tensor was read"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["fp32", "bf16", "fp16", "bf16-true", "fp16-true", "fp64"])
@pytest.mark.parametrize("options", OPTIMIZERS, ids=str)
def test_a_step_reads_no_tensor_from_the_device(name, options):
    precision = Precision.of(name, CPU)
    chosen = settings(precision=name, schedule="cosine", **options)
    model = network(precision)
    optimizer = build_optimizer(model, chosen)
    schedule = build_schedule(optimizer, chosen, steps_per_epoch=5)

    step = stepper(model, precision, optimizer, clip=1.0, schedule=schedule)
    batches = [batch(precision, factor=factor) for factor in (float("inf"), 1.0, 1.0)]

    with NoTensorReads():
        for one in batches:
            step(one)


def test_a_read_of_a_tensor_is_detected():
    with NoTensorReads(), pytest.raises(AssertionError, match="a tensor was read"):
        torch.ones(()).item()


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_the_state_of_the_scaler_is_used_with_any_number_of_workers(workers):
    precision, again = Precision.of("fp16", CPU), Precision.of("fp16", CPU, workers=workers)
    model = network(precision)
    stepper(model, precision, build_optimizer(model, settings()))(batch(precision, factor=float("inf")))

    again.load_state_dict(precision.state_dict())

    assert again.scaler.get_scale() == 2.0**15 / workers
    assert again.state_dict() == precision.state_dict()


@pytest.mark.parametrize(("saved", "wanted"), [("fp16", "fp32"), ("bf16", "fp16")])
def test_the_state_of_another_precision_is_refused(saved, wanted):
    with pytest.raises(CheckpointError, match="another --precision"):
        Precision.of(wanted, CPU).load_state_dict(Precision.of(saved, CPU).state_dict())


def test_a_precision_that_the_device_does_not_support_is_refused():
    absent = [name for name in ("cuda", "xpu", "mps") if not getattr(torch, name).is_available()]

    with pytest.raises(UsageError, match=r"--precision fp64 does not work on .* Use --precision fp32"):
        Precision.of("fp64", torch.device(absent[0]))


@pytest.mark.parametrize(
    ("line", "has"),
    [
        ("flags\t\t: fpu sse2 avx512f avx512_bf16 amx_bf16", True),
        ("flags\t\t: fpu sse2 avx512f avx512_bf16", True),
        ("flags\t\t: fpu sse2 avx512f avx512_vnni", False),
        ("Features\t: fp asimd bf16 i8mm", True),
        ("Features\t: fp asimd", False),
        ("model name\t: bf16", False),
    ],
)
def test_bf16_support_of_a_cpu_is_read_from_its_flags(tmp_path, line, has):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor\t: 0\n{line}\n\n")

    assert machine_has_bf16(CPU, cpuinfo=cpuinfo) is has


def test_without_information_no_bf16_support_is_assumed(tmp_path):
    assert not machine_has_bf16(CPU, cpuinfo=tmp_path / "absent")
    assert not machine_has_bf16(torch.device("meta"))


def test_auto_is_bf16_if_the_machine_supports_it():
    expected = torch.bfloat16 if machine_has_bf16(CPU) else torch.float32
    precision = Precision.of("auto", CPU)

    with precision.autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == expected
