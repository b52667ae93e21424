"""Buckets are sent during backward, in the same order on all ranks, and only where that is safe."""

import threading
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from samestep.base.errors import OutOfStep, UsageError
from samestep.base.place import Place
from samestep.parallel.gradients import bucketed
from samestep.parallel.gradients.replicate import replicate
from samestep.ranks.world.thread_world import run_ranks
from support.backward_cases import (
    assert_equal_gradients,
    gradients,
    mean_loss,
    network,
    plain,
    samples,
    share_of,
    shared_reentrant_checkpoint,
)

TINY = 80


class RecordingWorld:
    """A world that records each message among the events of the model's layers."""

    def __init__(self, world):
        self._world = world
        self.events = []

    def __getattr__(self, name):
        return getattr(self._world, name)

    def average_later(self, tensor):
        self.events.append("sent")
        return self._world.average_later(tensor)


def events_of_backward(world, run, steps):
    """Return the events of the last of `steps` backwards: buckets "sent", and "first layer" reached."""
    recorder, model = RecordingWorld(world), network()
    next(model.parameters()).register_hook(lambda _: recorder.events.append("first layer"))
    with replicate(model, recorder, bucket_bytes=TINY):
        for _ in range(steps):
            recorder.events.clear()
            run(model, samples(), 1.0)
    return recorder.events


def test_full_buckets_are_sent_before_backward_has_reached_the_first_layer():
    for events in run_ranks(events_of_backward, 2, plain, 2):
        assert events.index("first layer") >= 2
        assert events.count("sent") > events.index("first layer")


@pytest.mark.parametrize(("streams", "early"), [("aaaaaa", 4), ("aaaabb", 3), ("abbbbb", 0), ("aaabaa", 2)])
def test_nothing_more_is_sent_early_once_gradients_arrive_on_another_stream(monkeypatch, streams, early):
    """A stand-in for streams: the gradients of each rank's backward arrive on these."""
    own = threading.local()

    def stream(_):
        own.number = getattr(own, "number", -1) + 1
        return streams[own.number]

    monkeypatch.setattr(bucketed, "current_stream", stream)
    for events in run_ranks(events_of_backward, 2, plain, 2):
        assert events.index("first layer") == early
        assert events.count("sent") == 5


def test_the_first_synchronization_sends_nothing_early():
    for events in run_ranks(events_of_backward, 2, plain, 1):
        assert events.index("first layer") == 0


def test_only_the_first_of_several_replicated_models_sends_early():
    def on_rank(world):
        recorder, models, early = RecordingWorld(world), [network(0), network(1)], []
        with (
            replicate(models[0], recorder, bucket_bytes=TINY),
            replicate(models[1], recorder, bucket_bytes=TINY),
        ):
            for model in models:
                next(model.parameters()).register_hook(lambda _: recorder.events.append("first layer"))
                plain(model, samples(), 1.0)
                recorder.events.clear()
                plain(model, samples(), 1.0)
                early.append("sent" in recorder.events[: recorder.events.index("first layer")])
        return early

    assert run_ranks(on_rank, 2) == [[True, False]] * 2


def test_nothing_is_sent_early_beside_a_batch_norm_that_communicates_in_backward():
    class Synchronized(nn.SyncBatchNorm):
        """A SyncBatchNorm without communication, which needs a GPU."""

        forward = nn.BatchNorm1d.forward

    def on_rank(world):
        recorder = RecordingWorld(world)
        model = nn.Sequential(nn.Linear(3, 5), Synchronized(5), nn.Linear(5, 5), nn.Linear(5, 2)).double()
        next(model.parameters()).register_hook(lambda _: recorder.events.append("first layer"))
        with replicate(model, recorder, bucket_bytes=TINY):
            for _ in range(2):
                recorder.events.clear()
                plain(model, samples(), 1.0)
        return recorder.events

    for events in run_ranks(on_rank, 2):
        assert events[0] == "first layer"
        assert "sent" in events


def test_nothing_is_sent_early_if_a_gradient_changes_twice():
    for events in run_ranks(events_of_backward, 2, shared_reentrant_checkpoint, 3):
        last = len(events) - 1 - events[::-1].index("first layer")
        assert "sent" not in events[:last]


def test_a_gradient_that_changes_after_it_was_sent_is_sent_again():
    """Nested graphs begin to share parameters after overlap has begun."""

    def run(model, inputs, weight):
        for case in (plain, plain, shared_reentrant_checkpoint, plain):
            case(model, inputs, weight)

    def on_rank(world):
        model = network()
        with replicate(model, world, bucket_bytes=TINY):
            run(model, *share_of(world, samples(), [4, 3]))
        return gradients(model)

    model = network()
    run(model, samples(), 1.0)
    for found in run_ranks(on_rank, 2):
        assert_equal_gradients(found, gradients(model))


def checkpointed(model, inputs, weight, uses):
    """In each step, one block in `uses` nested graphs; in none for 0."""
    for count in uses:
        hidden = inputs.clone().requires_grad_()
        for _ in range(count):
            hidden = checkpoint(model[:1], hidden[:, :3], use_reentrant=True)
        mean_loss(model[1:](hidden) if count else model(hidden), weight).backward()


def checkpointed_rank(world, uses):
    model = network()
    with replicate(model, world, bucket_bytes=1, check_every=0):
        checkpointed(model, *share_of(world, samples(), [4, 3]), uses[world.place.rank])
    return gradients(model)


@pytest.mark.parametrize(
    "uses", [("12", "11"), ("111", "121"), ("021", "011"), ("112", "120"), ("22", "10"), ("022", "032")]
)
def test_all_ranks_send_again_what_changed_on_some(uses):
    """Only this catches gradients of different parameters being averaged with each other."""
    uses = [[int(count) for count in counts] for counts in uses]
    model = network()
    for rank in range(2):
        share = share_of(SimpleNamespace(place=Place(rank=rank, size=2)), samples(), [4, 3])
        checkpointed(model, *share, uses[rank])
    expected = {name: gradient / 2 for name, gradient in gradients(model).items()}
    for found in run_ranks(checkpointed_rank, 2, uses):
        assert_equal_gradients(found, expected)


def test_nested_graphs_of_one_rank_alone_are_an_error_if_they_begin_late_and_change_what_was_sent():
    with pytest.raises(OutOfStep):
        run_ranks(checkpointed_rank, 2, [[0, 2], [0, 0]])


def test_messages_of_a_failed_backward_do_not_affect_the_next_gradients():
    def run(model, inputs, weight):
        plain(model, inputs, weight)
        hidden = model[:3](inputs)
        hidden.register_hook(fail)
        with pytest.raises(ZeroDivisionError):
            mean_loss(model[3:](hidden), weight).backward()  # the last layer has been sent by then
        model.zero_grad()
        plain(model, inputs + 1, weight)

    def on_rank(world):
        model = network()
        with replicate(model, world, bucket_bytes=TINY):
            run(model, *share_of(world, samples(), [4, 3]))
        return gradients(model)

    model = network()
    run(model, samples(), 1.0)
    for found in run_ranks(on_rank, 2):
        assert_equal_gradients(found, gradients(model))


def fail(_):
    raise ZeroDivisionError


def test_parameters_that_stay_frozen_are_removed_from_buckets_once_frozen_on_all_ranks():
    """The last layer's bucket is sent first; with its bias frozen it is never full."""

    def on_rank(world):
        recorder, model, early = RecordingWorld(world), network(), []
        next(model.parameters()).register_hook(lambda _: recorder.events.append("first layer"))
        with replicate(model, recorder, bucket_bytes=TINY) as replicas:
            for step in range(40):
                model[4].bias.requires_grad_(step < (2 if world.place.is_main else 14))
                recorder.events.clear()
                plain(model, samples(), 1.0)
                early.append("sent" in recorder.events[: recorder.events.index("first layer")])
            model[4].bias.requires_grad_()
            model.zero_grad()
            plain(model, *share_of(world, samples(), [4, 3]))
            replicas.check()
        return early, gradients(model)

    model = network()
    plain(model, samples(), 1.0)
    for early, found in run_ranks(on_rank, 2):
        assert early[1]
        assert not early[20]
        assert early[39]
        assert_equal_gradients(found, gradients(model))


def test_parameters_unfrozen_on_one_rank_are_reported_there():
    def on_rank(world):
        model = network()
        model[0].requires_grad_(False)
        with replicate(model, world):
            plain(model, samples(), 1.0)
            if world.place.is_main:
                plain(model, samples(), 1.0)
                return
            model[0].requires_grad_()
            with pytest.raises(OutOfStep, match=r"0\.weight, 0\.bias\)"):
                plain(model, samples(), 1.0)

    run_ranks(on_rank, 2)


def test_different_parameters_unfrozen_on_each_rank_are_reported_on_all():
    def on_rank(world):
        model = network().requires_grad_(False)
        model[4].requires_grad_()
        with replicate(model, world):
            model[2 * world.place.rank].requires_grad_()
            with pytest.raises(OutOfStep, match=r"rank \d: 0\.bias, 0\.weight"):
                plain(model, samples(), 1.0)

    run_ranks(on_rank, 2)


def test_a_dtype_changed_after_replicate_is_refused():
    def on_rank(world):
        model = network(dtype=torch.float32)
        with replicate(model, world):
            model.double()
            with pytest.raises(UsageError, match=r"torch.float32 .* torch.float64"):
                plain(model, samples(), 1.0)

    run_ranks(on_rank, 2)


def test_the_wait_at_the_end_of_backward_is_measured():
    def on_rank(world):
        model = network()
        with replicate(model, world) as replicas:
            before = replicas.exposed_s
            plain(model, samples(), 1.0)
            return before, replicas.exposed_s

    for before, after in run_ranks(on_rank, 2):
        assert before == 0
        assert after > 0
