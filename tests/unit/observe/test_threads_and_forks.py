"""Threads and processes other than the thread that trains are not clocked."""

import os
from threading import Thread

import torch
from torch.utils.data import DataLoader, default_collate

from samestep.base.place import Place
from samestep.observe.clock_file import ClockFile, ClockOptions
from samestep.observe.step_clock import ScriptClock
from support.clocked_scripts import loader, plain, spent, train


def in_a_thread(do):
    thread = Thread(target=do)
    thread.start()
    thread.join()


def test_work_of_other_threads_is_in_no_phase_and_not_counted(clock):
    def script():
        (model, optimizer), (other, others) = plain(), plain()
        batches = iter(loader(samples=100))

        def beside(*_):
            def do():
                other(next(batches)[0]).mean().backward()
                others.step()

            in_a_thread(do)

        in_a_thread(lambda: model(next(batches)[0]))
        train(model, optimizer, loader(samples=4))
        model.register_forward_hook(beside)
        model.weight.register_hook(beside)
        for batch in loader():
            train(model, optimizer, [batch])
            beside()

    _, lines, _ = clock(script, warm_up=2)
    phases = {"data": 1, "forward": 1, "backward": 1, "optimizer": 1, "other": 3}
    assert [spent(line) for line in lines] == [phases, phases]
    assert [(line["samples"], line.get("evaluated")) for line in lines] == [(4, None)] * 2


def test_training_in_another_thread_is_clocked(clock):
    def script():
        model, optimizer = plain()
        model(torch.ones(4, 3))
        in_a_thread(lambda: train(model, optimizer, loader(samples=20)))

    _, lines, last = clock(script, warm_up=2)
    phases = {"data": 1, "forward": 1, "backward": 1, "optimizer": 1, "other": 3}
    assert [spent(line) for line in lines] == [phases, phases]
    assert [line["loaded"] for line in lines] == [4, 4]
    assert (last["ended"], last["made"], last["samples_per_epoch"]) == ("end", 4, 20)


def test_training_in_a_thread_is_clocked_while_the_main_thread_waits_for_data(clock):
    """Reinforcement learning does so: the actor has called the model before the learner trains it."""

    def script():
        model, optimizer = plain()
        model(torch.ones(4, 3))

        def collated(samples):
            in_a_thread(lambda: train(model, optimizer, loader(samples=12)))
            return default_collate(samples)

        next(iter(DataLoader(loader().dataset, batch_size=4, collate_fn=collated)))

    _, lines, last = clock(script)
    assert [line["loaded"] for line in lines] == [4, 4]
    assert last["ended"] == "end"


def test_a_fork_that_runs_to_the_end_of_the_script_writes_no_steps(clock):
    process = os.getpid()

    def script():
        model, optimizer = plain()
        train(model, optimizer, loader())
        child = os.fork()
        if child:
            assert os.waitpid(child, 0)[1] == 0
            train(model, optimizer, loader())

    try:
        _, lines, last = clock(script)
    finally:
        if os.getpid() != process:
            os._exit(0)
    assert [line["step"] for line in lines] == list(range(6))
    assert last["made"] == 6


def test_batches_of_a_fork_are_not_logged(tmp_path):
    clocking = ClockOptions(folder=tmp_path)
    clock = ScriptClock(ClockFile(clocking, Place(), "serial"), clocking, stop=lambda: None)
    with clock.attached():
        train(*plain(), loader())
        before = len(clock._log)
        child = os.fork()
        if not child:
            list(loader())
            os._exit(len(clock._log) - before)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    clock.end("end")
