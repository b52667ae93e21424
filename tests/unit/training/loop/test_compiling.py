"""Compiling and the memory format do not change the saved model; a missing compiler is refused early."""

import re
import sys
from functools import partial

import pytest
import torch
from torch import nn

from samestep.base.errors import UsageError
from samestep.training.loop.learner import in_memory_format
from samestep.training.loop.step import compiled
from samestep.training.settings import Settings

USUAL = "clang++" if sys.platform == "darwin" else "g++"


def settings(**changes):
    return Settings(**{"epochs": 1, "batch_size": 8, "lr": 0.05, **changes})


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 3))


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine without programs except those that `install` adds; torch.compile itself needs none."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    return tmp_path


def install(machine, name):
    (machine / name).write_text("#!/bin/sh\n")
    (machine / name).chmod(0o755)


def test_without_the_option_nothing_is_compiled(machine):
    model = network()

    assert compiled(model, settings()) is model


def test_the_compiled_model_trains_the_original_and_keeps_its_keys(machine):
    install(machine, USUAL)
    model, plain = network(), network()
    forward = compiled(model, settings(compile=True))
    images = torch.randn(2, 3, 4, 4)

    forward(images).square().sum().backward()
    plain(images).square().sum().backward()

    assert forward is not model
    assert list(model.state_dict()) == list(plain.state_dict())
    torch.testing.assert_close(model.state_dict(), plain.state_dict())
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_exact_training_compiles_separately_for_each_batch_size(machine, monkeypatch):
    install(machine, USUAL)
    sizes = []

    def remember(graph, inputs):
        images = [one for one in inputs if isinstance(one, torch.Tensor) and one.shape[1:] == (3, 4, 4)]
        sizes.extend(one.shape[0] for one in images)
        return graph.forward

    monkeypatch.setattr(torch, "compile", partial(torch.compile.func, backend=remember))
    forward = compiled(network(), settings(compile=True, exact=2))
    for samples in (4, 3, 2, 3):
        forward(torch.randn(samples, 3, 4, 4))

    assert sizes == [4, 3, 2]
    assert all(type(size) is int for size in sizes)


def test_an_empty_shard_is_computed_without_the_compiled_model(machine, monkeypatch):
    def refuse_empty(model, **_):
        def fast(images):
            assert len(images), "torch's compiler fails here"
            return model(images)

        return fast

    install(machine, USUAL)
    monkeypatch.setattr(torch, "compile", refuse_empty)
    forward = compiled(network().eval(), settings(compile=True))

    assert [forward(torch.zeros(samples, 3, 4, 4)).shape for samples in (2, 0)] == [(2, 3), (0, 3)]


def test_a_missing_compiler_is_refused_before_work_starts(machine):
    with pytest.raises(UsageError, match=rf"--compile runs .*{re.escape(USUAL)} is not found\. Install"):
        compiled(network(), settings(compile=True))


def test_a_missing_compiler_of_the_variable_cxx_is_refused_with_its_name(machine, monkeypatch):
    install(machine, USUAL)
    monkeypatch.setenv("CXX", "no-such-compiler")

    with pytest.raises(UsageError, match="CXX='no-such-compiler' is not found"):
        compiled(network(), settings(compile=True))


def test_a_compiler_of_the_variable_cxx_is_accepted(machine, monkeypatch):
    install(machine, "mine")
    monkeypatch.setenv("CXX", "mine")

    assert compiled(network(), settings(compile=True)) is not None


def test_a_torch_that_cannot_compile_is_refused_before_work_starts(machine, monkeypatch):
    def refuse(model, **_):
        raise RuntimeError("torch.compile is not supported on Python 4")

    install(machine, USUAL)
    monkeypatch.setattr(torch, "compile", refuse)
    with pytest.raises(UsageError, match=r"--compile does not work with Python .*not supported on Python 4"):
        compiled(network(), settings(compile=True))


@pytest.mark.parametrize("channels_last", [False, True])
def test_channels_last_changes_the_memory_layout_and_no_value(channels_last):
    model, plain = in_memory_format(network(), settings(channels_last=channels_last)), network()

    weight = model[0].weight
    assert weight.is_contiguous(memory_format=torch.channels_last) == channels_last
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), plain.parameters(), strict=True))
    assert list(model.state_dict()) == list(plain.state_dict())
