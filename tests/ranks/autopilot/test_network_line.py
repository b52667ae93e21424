"""Messages between the main rank and helpers arrive with all their tensors, and only those of the job."""

import signal
import socket
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from samestep.autopilot.helpers.joined_team import NetworkHelperLine, NetworkMainLine, NetworkTeamWorld
from samestep.autopilot.helpers.messages import Rows, RowsOfTensor
from samestep.autopilot.split.slice_context import OtherRankFailedError
from samestep.base.errors import PeerLost
from samestep.parallel.sharding import share
from samestep.ranks.world.protocol import SoloWorld
from samestep.ranks.world.thread_world import run_ranks

KEY = b"k" * 32
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.complex64, torch.int64, torch.uint8, torch.bool)


@dataclass(frozen=True)
class Message:
    values: Any
    call: int = 0
    released: tuple[int, ...] = ()
    text: str = field(default="a")


def on_ranks(size, of_main, of_helper, *, keys=None):
    """Run the main rank and its helpers as threads with connections; return what each returned."""
    pairs = {rank: connected() for rank in range(1, size)}

    def run(world):
        rank = world.place.rank
        if rank == 0:
            line = NetworkMainLine(world, {r: ours for r, (ours, _) in pairs.items()}, KEY, timeout_s=20)
            try:
                return of_main(world, line)
            finally:
                world.barrier()  # all helpers have closed their sides
                line.close()
        line = NetworkHelperLine(world, pairs[rank][1], (keys or {}).get(rank, KEY))
        with closing(line):
            found = of_helper(world, line)
        world.barrier()
        return found

    return run_ranks(run, size)


def connected():
    """Return both ends of a connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        end = socket.create_connection(server.getsockname())
        return end, server.accept()[0]


@st.composite
def tensors(draw):
    """Draw a tensor of any type, shape and order of dimensions, which may be a part of another."""
    shape = draw(st.lists(st.integers(0, 4), min_size=0, max_size=3))
    dtype = draw(st.sampled_from(DTYPES))
    value = torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype)
    if value.dim() > 1 and draw(st.booleans()):
        value = value.transpose(0, 1)
    if value.dim() and draw(st.booleans()):
        value = value[::2]
    return value


@given(st.lists(tensors(), max_size=4))
def test_helpers_receive_what_was_sent(values):
    """Only this finds a type, an order of dimensions or an empty tensor that does not arrive as it was."""
    sent = {"values": values, "twice": [*values, *values]}
    _, *received = on_ranks(3, lambda _, line: line.send(Message(sent)), lambda _, line: line.receive())
    for message in received:
        for mine, theirs in zip(values, message.values["values"], strict=True):
            assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
            assert torch.equal(mine, theirs)
            assert torch.empty_like(mine).stride() == theirs.stride()
        assert all(map(lambda a, b: a is b, message.values["values"], message.values["twice"]))


@given(st.integers(3, 9), st.integers(0, 1), st.integers(1, 2))
def test_helpers_receive_their_rows(total, dim, every):
    """Only this finds a helper that gets rows of another one, or too few."""
    shape = (total * every, 3) if dim == 0 else (3, total * every)
    value = torch.rand(shape)
    shares = [share(total, rank, 3) for rank in range(3)]

    def of_main(_, line):
        line.send(Message(value), rows=Rows({id(value): RowsOfTensor(dim, every)}, shares))

    _, *received = on_ranks(3, of_main, lambda _, line: line.receive().values)
    for rank, found in enumerate(received, 1):
        places = range(shares[rank].start * every, shares[rank].stop * every)
        index = torch.tensor([*places])
        assert found.shape == value.shape
        assert torch.equal(found.index_select(dim, index), value.index_select(dim, index))


@pytest.mark.parametrize("view", [torch.conj, lambda value: value.conj().imag])
def test_helpers_receive_their_rows_of_a_view_that_conjugates(view):
    """Only this finds a gradient of complex outputs that cannot be sent: torch conjugates it when read."""
    value = view(torch.rand(4, 3, dtype=torch.complex64))
    shares = [share(4, rank, 2) for rank in range(2)]

    def of_main(_, line):
        line.send(Message(value), rows=Rows({id(value): RowsOfTensor(0)}, shares))

    _, found = on_ranks(2, of_main, lambda _, line: line.receive().values)
    assert torch.equal(found[2:], value[2:])


def test_a_large_tensor_is_broadcast():
    """Only this finds that a broadcast and the messages are not in one order."""
    value = torch.rand(3, 1 << 18)
    sent = Message([torch.ones(2), value, torch.zeros(1)])
    _, *received = on_ranks(3, lambda _, line: line.send(sent), lambda _, line: line.receive().values)
    for found in received:
        assert [torch.equal(*pair) for pair in zip(found, sent.values, strict=True)] == [True] * 3


def test_a_message_is_repeated_with_other_tensors():
    """Only this finds that helpers keep the tensors of the first message."""
    first, second = torch.ones(4, 2), torch.full((4, 2), 2.0)

    def of_main(_, line):
        assert not line.repeat("key", [first], 1, [])
        line.send(Message(first, text="kept"), key="key")
        assert line.repeat("key", [second], 7, (3, 4))

    def of_helper(_, line):
        values = line.receive().values.clone()
        again = line.receive()
        return values, again.values, again.call, again.released, again.text

    _, (values, again, *rest) = on_ranks(2, of_main, of_helper)
    assert torch.equal(values, first)
    assert torch.equal(again, second)
    assert rest == [7, (3, 4), "kept"]


def test_the_error_of_a_helper_is_collected():
    """Only this finds that an answer is lost, or that of another helper hides it."""

    def of_main(_, line):
        line.send(Message(1))
        return line.collect()

    def of_helper(world, line):
        line.receive()
        line.answer("no such layer" if world.place.rank == 1 else "")

    assert on_ranks(3, of_main, of_helper)[0] == "no such layer"


def test_a_lost_helper_does_not_end_a_script_that_ends_by_broken_pipes():
    """Only this finds a run that ends without a word: scripts let SIGPIPE end them for ``| head``."""
    ours, theirs = connected()
    theirs.close()
    line = NetworkMainLine(SoloWorld(), {1: ours}, KEY, timeout_s=20)
    before = signal.signal(signal.SIGPIPE, signal.SIG_DFL)

    def send_until_the_loss_is_known():
        while True:
            line.send(Message(1))

    try:
        with closing(line), pytest.raises(PeerLost):
            send_until_the_loss_is_known()
    finally:
        signal.signal(signal.SIGPIPE, before)


def test_a_header_of_another_job_is_not_unpickled():
    """Only this finds a helper that runs what it receives without a proof."""

    def of_helper(_, line):
        with pytest.raises(PeerLost):
            line.receive()
        return "refused"

    found = on_ranks(2, lambda _, line: line.send(Message(1)), of_helper, keys={1: b"x" * 32})
    assert found[1] == "refused"


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_a_rank_that_fails_ends_the_collective_of_all(failing):
    """Only this finds a rank that waits in a collective which another one does not enter."""

    def run(world, line):
        team = NetworkTeamWorld(world, line)
        total = torch.ones(3)
        team.all_reduce(total)
        with pytest.raises(OtherRankFailedError):
            team.fail() if world.place.rank == failing else team.all_reduce(torch.ones(3))
        if world.place.rank == 0:
            with pytest.raises(OtherRankFailedError):  # the others do not come any more
                team.barrier()
        team.step.begin()
        team.average_later(total).wait()  # all are in step again
        return total.tolist()

    assert on_ranks(3, run, run) == [[3.0] * 3] * 3
