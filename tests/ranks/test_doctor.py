"""The doctor's ranks exchange results through a store, and rank 0 reports all."""

import threading

import pytest

from samestep.doctor import report as reporting
from samestep.doctor.context import Finding, RankResult, Result, ResultStore
from samestep.doctor.report import agree_on_exit_code, gather, lines, record
from support.stores import Memory


def on_ranks(fn, ranks):
    """Call ``fn(rank)`` on a thread for each rank; return the results, in order."""
    results, errors = {}, []

    def run(rank):
        try:
            results[rank] = fn(rank)
        except Exception as error:
            errors.append(error)

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


def gathered(size, *, absent=(), joint=Result, wait_s=20.0, hosts=None):
    board = ResultStore(Memory())
    hosts = hosts or ["node0"] * size

    def rank_main(rank):
        own = examined(rank, size, host=hosts[rank])
        report = gather(board, own, joint=joint, wait_s=wait_s)
        return report, agree_on_exit_code(board, rank, report)

    outcomes = on_ranks(rank_main, [rank for rank in range(size) if rank not in absent])
    assert [report for report, _ in outcomes[1:]] == [None] * (len(outcomes) - 1)
    assert len({code for _, code in outcomes}) == 1
    return outcomes[0]


@pytest.mark.parametrize("size", [2, 3, 5])
def test_rank_0_reports_all_ranks(size):
    report, code = gathered(size)
    assert code == 0
    assert [one.rank for one in report.ranks] == list(range(size))
    told = "\n".join(lines(report))
    assert f"ranks       0-{size - 1} on node0" in told
    assert "threads     1" in told


def test_a_missing_rank_is_named():
    report, code = gathered(3, absent=(1,), wait_s=0.3)
    assert code == 1
    (finding,) = record(report)["findings"]
    assert finding["text"].startswith("rank 1 of 3 ")


def test_a_finding_of_a_joint_check_has_the_ranks_that_found_it():
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


def test_joint_checks_are_skipped_if_a_rank_is_missing():
    def never():
        raise AssertionError

    gathered(2, absent=(1,), wait_s=0.1, joint=never)


class Interrupted(ResultStore):
    """The store of a rank that exits before it has posted all its results."""

    def post(self, key, value):
        if not key.startswith("found"):
            super().post(key, value)


def test_a_rank_that_exits_early_is_named(monkeypatch):
    monkeypatch.setattr(reporting, "_GRACE_S", 0.3)
    memory = Memory()

    def rank_main(rank):
        own_store = (ResultStore, Interrupted)[rank](memory)
        return gather(own_store, examined(rank, 2), wait_s=5.0, joint=Result)

    found, _ = on_ranks(rank_main, [0, 1])
    (finding,) = record(found)["findings"]
    assert finding["ranks"] == [1]
    assert "hung" in finding["text"]


def test_waiting_for_rank_0_times_out(monkeypatch):
    monkeypatch.setattr(reporting, "_GRACE_S", 0.0)
    with pytest.raises(TimeoutError, match="rank 0"):
        on_ranks(lambda _: gather(ResultStore(Memory()), examined(1, 2), wait_s=0.05), [1])


def test_a_closed_store_is_reported_as_exit_of_rank_0():
    class Gone(Memory):
        def set(self, key, value):
            raise RuntimeError("Broken pipe")

    with pytest.raises(ConnectionError, match="rank 0 left: Broken pipe"):
        ResultStore(Gone()).post("a", "b")
