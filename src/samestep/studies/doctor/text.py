"""Formats the report as lines: a value that all ranks share is printed once, others with their ranks."""

from collections.abc import Iterator, Mapping, Sequence

from samestep.studies.doctor.check_result import Finding, Row

_WIDTH = 12
# Values that differ between ranks are listed in one line up to this length.
_LISTED = 100


def numbers_text(numbers: Sequence[int]) -> str:
    """Return numbers as ranges.

    >>> numbers_text([3, 0, 1, 2, 7])
    '0-3, 7'
    """
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def ranks_text(ranks: Sequence[int]) -> str:
    """Return ranks in words.

    >>> ranks_text([0]), ranks_text([0, 1, 7])
    ('rank 0', 'ranks 0-1, 7')
    """
    return f"rank{'' if len(ranks) == 1 else 's'} {numbers_text(ranks)}"


def row_lines(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the rows of one rank."""
    for name, value in rows:
        yield f"  {name:<{_WIDTH}}{value}".rstrip()


def folded(rows: Mapping[int, Sequence[Row]]) -> list[Row]:
    """Return the rows of several ranks as one list.

    Args:
        rows: rows of each rank. A row without a name continues the previous row.
    """
    blocks = {rank: _blocks(own) for rank, own in rows.items()}
    names = list(dict.fromkeys(name for own in blocks.values() for name in own))
    return [
        row for name in names for row in _folded({r: own.get(name, ()) for r, own in blocks.items()}, name)
    ]


def finding_lines(
    findings: Sequence[tuple[Sequence[int], Finding]], hosts: Mapping[int, str]
) -> Iterator[str]:
    """Yield the findings, problems first; equal findings of several ranks are one line.

    Args:
        findings: ranks and finding; without ranks, a finding is about all together.
        hosts: host name of each rank.
    """
    for ranks, finding in sorted(merged(findings), key=lambda one: not one[1].hurts):
        about = f" ({ranks_text(ranks)}{_on(ranks, hosts)})" if ranks and len(hosts) > 1 else ""
        yield f"{'problem' if finding.hurts else 'note'}{about}: {finding.text}"


def merged(
    findings: Sequence[tuple[Sequence[int], Finding]],
) -> list[tuple[list[int], Finding]]:
    """Return each finding once, with all its ranks."""
    ranks: dict[Finding, list[int]] = {}
    for about, finding in findings:
        ranks.setdefault(finding, []).extend(rank for rank in about if rank not in ranks.get(finding, ()))
    return [(sorted(about), finding) for finding, about in ranks.items()]


def _blocks(rows: Sequence[Row]) -> dict[str, tuple[str, ...]]:
    """Return the values of each name, with those of the rows that continue it."""
    found: dict[str, tuple[str, ...]] = {}
    name = ""
    for own, value in rows:
        name = own or name
        found[name] = (*found.get(name, ()), value)
    return found


def _folded(values: Mapping[int, Sequence[str]], name: str) -> Iterator[Row]:
    groups: dict[tuple[str, ...], list[int]] = {}
    for rank, value in values.items():
        groups.setdefault(tuple(value), []).append(rank)
    lines: list[str] = []
    if len(groups) == 1:
        lines = list(next(iter(groups)))
    elif variables := _variables(values):
        lines = variables
    else:
        for value, ranks in groups.items():
            first, *rest = value or ("none",)
            lines += [f"{ranks_text(ranks)}: {first}", *(f"  {line}" for line in rest)]
    for i, line in enumerate(lines):
        yield (name if i == 0 else "", line)


def _variables(values: Mapping[int, Sequence[str]]) -> list[str]:
    """Fold lists of NAME=VALUE, variable by variable; return no lines for other lists."""
    tables = {rank: dict(line.partition("=")[::2] for line in lines) for rank, lines in values.items()}
    names = list(dict.fromkeys(name for table in tables.values() for name in table))
    if not all("=" in line for lines in values.values() for line in lines) or " " in "".join(names):
        return []
    lines = []
    for name in names:
        groups: dict[str | None, list[int]] = {}
        for rank, table in tables.items():
            groups.setdefault(table.get(name), []).append(rank)
        if len(groups) == 1:
            lines.append(f"{name}={next(iter(groups))}")
            continue
        listed = ", ".join(f"{value} on {ranks_text(ranks)}" for value, ranks in groups.items())
        lines.append(f"{name}={listed if len(listed) <= _LISTED else listed[:_LISTED] + ' ...'}")
    return lines


def _on(ranks: Sequence[int], hosts: Mapping[int, str]) -> str:
    names = sorted({hosts[rank] for rank in ranks if rank in hosts})
    return f" on {names[0]}" if len(names) == 1 and len(set(hosts.values())) > 1 else ""
