"""Compares what two runs of one training print: the numbers of equal lines, and the other lines.

Times, rates, dates and memory are measurements, not results: they are recognized by their name or unit, or
since most of them differ between two runs on one worker.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher

from samestep.verify.compare import allowed_deviation, rounding_of
from samestep.verify.run_record import RunRecord

_NUMBER = r"(?<![\w.])[-+]?(?:(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?|(?:[nN]a[nN]|[iI]nf)\b)"
_DATE = r"\d{4}-\d\d-\d\d(?:[ T]\d\d:\d\d(?::\d\d)?(?:[.,]\d+)?)?|\d+(?::\d\d)+(?:[.,]\d+)?"
_STAMP = (  # a date or time in the name of a file or run: those of two runs can be of one minute
    r"(?<!\d)(?:20\d\d[-_./]\d\d[-_./]\d\d(?:[-_.: T/]\d\d){2,3}(?:[.,]\d+)?|20\d{6}[-_T]?\d{4}(?:\d\d)?"
    r"|\d\d(?:-\d\d){2,4})(?![.]?\d)"
)
_DURATION = r"(?<![\w.])(?:\d+ ?(?:d|h|m|min) ?)+\d+(?:\.\d+)? ?s(?:ec)?\b"  # such as 0m 59s
_ADDRESS = r"(?<=\bat )0x[0-9a-fA-F]+"  # that of an object in its usual text, which two runs can share
_TOKEN = re.compile(rf"(?P<measured>{_ADDRESS}|{_STAMP}|{_DURATION}|{_DATE})|(?P<number>{_NUMBER})")
_ESCAPE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
"""A control sequence of a terminal, such as a color, which would be a part of the word behind it."""
_GROUPED = re.compile(r"(?<![\w.,])\d{1,3}(?:,\d{3})+(?![\d,])(?:\.\d+)?")
"""A number with a comma between thousands; or several numbers."""
_NAME = re.compile(r"([A-Za-z_][\w/.-]*)(?:\s*\([A-Za-z/]+\)[\s:=]+)?[\"'\s:=(\[<]*[-+]?$")
"""The name before a number, also with its unit: ``time (s): 3``."""
_UNIT = re.compile(
    r"(?:[kKMG](?=\s))?(\s*)([A-Za-zµ]+(?:/[A-Za-z]+)?)(?![\w/]|[\s:=(]*[-+]?\.?\d)"
    r"|()([mu]?s)(?=\s+\d)"
)
"""The unit behind a number; that of a time can be followed by another number: ``2s 12ms/step``."""
_PARTS = re.compile(r"[A-Z]?[a-z]+\d*|[A-Z]+(?![a-z])\d*")
_RESULT = re.compile(
    r"loss(?:es)?|acc(?:uracy)?|err(?:or)?s?|score|metric|recall|precision|auc|f1|bleu|m?iou|ssim|psnr|ppl"
    r"|perplexity|norm|grad(?:ient)?|lr|rmse|mse|mae|reward"
)
"""A part of the name of a result, which no other part makes a measurement."""
_MEASURED = re.compile(
    r"times?|timer|took|elapsed|speed|throughput|duration|runtime|wall|clock|latency|sec(?:ond)?s?|[fi]ps"
    r"|mem(?:ory)?|v?ram|rss|cpu|bandwidth|t?flops|mfu|eta|pid|minutes|hours|[qtuw]ps"
)
"""A part of the name of a measurement."""
_SUFFIX = re.compile(r"[mu]?s|[kmgt]i?b")
"""The last part of the name of a measurement."""
_UNITS = re.compile(r"sec(?:ond)?s?|ms(?:ec)?|[uµn]?s|mins|minutes?|h(?:ou)?rs?|[kKMGT]i?B")
_UNITS_BEHIND = re.compile(r"h|min")
"""Units that are also words: directly behind the number."""
_BARS = re.compile(r"[|│┃║,;\t]")
"""The separators of the cells of a row, if they are not spaces."""
_COUNTER = re.compile(r"#/#|#of#")
"""The number of a batch and the number of batches, in the shape of a line."""
_OF_RANK_0 = re.compile(
    r"\W*(?:(?:global|local)[ _]?)?(?:rank|gpu|worker|process|device|cuda)\W{0,3}0(?![\d.])", re.IGNORECASE
)
"""The beginning of a line that names the rank that prints it, such as ``[GPU0]``."""
_MOST_DIGITS = 18
"""Digits of the longest integer that counts something: those of any 64-bit integer."""
_VARIES = 0.01
"""Relative difference between two runs on one worker from which a number counts as measured, such as a time:
a guess."""
_NO_ZERO = 1e-12  # stands for two numbers that are zero or less than that, which have no relative difference
_PERCENT = 100.0


@dataclass(frozen=True, slots=True)
class PrintedNumber:
    """A printed number that deviates by more than rounding."""

    value: float  # the deviation, relative to the larger of the two numbers
    line: str  # the line that contains the number
    usual: str  # that line of the reference
    is_own_loss: bool  # whether it is the loss of rank 0's share in a step whose loss the reference prints
    is_count: bool  # whether it is an integer in a line that counts batches or samples
    is_combined: bool  # whether it is computed from numbers that all ranks have combined in an evaluation
    is_multiple: bool  # whether it is N times the reference's or the N-th part, as a sum is that of a mean
    shape: str  # the line with a sign in the place of each number


@dataclass(frozen=True, slots=True)
class _Line:
    """A line, with the numbers that can be results."""

    text: str  # the line
    shape: str  # the line with a sign in the place of each number
    numbers: Sequence[str]  # its numbers, without those that are named as measurements
    timed: frozenset[int] = frozenset()  # places of numbers that the head of a table names as measurements


def deviating_numbers(reference: RunRecord, run: RunRecord, control: RunRecord) -> list[PrintedNumber]:
    """Return the printed numbers that deviate by more than rounding.

    Counts of one worker's share, such as half of the samples or batches, do not count, except those of the
    same total, and percentages, in lines that are not of training: ``22/103`` in place of ``44/103``.
    """
    size = _times_as_many(reference, run)
    rounding = rounding_of(reference.facts.epsilon)
    lines, again, compared = (_lines(record) for record in (reference, control, run))
    usual = {i: again[j].numbers for i, j in _pairs(lines, again)}
    measured, training = _measured_columns(lines, usual), _shapes_of_training(reference)
    repeated = _repeated_counts(reference, run)
    numbers = []
    for i, j in _pairs(lines, compared):
        for k, (expected, printed) in enumerate(zip(lines[i].numbers, compared[j].numbers, strict=True)):
            if expected == printed or (lines[i].shape, k) in measured or k in lines[i].timed:
                continue
            is_result = lines[i].shape not in training and (
                _is_percentage(lines[i].shape, k) or _has_same_total(lines[i], compared[j], k)
            )
            is_repeated = expected.isdecimal() and (expected, printed) in repeated
            if _is_share(expected, printed, size) and not (is_result or is_repeated):
                continue
            known = _relative_distance(expected, usual[i][k]) if i in usual else 0.0
            value = _relative_distance(expected, printed)
            last = 2 * _last_digit(expected) / max(abs(float(expected)), abs(float(printed)), _NO_ZERO)
            if not value <= allowed_deviation(known, rounding) + last:
                shape = lines[i].shape
                numbers.append(
                    PrintedNumber(
                        value=value,
                        line=compared[j].text,
                        usual=lines[i].text,
                        is_own_loss=_is_own_loss(expected, printed, reference, run),
                        is_count=expected.isdecimal()
                        and printed.isdecimal()
                        and bool(_COUNTER.search(shape)),
                        is_combined=_is_combined(expected, printed, reference, run),
                        is_multiple=_is_share(expected, printed, size)
                        or abs(value - (1 - 1 / size)) <= last + rounding,
                        shape=shape,
                    )
                )
    return numbers


def _times_as_many(reference: RunRecord, run: RunRecord) -> int:
    """Return by what the share of a rank of one run is divided to be that of the other run."""
    few, many = sorted((reference.size, run.size))
    return 1 if run.runs_once else many // few


def _repeated_counts(reference: RunRecord, run: RunRecord) -> frozenset[tuple[str, str]]:
    """Return the counts that the ranks sum though each of them evaluates all samples, and those usual."""
    size = run.size
    if run.runs_once or size == 1 or not run.combined():
        return frozenset()
    if not all(run.evaluates_all(reference, rank) for rank in range(size)):
        return frozenset()
    combined = zip(reference.combined(), run.combined(), strict=False)
    pairs = (pair for both in combined for pair in zip(*both, strict=False))
    # A count of 1 can be that of the ranks.
    return frozenset((f"{a:.0f}", f"{b:.0f}") for a, b in pairs if a > 1 and a.is_integer() and b == size * a)


def of_progress(numbers: Sequence[PrintedNumber], reference: RunRecord) -> list[PrintedNumber]:
    """Return the numbers that rank 0 prints of its own share as its progress, not as results.

    Lines of training are those of which at least one is between two steps without an evaluation. They are
    progress if there are more of them than epochs, or rollouts in place of epochs, or if they have the loss
    of a step and count epochs and batches: ``[1/3][4/10]``. Lines of evaluation count its batches,
    ``[3/10]``, and one evaluation has several, or that of its first batch and another line after it. A line
    that names rank 0 is not a result of all ranks either.
    """
    counts = Counter(line.shape for line in _lines(reference))
    training = _shapes_of_training(reference)
    has_rollouts = any(step.has_rollout for step in reference.traces[0].steps[1:])
    frequent = {shape for shape in training if has_rollouts or counts[shape] > reference.epochs()}
    of_loss = {number.shape for number in numbers if number.is_own_loss and number.shape in training}
    known = {shape for shape in of_loss if shape in frequent or len(_COUNTER.findall(shape)) > 1}
    known |= _shapes_of_evaluation(reference)
    return [
        number
        for number in numbers
        if number.is_own_loss
        or number.shape in known
        or _OF_RANK_0.match(number.usual)
        or (number.shape in frequent and not number.is_multiple)
        or (number.is_count and number.shape in training)
    ]


def _shapes_of_training(run: RunRecord) -> frozenset[str]:
    """Return the shapes of lines that rank 0 prints between two steps without an evaluation."""
    between = list(_printed_before_steps(run))[1:]
    texts = (lines for lines, evaluated in between if not evaluated)
    return frozenset(_line(text).shape for lines in texts for text in lines)


def _shapes_of_evaluation(run: RunRecord) -> frozenset[str]:
    """Return the shapes of lines that count the batches of an evaluation, and do not end it."""
    several: set[str] = set()  # shapes of which one evaluation prints several lines
    first: set[str] = set()  # shapes of a line about the first batch
    further: set[str] = set()  # shapes of other lines
    for text, evaluated in _printed_before_steps(run):
        lines = [_line(line) for line in text if evaluated]
        counts = Counter(line.shape for line in lines)
        several.update(shape for shape, count in counts.items() if count > 1)
        for k, line in enumerate(lines):
            is_first = _counts_first_batch(line) and any(later.numbers for later in lines[k + 1 :])
            (first if is_first else further).add(line.shape)
    return frozenset(shape for shape in several | (first - further) if _COUNTER.search(shape))


def _counts_first_batch(line: _Line) -> bool:
    """Return whether a line counts the first of several batches: ``[0/2]`` or ``[1/2]``."""
    counter = _COUNTER.search(line.shape)
    if counter is None:
        return False
    place = line.shape.count("#", 0, counter.start())
    part, total = line.numbers[place : place + 2]
    return part in ("0", "1") and total.isdecimal() and int(total) > 1


def _printed_before_steps(run: RunRecord) -> Iterator[tuple[list[str], bool]]:
    """Yield the lines that rank 0 prints before each step and at the end, and if it evaluates there."""
    text, start = run.facts.printed, 0
    for step in run.traces[0].steps:
        yield text[start : step.printed].splitlines(), bool(step.evaluated)
        start = step.printed
    yield text[start:].splitlines(), True


def has_fractions(run: RunRecord) -> bool:
    """Return whether a run prints fractions that are no measurements: results, and not only epochs."""
    return any("." in number for line in _lines(run) for number in line.numbers)


def deviating_text(reference: RunRecord, run: RunRecord, control: RunRecord) -> tuple[str, str] | None:
    """Return the first lines of the reference and of a run that differ by more than numbers.

    Lines that also differ between two runs on one worker are left out. One of the two is empty if a line is
    missing.
    """
    lines, again, compared = (_lines(record) for record in (reference, control, run))
    stable = {i for i, _ in _pairs(lines, again)}
    for first, last, start, stop in _ranges(lines, compared, paired=False):
        here = [i for i in range(first, last) if i in stable and lines[i].text.strip()]
        there = [j for j in range(start, stop) if compared[j].text.strip()]
        if _joined(lines, here) == _joined(compared, there):  # wrapped elsewhere
            continue
        if here or (there and first == last):
            return lines[here[0]].text if here else "", compared[there[0]].text if there else ""
    return None


def last_lines(text: str, printed: str) -> str:
    """Return a text without those of its first lines that `printed` has fewer of, up to their numbers."""
    left = Counter(_line(line).shape for line in printed.splitlines())
    kept = []
    for line in reversed(text.splitlines(keepends=True)):
        shape = _line(line).shape
        if left[shape]:
            left[shape] -= 1
            kept.append(line)
    return "".join(reversed(kept))


def without_summary(text: str, end: int) -> str:
    """Return a text without the lines behind an offset that are unlike all before it, up to numbers."""
    usual = {_line(line).shape for line in text[:end].splitlines()}
    kept = [line for line in text[end:].splitlines(keepends=True) if _line(line).shape in usual]
    return text[:end] + "".join(kept)


def _joined(lines: Sequence[_Line], numbers: Sequence[int]) -> str:
    return "".join(lines[i].shape for i in numbers)


def _lines(run: RunRecord) -> list[_Line]:
    return list(_in_tables(map(_line, _shown(run.facts.printed))))


def _shown(text: str) -> Iterator[str]:
    """Yield the lines that a terminal shows at the end: a carriage return begins its line again.

    How often a bar of progress is drawn depends on the time, and so does what one shows that is not finished.
    """
    *lines, last = text.split("\n")
    for line in (*lines, "" if "\r" in last else last):
        yield from line.rstrip("\r").rpartition("\r")[2].splitlines() or [""]


def _in_tables(lines: Iterable[_Line]) -> Iterator[_Line]:
    """Yield lines with the numbers below the names of measurements in the head of a table."""
    head: list[str] = []
    for line in lines:
        cells = _cells(line.text)
        if not line.numbers and len(cells) > 1 and any(map(str.isalpha, line.text)):
            head = cells
        is_row = bool(_BARS.search(line.text)) or all(any(map(str.isdecimal, cell)) for cell in cells)
        yield replace(line, timed=_timed(head, cells)) if is_row and len(cells) == len(head) else line


def _cells(text: str) -> list[str]:
    """Return the cells of a line, as if it were a row of a table."""
    bare = text.strip().strip("|│┃║")
    return _BARS.split(bare) if _BARS.search(bare) else bare.split()


def _timed(head: Sequence[str], cells: Sequence[str]) -> frozenset[int]:
    """Return the places, in a row, of the numbers of cells whose head names a measurement."""
    places: list[int] = []
    count = 0
    for name, cell in zip(head, cells, strict=True):
        in_cell = len(_line(cell).numbers)
        if in_cell and _is_measured(f"{name} ", len(name) + 1, has_unit=False):
            places += range(count, count + in_cell)
        count += in_cell
    return frozenset(places)


def _line(text: str) -> _Line:
    shape, numbers, end, was_measured = "", [], 0, False
    readable = _ESCAPE.sub("", text)
    text = _GROUPED.sub(_without_commas, readable.replace("#", "\0"))  # in a shape it stands for a number
    for token in _TOKEN.finditer(text):
        if token["number"] and not _is_finite_or_named(token[0]):
            continue  # 1e999, part of a hash
        between = text[end : token.start()]
        # A meter prints its mean behind its value: Time 0.123 (0.130).
        is_mean = was_measured and between.strip() in ("(", "±", "+-", "+/-", "/")
        unit = _unit(text, token.end())
        is_named = _is_measured(text, token.start(), has_unit=bool(unit))
        was_measured = is_mean or bool(token["measured"]) or is_named
        shape += f"{between}{'~' if was_measured else '#'}"
        if not was_measured:
            numbers.append(token[0])
        end = token.end() + (len(unit) if was_measured else 0)
    # Numbers of other lengths are padded with other spaces.
    return _Line(readable, re.sub(r"\s+", "", shape + text[end:]), numbers)


def _is_finite_or_named(text: str) -> bool:
    return math.isfinite(float(text)) or text.lstrip("+-").lower() in ("nan", "inf")


def _unit(text: str, end: int) -> str:
    """Return the unit of time, rate or memory behind a number; empty without one."""
    unit = _UNIT.match(text, end)
    if unit is None:
        return ""
    over, _, per = (unit[2] or unit[4]).partition("/")
    is_unit = _UNITS.fullmatch(over) or _UNITS.fullmatch(per)
    return unit[0] if is_unit or (not unit[1] and _UNITS_BEHIND.fullmatch(over)) else ""


def _without_commas(number: re.Match[str]) -> str:
    """Return a measurement without the commas between its thousands, which a smaller one has not."""
    has_unit = bool(_unit(number.string, number.end()))
    is_measured = _is_measured(number.string, number.start(), has_unit=has_unit)
    return number[0].replace(",", "") if is_measured else number[0]


def _is_measured(text: str, start: int, *, has_unit: bool) -> bool:
    """Return whether the name before a number, or the unit behind it, is that of a measurement."""
    name = _NAME.search(text, 0, start)
    words = name[1].split("/") if name else []
    parts = [[part.lower() for part in _PARTS.findall(word)] for word in words]
    if any(_RESULT.fullmatch(part) for word in parts for part in word):
        return False
    is_data_time = parts == [["data"]] and "time" in text.lower()  # of a loader, beside that of the step
    whole = [part for word in parts for part in word]
    return has_unit or is_data_time or any(map(_names_measurement, [*parts, whole]))


def _names_measurement(parts: Sequence[str]) -> bool:
    if not parts or any(map(_MEASURED.fullmatch, parts)):
        return bool(parts)
    return bool(_SUFFIX.fullmatch(parts[-1])) and parts != ["s"]


def _measured_columns(
    lines: Sequence[_Line], usual: Mapping[int, Sequence[str]]
) -> frozenset[tuple[str, int]]:
    """Return the numbers, by shape of the line and place, most of which vary between runs on one worker."""
    total: Counter[tuple[str, int]] = Counter()
    varied: Counter[tuple[str, int]] = Counter()
    for i, numbers in usual.items():
        for k, (expected, printed) in enumerate(zip(lines[i].numbers, numbers, strict=True)):
            total[lines[i].shape, k] += 1
            varied[lines[i].shape, k] += _relative_distance(expected, printed) > _VARIES
    return frozenset(column for column, count in varied.items() if 2 * count > total[column])


def _relative_distance(expected: str, printed: str) -> float:
    """Return the distance of two numbers relative to the larger one."""
    if expected == printed:
        return 0.0
    a, b = float(expected), float(printed)
    if not (math.isfinite(a) and math.isfinite(b)):
        return 0.0 if a == b or (math.isnan(a) and math.isnan(b)) else math.inf
    return abs(a - b) / max(abs(a), abs(b)) if a != b else 0.0


def _is_own_loss(expected: str, printed: str, reference: RunRecord, run: RunRecord) -> bool:
    """Return whether two numbers are the losses of the reference and of rank 0 in one step."""
    if run.runs_once or not _last_digit(printed):
        return False
    steps = range(min(reference.steps, run.steps))
    return any(
        _has_printed(expected, reference.at(step).losses) and _has_printed(printed, run.at(step).losses)
        for step in steps
    )


def _is_combined(expected: str, printed: str, reference: RunRecord, run: RunRecord) -> bool:
    """Return whether two numbers are computed alike from what the ranks combine in an evaluation."""
    digit = _last_digit(printed)
    if not reference.combined():  # a serial script; a count can be truncated
        return any(_are_results([printed], [numbers], [run.size], digit or 1.0) for numbers in run.combined())
    combined = zip(reference.combined(), run.combined(), strict=False)
    return bool(digit) and any(
        _are_results([expected, printed], both, [1, run.size], digit) for both in combined
    )


def _are_results(
    printed: Sequence[str], combined: Sequence[Sequence[float]], sizes: Sequence[int], digit: float
) -> bool:
    """Return whether runs compute a printed number in the same way from what their ranks combine.

    Each run has its number, what is combined in one evaluation, and its number of ranks; `digit` is the value
    of the last printed digit.
    """
    return any(
        all(abs(scale * result - float(text)) <= digit for result, text in zip(results, printed, strict=True))
        for results in zip(*map(_results, combined, sizes), strict=False)
        for scale in (1.0, _PERCENT)
    )


def _results(combined: Sequence[float], size: int) -> Iterator[float]:
    """Yield each number, its mean over ranks, and its quotients by others and by a rank's share of them."""
    for number in combined:
        yield from (number, number / size)
        for divisor in combined:
            quotient = number / divisor if divisor else float("nan")
            yield from (quotient, size * quotient)


def _has_printed(text: str, losses: Sequence[float]) -> bool:
    """Return whether a number is one of a step's losses, also before its division, or their sum."""
    candidates = [*losses, *(len(losses) * loss for loss in losses), sum(losses)] if losses else []
    return any(abs(float(text) - loss) <= _last_digit(text) for loss in candidates)


def _pairs(lines: Sequence[_Line], compared: Sequence[_Line]) -> list[tuple[int, int]]:
    """Return the pairs of lines that are equal but for their numbers, in order."""
    ranges = _ranges(lines, compared, paired=True)
    return [pair for a, b, c, d in ranges for pair in zip(range(a, b), range(c, d), strict=True)]


def _ranges(
    lines: Sequence[_Line], compared: Sequence[_Line], *, paired: bool
) -> Iterator[tuple[int, int, int, int]]:
    """Yield the ranges of lines that are paired, or those between them: the bounds in both."""
    here, there = ([line.shape for line in some] for some in (lines, compared))
    if here == there:  # usual, and quadratic in the matcher
        codes = [("equal", 0, len(here), 0, len(there))]
    else:
        codes = list(SequenceMatcher(None, here, there, autojunk=False).get_opcodes())
    for kind, *bounds in codes:
        if (kind == "equal") is paired:
            first, last, start, stop = bounds
            yield first, last, start, stop


def _is_share(expected: str, printed: str, size: int) -> bool:
    """Return whether a count is one worker's share of another, or `size` times it."""
    if not (expected.isdecimal() and printed.isdecimal()) or max(len(expected), len(printed)) > _MOST_DIGITS:
        return False
    return int(printed) in (int(expected) * size, int(expected) // size, -(-int(expected) // size))


def _is_percentage(shape: str, number: int) -> bool:
    """Return whether a percent sign follows a number of a line, by the position of the number."""
    return shape.split("#")[number + 1].lstrip().startswith("%")


def _has_same_total(line: _Line, compared: _Line, place: int) -> bool:
    """Return whether the number at a place is a part, ``#/#``, of a total that is the same in both lines."""
    before = -1
    for _ in range(place + 1):
        before = line.shape.index("#", before + 1)
    following = line.numbers[place + 1 : place + 2]
    return (
        bool(_COUNTER.match(line.shape, before))
        and following == list(compared.numbers)[place + 1 : place + 2]
    )


def _last_digit(text: str) -> float:
    """Return the value of a printed number's last decimal; 0 for an integer, which is exact."""
    digits, _, exponent = text.lower().partition("e")
    decimals = digits.partition(".")[2]
    if not (decimals or exponent) or (not digits[-1:].isdecimal() and digits[-1:] != "."):
        return 0.0
    return 10.0 ** min(int(exponent or 0) - len(decimals), _MOST_DIGITS)
