"""A step ends with its optimizer, with the last of several, or without one with its backward."""

import torch
from torch import nn

from support.clocked_scripts import loader, plain, spent, train


def test_a_cycle_of_several_optimizers_is_one_step(clock):
    def script():
        (one, its), (other, others) = plain(), plain()
        for number, (batch,) in enumerate(loader(samples=60)):
            one(batch).mean().backward()
            its.step()
            if number % 3 == 2:
                other(batch).mean().backward()
                others.step()

    _, lines, _ = clock(script, warm_up=3)
    assert [line["step"] for line in lines] == [3]  # the first of five cycles shows both optimizers
    assert [line["samples"] for line in lines] == [16]
    assert lines[0]["optimizer"] == 4


def test_steps_that_were_parts_of_a_cycle_are_removed(clock):
    def script():
        (one, its), (other, others) = plain(), plain()
        for _ in range(4):
            train(one, its, loader())
            train(other, others, loader(samples=4))

    _, lines, last = clock(script, warm_up=1)
    assert [(line["step"], line["samples"]) for line in lines] == [(1, 16), (2, 16)]
    assert last["made"] == 3


def test_the_run_stops_after_the_requested_steps_if_the_last_optimizer_of_a_cycle_is_no_longer_used(clock):
    def script():
        (one, its), (other, others) = plain(), plain()
        for _ in range(4):
            train(one, its, loader(samples=4))
            train(other, others, loader(samples=4))
        train(one, its, loader(samples=400))

    _, lines, last = clock(script, warm_up=1, steps=7)
    assert [line["samples"] for line in lines] == [8, 8, 12, 4, 4, 4, 4]
    assert last["ended"] == "steps"


def test_all_samples_are_counted_if_a_second_optimizer_replaces_the_first(clock):
    def script():
        model, optimizer = plain()
        train(model, optimizer, loader())
        train(model, torch.optim.Adam(model.parameters()), loader())

    _, lines, _ = clock(script)
    assert sum(line["samples"] for line in lines) == 24


def test_time_after_an_optimizer_step_inside_backward_is_backward(clock):
    def script():
        model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
        optimizers = {one: torch.optim.SGD([one], lr=0.1) for one in model.parameters()}
        for one in model.parameters():
            one.register_post_accumulate_grad_hook(lambda one: optimizers[one].step())
        for (batch,) in loader(samples=20):
            model(batch).square().mean().backward()

    _, lines, _ = clock(script, warm_up=1)
    phases = {"data": 1, "forward": 1, "backward": 5, "optimizer": 4, "other": 3}
    assert [spent(line) for line in lines] == [phases] * 3


def test_forward_and_backward_of_a_closure_are_part_of_its_step(clock):
    def script():
        model = nn.Linear(3, 1)
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)
        batch = torch.ones(4, 3)

        def closure():
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            loss.backward()
            return loss

        for _ in range(2):
            optimizer.step(closure)

    _, lines, _ = clock(script)
    assert len(lines) == 2
    calls = lines[1]["samples"] / 4
    assert spent(lines[1]) == {"forward": calls, "backward": calls, "optimizer": calls + 1, "other": 1}


def test_without_an_optimizer_each_backward_ends_a_step(clock):
    def script():
        model = nn.Linear(3, 1)
        for (batch,) in loader():
            model(batch).square().mean().backward()
            for parameter in model.parameters():
                parameter.data -= 0.1 * parameter.grad
                parameter.grad = None

    _, lines, _ = clock(script)
    assert [spent(line) for line in lines][1:] == [{"data": 1, "forward": 1, "backward": 1, "other": 3}] * 2


def test_accumulation_over_several_batches_is_one_step(clock):
    def script():
        train(*plain(), loader(samples=24), accumulate=3)

    _, lines, _ = clock(script)
    assert [line["samples"] for line in lines] == [12, 12]
    assert spent(lines[1]) == {"data": 3, "forward": 3, "backward": 3, "optimizer": 1, "other": 7}
