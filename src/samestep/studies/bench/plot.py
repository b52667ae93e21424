"""Builds the chart of times over sizes, with a line for each algorithm and one for copying."""

from collections.abc import Mapping

from samestep.base.units import bytes_text, seconds_text
from samestep.studies.report.line_charts import PointChart
from samestep.studies.report.scales import DataPoint


def times_chart(
    times: Mapping[str, Mapping[int, float]], *, copying: Mapping[int, float], title: str, name: str
) -> PointChart:
    """Return a chart with logarithmic axes.

    Args:
        times: seconds of each algorithm by bytes.
        copying: seconds of copying the fewest bytes that must move, at each size, while all ranks copy.
        title: title of the chart.
        name: name of its files.
    """
    return PointChart(
        title=title,
        name=name,
        x="size",
        y="time",
        lines={
            algorithm: [DataPoint(nbytes, seconds, seconds, seconds) for nbytes, seconds in by_size.items()]
            for algorithm, by_size in times.items()
        },
        ideal=lambda nbytes: copying[int(nbytes)],
        ideal_name="copying memory",
        x_text=lambda nbytes: bytes_text(int(nbytes)),
        base=10,
        tick=seconds_text,
        text=seconds_text,
        height=400,
    )
