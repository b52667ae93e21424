"""The doctor's ranks exchange results through a store and measure their links, and rank 0 reports all."""

import threading
import time

import pytest

from samestep.studies.doctor import gather as gathering
from samestep.studies.doctor import links, pair_measurement
from samestep.studies.doctor.gather import agree_on_exit_code, gather
from samestep.studies.doctor.links import Address, measure
from samestep.studies.doctor.pair_measurement import LinkServer, measure_pair
from samestep.studies.doctor.report import lines, record
from samestep.studies.doctor.results import Finding, RankResult, Result, ResultStore
from support.stores import Memory


def on_ranks(fn, ranks):
    """Call ``fn(rank, door)`` on a thread for each rank; return the results, in order."""
    results, errors = {}, []

    def run(rank):
        door = LinkServer("127.0.0.1")
        try:
            results[rank] = fn(rank, door)
        except Exception as error:
            errors.append(error)
        finally:
            door.close()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [results[rank] for rank in ranks]


def examined(rank, size, *, host="node0", findings=(), **facts):
    return RankResult(
        rank=rank,
        size=size,
        host=host,
        summary=f"{size} workers",
        rows=(("place", f"rank {rank}"), ("threads", "1")),
        findings=findings,
        facts={"backend": "gloo", "place": {"nodes": 1}, **facts},
    )


def gathered(size, *, absent=(), joint=Result, wait_s=20.0, hosts=None, measure_s=20.0):
    board = ResultStore(Memory())
    hosts = hosts or ["node0"] * size

    def rank_main(rank, door):
        own = examined(rank, size, host=hosts[rank])
        report = gather(board, own, door, joint=joint, wait_s=wait_s, measure_s=measure_s)
        return report, agree_on_exit_code(board, rank, report)

    outcomes = on_ranks(rank_main, [rank for rank in range(size) if rank not in absent])
    assert [report for report, _ in outcomes[1:]] == [None] * (len(outcomes) - 1)
    assert len({code for _, code in outcomes}) == 1
    return outcomes[0]


@pytest.fixture
def quick(monkeypatch):
    """Bytes are sent for 10 ms each way."""
    monkeypatch.setattr(links, "_LONGEST_S", 0.01)
    monkeypatch.setattr(links, "_SHORTEST_S", 0.01)


@pytest.mark.parametrize("size", [2, 3, 5])
def test_rank_0_reports_all_ranks_and_all_links(size, quick):
    report, code = gathered(size)
    assert code == 0
    assert [one.rank for one in report.ranks] == list(range(size))
    assert [(link.a, link.b) for link in report.links] == [
        (a, b) for a in range(size) for b in range(a + 1, size)
    ]
    for link in report.links:
        assert link.error == ""
        assert 0 < link.latency_s < 1
        assert min(link.there, link.back) > 0
        assert abs(link.ahead_s) < 1  # one clock
    told = "\n".join(lines(report))
    assert f"ranks       0-{size - 1} on node0" in told
    assert "threads     1" in told
    assert "latency in us" in told


def test_a_clock_that_is_ahead_is_measured(quick, monkeypatch):
    """Rank 1's clock is an hour ahead, and the measured offset is one hour."""
    own = threading.local()

    class Clock:
        monotonic, perf_counter = time.monotonic, time.perf_counter

        def time_ns():
            return time.time_ns() + getattr(own, "ahead_ns", 0)

    monkeypatch.setattr(pair_measurement, "time", Clock)

    def rank_main(rank, door):
        own.ahead_ns = rank * 3600 * 10**9
        doors[rank] = door
        both.wait()
        if rank == 1:
            return door.answer(0, limit_s=10.0)
        at = (doors[1].address, doors[1].port)
        return measure_pair(0, 1, at=at, token=doors[1].token, window_s=0.01, limit_s=10.0)

    doors, both = {}, threading.Barrier(2)
    link, _ = on_ranks(rank_main, [0, 1])
    assert link.ahead_s == pytest.approx(3600, abs=1)


def test_a_missing_rank_is_named_and_the_others_are_measured(quick):
    report, code = gathered(3, absent=(1,), wait_s=0.3)
    assert code == 1
    (finding,) = record(report)["findings"]
    assert finding["text"].startswith("rank 1 of 3 ")
    assert [(link.a, link.b) for link in report.links] == [(0, 2)]


def test_a_finding_of_a_joint_check_has_the_ranks_that_found_it(quick):
    barrier = threading.Barrier(3)

    def try_it():
        return (
            Result(findings=(Finding(text="not here"),))
            if barrier.wait()
            else Result(rows=(("together", "well"),))
        )

    report, code = gathered(3, joint=try_it)
    assert code == 1
    (finding,) = record(report)["findings"]
    assert finding["text"] == "not here"
    assert len(finding["ranks"]) == 2


def test_joint_checks_are_skipped_if_a_rank_is_missing(quick):
    def never():
        raise AssertionError

    gathered(2, absent=(1,), wait_s=0.1, joint=never)


class Interrupted(ResultStore):
    """The store of a rank that exits before it has posted all its results."""

    unposted_key = "links"

    def post(self, key, value):
        if not key.startswith(self.unposted_key):
            super().post(key, value)


class InterruptedLater(Interrupted):
    unposted_key = "found"


@pytest.mark.parametrize("board", [Interrupted, InterruptedLater])
def test_a_rank_that_exits_early_is_named(board, quick, monkeypatch):
    monkeypatch.setattr(gathering, "_GRACE_S", 0.3)
    memory = Memory()

    def rank_main(rank, door):
        mine = (ResultStore, board)[rank](memory)
        return gather(mine, examined(rank, 2), door, wait_s=5.0, measure_s=0.5, joint=Result)

    found, _ = on_ranks(rank_main, [0, 1])
    (finding,) = record(found)["findings"]
    assert finding["ranks"] == [1]
    assert "hung" in finding["text"]


def test_links_not_measured_in_time_are_noted_and_not_reported_as_broken(quick):
    report, code = gathered(3, measure_s=0.0)
    assert code == 0
    (finding,) = record(report)["findings"]
    assert finding["text"].startswith("3 of 3 pairs of ranks were not measured")


def test_a_refused_connection_is_an_error_of_the_link(quick):
    board = ResultStore(Memory())

    def rank_main(rank, door):
        told = [Address(host="a", ip="127.0.0.1", port=door.port, token=door.token.hex()) for _ in range(2)]
        if rank == 1:
            return []
        with socket_that_refuses() as port:
            told[1] = Address(host="b", ip="127.0.0.1", port=port, token="00" * 16)
            return measure(board, told, door, rank=0, deadline=time.monotonic() + 5)

    ((link,), _) = on_ranks(rank_main, [0, 1])
    assert "Connection refused" in link.error


class socket_that_refuses:
    """A port without a listening socket."""

    def __enter__(self):
        door = LinkServer("127.0.0.1")
        door.close()
        return door.port

    def __exit__(self, *_):
        pass


def test_a_connection_with_a_wrong_token_is_refused():
    def rank_main(rank, door):
        if rank == 0:
            doors.append(door)
            ready.set()
            door.answer(1, limit_s=10.0)
            return "answered"
        ready.wait()
        at = ("127.0.0.1", doors[0].port)
        with pytest.raises(ConnectionError):
            measure_pair(1, 0, at=at, token=b"guessed.........", window_s=0.01, limit_s=5.0)
        return measure_pair(1, 0, at=at, token=doors[0].token, window_s=0.01, limit_s=5.0)

    doors, ready = [], threading.Event()
    answered, link = on_ranks(rank_main, [0, 1])
    assert answered == "answered"
    assert link.there > 0


def test_waiting_for_rank_0_times_out(monkeypatch):
    monkeypatch.setattr(gathering, "_GRACE_S", 0.0)
    with pytest.raises(TimeoutError, match="rank 0"):
        on_ranks(lambda rank, door: gather(ResultStore(Memory()), examined(1, 2), door, wait_s=0.05), [1])


def test_a_closed_store_is_reported_as_exit_of_rank_0():
    class Gone(Memory):
        def set(self, key, value):
            raise RuntimeError("Broken pipe")

    with pytest.raises(ConnectionError, match="rank 0 left: Broken pipe"):
        ResultStore(Gone()).post("a", "b")
