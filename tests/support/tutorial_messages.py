"""Checks what the tutorial's script of messages prints on four ranks of two nodes."""

import re


def assert_messages_within_and_across_nodes(output: str) -> None:
    """Check the sums of rank 0 with each rank, whether they share a node, and the sum around the ring."""
    sums = re.findall(r"rank 0 and rank (\d), (within|across)[^:]*: sum (\d+)", output)
    assert sums == [("1", "within", "2000"), ("2", "across", "2000"), ("3", "across", "2000")], output
    assert re.findall(r"around the ring: sum (\d+)", output) == ["10"], output
