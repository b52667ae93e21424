"""Ranks with conflicting facts are named in findings."""

from samestep.doctor.context import RankResult
from samestep.doctor.report import conflicts


def ranks(*changes, hosts=("node0", "node0", "node1", "node1")):
    """Return four ranks that agree, two on each of two hosts, with changes of their facts."""
    usual = {
        "versions": {"samestep": "0.2", "torch": "2.13.0", "python": "3.11.7"},
        "kind": "cpu",
        "backend": "gloo",
        "threads": {"count": 2},
        "place": {"nodes": 2},
    }
    facts = [dict(usual, cpus=[0, 1] if rank % 2 == 0 else [2, 3]) for rank in range(4)]
    for rank, change in changes:
        facts[rank] |= change
    return [
        RankResult(rank=rank, size=4, host=host, summary="", facts=own)
        for rank, (own, host) in enumerate(zip(facts, hosts, strict=True))
    ]


def findings_of(every):
    return [(finding.text, finding.hurts) for finding in conflicts(every)]


def test_ranks_that_agree_have_no_finding():
    assert findings_of(ranks()) == []


def test_another_torch_is_a_problem_and_another_python_a_note():
    other = {"samestep": "0.2", "torch": "2.12.0", "python": "3.12.0"}
    torch, python = findings_of(ranks((2, {"versions": other}), (3, {"versions": other})))
    assert torch[0].startswith(
        "The ranks differ in their version of torch: 2.13.0 on ranks 0-1, 2.12.0 on ranks 2-3."
    )
    assert torch[1] is True
    assert python[1] is False


def test_another_device_or_back_end_is_a_problem():
    found = findings_of(ranks((3, {"kind": "cuda", "backend": "nccl"})))
    assert [hurts for _, hurts in found] == [True, True]
    assert "cuda on rank 3" in found[0][0]
    assert "gloo on ranks 0-2" in found[1][0]


def test_another_number_of_threads_is_a_problem():
    ((text, hurts),) = findings_of(ranks((1, {"threads": {"count": 1}})))
    assert hurts
    assert "2 on ranks 0, 2-3, 1 on rank 1" in text


def test_ranks_with_more_threads_than_shared_cpus_are_a_problem():
    same = {"cpus": [0, 1]}
    ((text, hurts),) = findings_of(ranks((1, same)))
    assert hurts
    assert "On node0, ranks 0-1 compute with 4 threads on 2 CPU(s)" in text


def test_the_cpus_of_ranks_are_limited_by_a_quota():
    limited = {"cpus": list(range(8)), "processors": {"usable": 2}}
    ((text, _),) = findings_of(ranks((0, limited), (1, limited)))
    assert "On node0, ranks 0-1 compute with 4 threads on 2 CPU(s)" in text


def test_ranks_that_share_cpus_through_a_third_rank_are_one_group():
    every = ranks(
        (0, {"cpus": [0, 1]}), (1, {"cpus": [2, 3]}), (2, {"cpus": [1, 2]}), hosts=("a", "a", "a", "b")
    )
    ((text, _),) = findings_of(every)
    assert "ranks 0-2 compute with 6 threads on 4 CPU(s)" in text


def test_one_node_on_two_hosts_is_a_note():
    one = {"place": {"nodes": 1}}
    ((text, hurts),) = findings_of(ranks(*((rank, one) for rank in range(4))))
    assert not hurts
    assert "2 hosts (node0, node1)" in text


def test_two_ranks_on_one_gpu_are_a_problem_with_nccl():
    gpus = [{"kind": "cuda", "backend": "nccl", "uuid": uuid} for uuid in ("A", "B", "A", "C")]
    ((text, hurts),) = findings_of(ranks(*enumerate(gpus)))
    assert hurts
    assert text.startswith("Ranks 0 and 2 are on the same device (A), which nccl refuses.")
