"""``samestep doctor -n``: real workers, real sockets, a real process group."""

import json

from support.forked_commands import samestep


def test_two_workers_are_examined_and_joined(tmp_path):
    ended = samestep("doctor", "-n", 2, "--json", "--run-folder", tmp_path)
    record = json.loads(ended.out)

    assert ended.code == int(record["hurts"]), ended.err
    assert [rank["place"]["rank"] for rank in record["ranks"]] == [0, 1]
    assert {rank["launcher"] for rank in record["ranks"]} == {"samestep"}
    failures = ("cannot join", "sum over all", "The check of", "not the folder", "does not keep")
    assert [
        one["text"] for one in record["findings"] if any(words in one["text"] for words in failures)
    ] == []
    assert list(tmp_path.iterdir()) == []


def test_a_finding_that_hurts_is_exit_code_1_and_printed_once(tmp_path):
    ended = samestep(
        "doctor", "-n", 2, "--no-devices", "--run-folder", tmp_path, GLOO_SOCKET_IFNAME="nonsense0"
    )

    assert ended.code == 1
    assert "problem (ranks 0-1): GLOO_SOCKET_IFNAME=nonsense0 names nonsense0, but this host has" in ended.out
    assert ended.out.count("ranks       0-1 on ") == 1
    assert "ended with exit code" not in ended.err  # the report has told why
