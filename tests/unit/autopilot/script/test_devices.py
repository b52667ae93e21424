"""A script that names CUDA devices runs on the CPU."""

import os

import pytest
import torch

from samestep.autopilot.script.devices import onto_cpu, own_device
from samestep.autopilot.script.options import Options
from samestep.base.errors import UsageError

ON_CPU = [
    "torch.ones(2).cuda()",
    "torch.ones(2).cuda(0, non_blocking=True)",
    "torch.ones(2).to('cuda')",
    "torch.ones(2).to(0)",
    "torch.ones(2).to('cuda:1', torch.float64, non_blocking=True)",
    "torch.ones(2).to(device='cuda', dtype=torch.float64)",
    "torch.ones(2).to(torch.ones(1, device='cuda'))",
    "torch.ones(2).new_zeros(2, device='cuda')",
    "torch.ones(2).type('torch.cuda.DoubleTensor')",
    "torch.ones(2).type(torch.cuda.LongTensor)",
    "torch.ones(2).pin_memory()",
    "torch.zeros(2, device='cuda:0', pin_memory=True)",
    "torch.zeros(2, device=0)",
    "torch.tensor([1.0], device=torch.device('cuda', 1))",
    "torch.as_tensor([1.0], device=torch.device(type='cuda'))",
    "torch.randperm(3, device='cuda', generator=torch.Generator(device='cuda'))",
    "torch.randn(3, generator=torch.Generator('cuda').manual_seed(1))",
    "torch.cuda.FloatTensor([1.0, 2.0])",
    "torch.cuda.get_rng_state()",
    "nn.Linear(2, 2, device='cuda').weight",
    "nn.Linear(2, 2).cuda().weight",
    "nn.Linear(2, 2).to('cuda:0').weight",
    "nn.Linear(2, 2).to(0).weight",
    "nn.Linear(2, 2).to(torch.device('cuda')).weight",
    "nn.DataParallel(nn.Linear(2, 2).cuda(), device_ids=[0])(torch.ones(3, 2).cuda())",
    "torch.load(saved, map_location='cuda:0')",
    "torch.load(saved, torch.device('cuda'))",
    "torch.load(saved, map_location=lambda storage, _: storage.cuda(0))",
]
FACTS = [
    ("torch.cuda.is_available()", True),
    ("torch.cuda.device_count()", 1),
    ("torch.cuda.current_device()", 0),
    ("torch.cuda.get_device_name(0)", "cpu"),
    ("torch.accelerator.is_available()", True),
    ("torch.accelerator.current_accelerator().type", "cuda"),
    ("torch.device('cuda:3')", torch.device("cpu")),
    ("torch.device(0)", torch.device("cpu")),
    ("torch.device('meta')", torch.device("meta")),
    ("isinstance(torch.default_generator, torch.Generator)", True),
    ("torch.cuda.synchronize()", None),
    ("torch.cuda.set_device(0)", None),
    ("torch.cuda.empty_cache()", None),
    ("torch.cuda.max_memory_allocated()", 0),
    ("torch.cuda.reset_peak_memory_stats()", None),
    ("torch.cuda.Stream().wait_stream(torch.cuda.current_stream())", None),
    ("torch.ones(2).record_stream(torch.cuda.current_stream())", None),
    ("torch.cuda.init()", None),
    ("torch.cuda.initial_seed() == torch.initial_seed()", True),
    ("torch.cuda.set_stream(torch.cuda.Stream())", None),
    ("torch.cuda.reset_accumulated_memory_stats()", None),
    ("torch.cuda.memory_stats()['allocated_bytes.all.peak']", 0),
    ("torch.cuda.nvtx.range('step').__enter__()", None),
    ("getattr(torch.accelerator, 'max_memory_allocated', lambda: 0)()", 0),
]


def evaluated(text, **names):
    """Evaluate `text` as in a script of the user, to which a GPU is reported."""
    return eval(compile(text, __file__, "eval"), {"torch": torch, "nn": torch.nn, **names})


@pytest.mark.parametrize("text", ON_CPU)
def test_tensors_on_a_cuda_device_are_on_the_cpu(text, tmp_path):
    torch.save(torch.ones(2), tmp_path / "saved.pt")
    with onto_cpu():
        assert evaluated(text, saved=tmp_path / "saved.pt").device.type == "cpu"


@pytest.mark.parametrize(("text", "value"), FACTS)
def test_one_device_is_reported_to_a_script(text, value):
    with onto_cpu():
        assert evaluated(text) == value


@pytest.mark.filterwarnings("ignore:.*CUDA is not available", "ignore:.*is deprecated")
def test_mixed_precision_computes_in_full_precision():
    with onto_cpu():
        scaler = torch.cuda.amp.GradScaler()
        model = torch.nn.Linear(2, 1).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        before = model.weight.detach().clone()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(torch.ones(3, 2).cuda()).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    assert loss.dtype == torch.float32
    torch.testing.assert_close(model.weight, before - 0.3)


def test_events_and_streams_can_be_used_on_the_cpu():
    with onto_cpu():
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        with torch.cuda.stream(torch.cuda.Stream()), torch.cuda.device(0):
            torch.ones(100, 100, device="cuda").mm(torch.ones(100, 100, device="cuda"))
        end.record(torch.cuda.current_stream())
        end.synchronize()
        assert start.elapsed_time(end) > 0


def test_libraries_get_the_actual_devices_and_so_does_a_script_afterwards():
    library = compile("torch.cuda.is_available()", "/env/lib/site-packages/library/use.py", "eval")
    before = torch.cuda.is_available(), torch.cuda.device_count()
    with onto_cpu():
        assert eval(library, {"torch": torch}) == before[0]
    assert (evaluated("torch.cuda.is_available()"), evaluated("torch.cuda.device_count()")) == before


@pytest.mark.skipif(torch.cuda.is_available(), reason="the error is that of a machine without GPUs")
def test_without_redirection_a_script_with_cuda_devices_fails():
    with pytest.raises((AssertionError, RuntimeError), match=r"CUDA|NVIDIA"):
        evaluated("torch.ones(2).cuda()")


def test_gpus_are_hidden_from_a_script_on_the_cpu(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")

    with own_device(Options(device="cpu")) as device:
        assert device == "cpu"
        assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
        assert os.environ["HIP_VISIBLE_DEVICES"] == ""


def test_each_rank_sees_one_of_the_visible_gpus(monkeypatch):
    variables = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    for name, value in {**variables, "CUDA_VISIBLE_DEVICES": "4,5"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(
        torch.cuda, "device_count", lambda: len(os.environ["CUDA_VISIBLE_DEVICES"].split(","))
    )

    with own_device(Options()):
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "5"


def test_gpus_cannot_be_hidden_once_the_driver_is_open(monkeypatch):
    monkeypatch.setattr(
        torch.cuda, "device_count", lambda: len(os.environ["CUDA_VISIBLE_DEVICES"].split(","))
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    with own_device(Options()) as device:
        assert device is None
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "4"

    monkeypatch.setattr("samestep.autopilot.script.devices.driver_is_open", lambda: True)
    with pytest.raises(UsageError), own_device(Options()):
        pass


def test_a_script_on_the_cpu_forks_the_generators():
    with onto_cpu():
        torch.manual_seed(3)
        with torch.random.fork_rng():
            first = torch.rand(2)
        assert torch.equal(torch.rand(2), first)
        assert evaluated("torch.get_device_module('cuda') is torch.cuda")
