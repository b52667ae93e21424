"""Other threads of a script print, and read and call a model, during an equivalence check."""

import itertools
import random
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from samestep.autopilot.equivalence.disturbance import Disturbance, DisturbedWeights
from samestep.autopilot.equivalence.effects import quiet
from samestep.autopilot.equivalence.unsplit_call import ModuleRun
from samestep.autopilot.equivalence.weight_access import calling, reading
from samestep.autopilot.split.bypassed_modules import functional_calls, obstacle
from samestep.autopilot.split.call_arguments import CallArguments

pytestmark = pytest.mark.usefixtures("_frequent_switches")


def test_a_thread_prints_while_the_prints_of_a_call_are_suppressed(capsys):
    with ThreadPoolExecutor(1) as pool:
        for number in range(100):
            beside = pool.submit(print, number)
            with quiet() as printed:
                print("in the call")
                pool.submit(print, number, file=sys.stderr).result()
            assert printed.any
            beside.result()
        with quiet() as printed:
            pool.submit(print, "beside").result()
        assert not printed.any

    found = capsys.readouterr()
    assert found.out.split() == [*map(str, range(100)), "beside"]
    assert found.err.split() == [*map(str, range(100))]


@pytest.mark.parametrize("of", [lambda model: model, lambda model: model[0]], ids=["whole", "part"])
def test_a_thread_reads_no_disturbed_weights(of):
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    expected, over = model[0].weight.clone(), threading.Event()

    def read():
        equal = []
        while not over.is_set():
            with reading(of(model)):
                equal.append(torch.equal(model[0].weight, expected))
        return equal

    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(read)
        for seed in range(200):
            with DisturbedWeights(model).applied(Disturbance(2, seed=seed)):
                assert not torch.equal(model[0].weight, expected)
        over.set()
        assert set(found.result()) == {True}


def test_a_forward_calls_parts_of_a_checked_module_in_threads():
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())

    def call():
        with calling(model[0]):
            return True

    with ThreadPoolExecutor(1) as pool, DisturbedWeights(model).applied(Disturbance(2)):
        assert pool.submit(call).result()
        with reading(model):  # the thread that checks it
            pass


def test_a_functional_call_in_another_thread_is_no_obstacle():
    model, running, done = nn.Linear(3, 3), threading.Event(), threading.Event()

    class Waits(nn.Module):
        def forward(self):
            running.set()
            done.wait()

    with functional_calls(), ThreadPoolExecutor(1) as pool:
        call = pool.submit(torch.func.functional_call, Waits(), {}, ())
        running.wait()
        assert obstacle() is None
        done.set()
        call.result()
        seen = []
        model.register_forward_hook(lambda *_: seen.append(obstacle()))
        torch.func.functional_call(model, dict(model.named_parameters()), (torch.ones(3),))
        assert seen[0] is not None


@pytest.mark.parametrize("is_beside", [True, False])
def test_draws_of_other_threads_are_distinguished_from_those_of_the_model(is_beside):
    class Skips(nn.Linear):
        def forward(self, x):
            if is_beside:
                pool.submit(random.random).result()
            return super().forward(x) if random.random() < 2 else x

    before = random.getstate()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()
        number = itertools.count(1)
        if is_beside:  # it draws another number of times in each call
            pool.submit = lambda call, submit=pool.submit: submit(
                lambda: [call() for _ in range(next(number))]
            )
        run = ModuleRun(lambda module, *args: module(*args), Skips(3, 3), torch.device("cpu"))
        found = run.recorded(CallArguments((torch.ones(4, 3),)))
    random.setstate(before)
    assert (found is None) == is_beside
    assert run.has_beside == is_beside
