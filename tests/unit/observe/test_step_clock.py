"""The step clock splits each step of any script into phases that add up."""

import json
import os
from weakref import ref

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from samestep.base.errors import UsageError
from samestep.base.place import Place
from samestep.observe.clock_file import ClockFile, ClockOptions
from support.clocked_scripts import loader, plain, spent, train


def test_each_phase_of_a_plain_loop_occurs_once(clock):
    def script():
        train(*plain(), loader())

    header, lines, last = clock(script, warm_up=1)
    # Time of no phase passes before a batch, before its forward, and before the optimizer.
    phases = {"data": 1, "forward": 1, "backward": 1, "optimizer": 1, "other": 3}
    assert [spent(line) for line in lines] == [phases, phases]
    assert [(line["step"], line["samples"], line["seconds"]) for line in lines] == [(1, 4, 7), (2, 4, 7)]
    assert [(line["loaded"], line["elements"]) for line in lines] == [(4, 12), (4, 12)]
    assert not any("evaluated" in line for line in lines)
    assert lines[1]["at"] == pytest.approx(lines[0]["at"] + 7)
    assert (header["format"], header["rank"], header["size"], header["kind"]) == (1, 0, 1, "serial")
    assert (header["device"], header["sync"], header["steps"]) == ("cpu", "", None)
    assert header["node_processors"] >= header["processors"]
    assert header["memory_bytes"] > 0
    assert (last["ended"], last["message"], last["samples_per_epoch"]) == ("end", "", 12)
    assert last["peak_memory_bytes"] > 1 << 20


def test_the_time_of_a_loader_inside_another_is_loading(clock):
    class Pairs(IterableDataset):
        def __iter__(self):
            return zip(loader(), loader(), strict=True)

    def script():
        train(*plain(), (first for first, _ in DataLoader(Pairs(), batch_size=None)))

    _, lines, _ = clock(script, warm_up=1)
    phases = {"data": 1, "forward": 1, "backward": 1, "optimizer": 1, "other": 3}
    assert [spent(line) for line in lines] == [phases, phases]


def test_the_time_of_a_nested_loader_is_loading_before_and_after_the_first_model_call(clock):
    class Evaluated(IterableDataset):
        def __iter__(self):
            for _ in range(3):
                for (batch,) in loader():
                    nn.Linear(3, 1)(batch)
                yield batch

    def script():
        train(*plain(), ((batch,) for batch in DataLoader(Evaluated(), batch_size=None)))

    _, lines, _ = clock(script, warm_up=1)
    phases = {"data": 4, "forward": 5, "backward": 1, "optimizer": 1, "other": 3}
    assert [spent(line) for line in lines] == [phases, phases]


def test_a_loader_that_the_script_releases_is_freed(clock):
    gone = []

    def script():
        model, optimizer = plain()
        for _ in range(4):
            batches = loader()
            gone.append(ref(batches.dataset))
            train(model, optimizer, batches)

    clock(script)
    assert [one() is None for one in gone] == [True, True, True, False]


def test_the_samples_of_an_epoch_can_be_given(clock):
    _, _, last = clock(lambda: train(*plain(), loader()), samples_per_epoch=100)

    assert last["samples_per_epoch"] == 100


def test_the_run_is_stopped_after_the_requested_steps(clock):
    def script():
        train(*plain(), loader(samples=400))

    _, lines, last = clock(script, steps=4, warm_up=3)
    assert [line["step"] for line in lines] == [3, 4, 5, 6]
    assert (last["ended"], last["made"]) == ("steps", 7)


def test_an_evaluation_marks_the_step_that_follows(clock):
    def script():
        model, optimizer = plain()
        for _ in range(2):
            model.train()
            train(model, optimizer, loader())
            model.eval()
            with torch.no_grad():
                for (batch,) in loader(samples=4):
                    model(batch)

    _, lines, _ = clock(script)
    assert [line.get("evaluated", False) for line in lines] == [False, False, False, True, False, False]
    assert [line["samples"] for line in lines] == [4] * 6


def test_batches_of_an_evaluation_are_not_counted(clock):
    def script():
        model, optimizer = plain()
        for _ in range(3):
            for batch in loader(samples=4):
                with torch.no_grad():
                    model.eval()(*batch)  # an agent acts, then learns from its action
                train(model.train(), optimizer, [batch])
            with torch.no_grad():
                for (batch,) in loader(samples=40, batch_size=5):
                    model.eval()(batch)

    _, lines, last = clock(script, warm_up=1)
    assert [(line["samples"], line["loaded"], line["evaluated"]) for line in lines] == [(4, 4, True)] * 2
    assert last["samples_per_epoch"] == 4


def test_the_epoch_is_that_of_the_trained_loader_after_an_evaluation_within_it(clock):
    def script():
        model, optimizer = plain()
        for k, batch in enumerate(loader(samples=12)):
            train(model.train(), optimizer, [batch])
            if k == 0:
                with torch.no_grad():
                    for (held_out,) in loader(samples=40, batch_size=5):
                        model.eval()(held_out)

    *_, last = clock(script)
    assert last["samples_per_epoch"] == 12


def test_calls_of_a_teacher_without_gradients_do_not_count_as_evaluation(clock):
    def script():
        teacher = nn.Linear(3, 1).eval()
        student, optimizer = plain()
        for (batch,) in loader():
            with torch.no_grad():
                target, again = teacher(batch), student(batch)
            (student(batch) - target - again).square().mean().backward()
            optimizer.step()

    _, lines, _ = clock(script)
    assert [(line["samples"], line.get("evaluated")) for line in lines] == [(4, None)] * 3


def test_a_call_in_evaluation_mode_with_a_backward_counts_as_training(clock):
    def script():
        model, optimizer = plain()
        train(model.eval(), optimizer, loader())

    _, lines, _ = clock(script)
    assert [(line["samples"], line.get("evaluated")) for line in lines] == [(4, None)] * 3


class Summing(nn.Module):
    """A model that sums its first input."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, first, *others):
        return self.weight * (torch.nested.to_padded_tensor(first, 0.0) if first.is_nested else first).sum()


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize(
    ("given", "samples"),
    [
        (lambda: [torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)])], 2),
        (lambda: [torch.ones(0, 3), torch.ones(9, 2)], 0),
    ],
    ids=["of several lengths", "without rows"],
)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_samples_are_the_rows_of_the_first_tensor(clock, given, samples, is_training):
    def script():
        model = Summing().train(is_training)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(*given()).backward()
        optimizer.step()

    _, (line,), _ = clock(script)
    assert line["samples"] == samples


def test_loaded_samples_and_the_rows_of_calls_are_both_recorded(clock):
    """The first dimension is time, and the model is called twice: neither is the batch size."""

    def script():
        model = nn.LSTM(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        data = TensorDataset(torch.randn(10, 7, 3))
        for batch in DataLoader(data, 4, collate_fn=lambda them: torch.stack([one for (one,) in them], 1)):
            (model(batch)[0].mean() + model(batch.flip(0))[0].mean()).backward()
            optimizer.step()

    _, lines, last = clock(script)
    assert [(line["samples"], line["loaded"]) for line in lines] == [(14, 4), (14, 4), (14, 2)]
    assert [line["elements"] for line in lines] == [2 * 7 * 3 * batch for batch in (4, 4, 2)]
    assert last["samples_per_epoch"] == 10


def test_fetching_a_batch_before_backward_does_not_end_forward(clock):
    def script():
        model, optimizer = plain()
        batches = iter(loader(samples=20))
        (batch,) = next(batches)
        for _ in range(4):
            output = model(batch)
            (batch,) = next(batches)
            output.square().mean().backward()
            optimizer.step()

    _, lines, _ = clock(script, warm_up=1)
    assert [spent(line) for line in lines] == [
        {"data": 1, "forward": 2, "backward": 1, "optimizer": 1, "other": 2}
    ] * 3


def test_a_script_without_a_step_has_a_file_without_steps(clock):
    header, lines, last = clock(lambda: None)
    assert (header["format"], lines, last["ended"], last["samples_per_epoch"]) == (1, [], "end", None)


@pytest.mark.parametrize("asked", ["gloo", None, "cpu:gloo"])
def test_the_back_end_is_recorded_if_the_script_destroys_its_group(clock, asked):
    def script():
        dist.init_process_group(asked, store=dist.HashStore(), rank=0, world_size=1)
        try:
            model, optimizer = plain()
            for (batch,) in loader():
                model(batch).square().mean().backward()
                dist.all_reduce(model.weight.grad)
                optimizer.step()
        finally:
            dist.destroy_process_group()

    header, lines, _ = clock(script)
    assert (header["backend"], header["sync"], len(lines)) == ("gloo", "by hand", 3)


def test_files_of_another_run_are_not_overwritten(tmp_path, monkeypatch):
    clocking = ClockOptions(folder=tmp_path / "clock")
    ClockFile(clocking, Place(), "serial")
    with pytest.raises(UsageError, match=r"rank-0\.jsonl"):
        ClockFile(clocking, Place(), "serial")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")  # the workers were restarted
    ClockFile(clocking, Place(), "serial")


def test_a_partial_write_is_continued(tmp_path, monkeypatch):
    file = ClockFile(ClockOptions(folder=tmp_path), Place(), "serial")
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:7]))
    file.write([{"step": 1, "seconds": 0.5}])
    assert json.loads(file.path.read_text()) == {"step": 1, "seconds": 0.5}


def test_written_steps_can_be_removed(tmp_path):
    file = ClockFile(ClockOptions(folder=tmp_path), Place(), "serial")
    file.forget_steps()
    file.header(device=torch.device("cpu"), backend="", sync="")
    file.write([{"step": 1}, {"step": 2}])
    file.forget_steps()
    file.write([{"step": 3}])
    first, *steps = map(json.loads, file.path.read_text().splitlines())
    assert (first["rank"], steps) == (0, [{"step": 3}])
