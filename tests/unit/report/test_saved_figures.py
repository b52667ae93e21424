"""Charts are saved as files of their own, which need no page: SVG in light colors, PDF and PNG."""

import re
import sys
import xml.etree.ElementTree as ET

import pytest

from samestep.base.errors import UsageError
from samestep.cli import report as verb
from samestep.report.charts import LineChart
from samestep.report.drawing import DataPoint
from samestep.report.page import write_figures
from samestep.report.read_run import read_run
from samestep.report.run_page import charts
from samestep.scaling.analysis.study import Study, write_study
from samestep.scaling.report.page import charts as study_charts
from support.run_folders import run_folder
from support.studies import study

RUN = [
    "learning-rate",
    "phases-of-a-step",
    "speed-of-each-worker",
    "test-accuracy",
    "test-loss",
    "training-loss",
]
STUDY = ["efficiency", "one-step", "phases-of-a-step", "speedup", "throughput"]


def names(folder, suffix):
    return sorted(path.stem for path in folder.glob(f"*.{suffix}"))


@pytest.fixture
def no_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "vl_convert", None)


@pytest.fixture(scope="module")
def saved():
    """Return charts of all kinds."""
    many = study(workers=(1, 2, 4), modes=("strong", "weak"), variants=("sync=ddp", "sync=flat"))
    lines = {"<one>": [DataPoint(1, 2, 1, 3), DataPoint(2, 3, 2, 4)], "two": [DataPoint(1, 5, 5, 5)]}
    return [*study_charts(many), LineChart(title="Loss\x1b", x="steps", y="loss", lines=lines)]


def test_a_saved_chart_is_xml_with_its_colors_and_refers_to_nothing_else(saved):
    for chart in saved:
        text = chart.svg()
        root = ET.fromstring(text)
        assert not re.search(r"class=|style|var\(|@import|href", text)
        assert set(re.findall(r"url\(#(\w+)\)", text)) <= {one.get("id") for one in root.iter()}
        drawn = [one for one in root.iter() if one.tag.endswith(("path", "rect", "text"))]
        assert all("fill" in one.attrib for one in drawn)
        (_, _, width, height) = map(float, root.get("viewBox").split())
        assert (root.get("width"), root.get("height")) == (f"{width:.0f}", f"{height:.0f}")


def test_a_saved_chart_has_title_legend_and_description(saved):
    *_, line = saved
    root = ET.fromstring(line.svg())
    texts = ["".join(one.itertext()) for one in root.iter() if one.tag.endswith("text")]
    assert {"Loss\N{REPLACEMENT CHARACTER}", "<one>", "two", "steps"} <= set(texts)
    assert "<one> from 2 to 3" in next(one.text for one in root if one.tag.endswith("desc"))


def test_a_saved_legend_stays_within_its_chart(saved):
    for chart in saved:
        text = chart.svg()
        places = re.findall(r'translate\((\d+),(\d+)\)".*?>([^<>]+)</text></g>', text.partition("<g ")[2])
        width = int(ET.fromstring(text).get("width"))
        assert all(int(left) + 15 + 5 * len(name) < width for left, _, name in places)


def test_colors_of_a_saved_chart_are_those_of_the_light_page(saved):
    speedup = saved[0].svg()
    assert re.search(r'<path fill="#0072b2" stroke="#ffffff"', speedup)  # the first line's points
    assert "#56b4e9" not in speedup  # its color on a dark page


def test_without_the_library_svg_is_written_and_the_line_names_the_extra(tmp_path, no_library):
    line = write_figures(charts([read_run(run_folder(tmp_path / "run"))]), tmp_path / "a" / "b")
    assert names(tmp_path / "a" / "b", "*") == RUN
    assert names(tmp_path / "a" / "b", "svg") == RUN
    for part in (str(tmp_path / "a" / "b"), "6 charts", "pip install 'samestep[plots]'"):
        assert part in line


def test_a_chart_without_data_is_not_saved(tmp_path, no_library):
    (tmp_path / "config.toml").write_text("")
    assert "0 charts" in write_figures(charts([read_run(tmp_path)]), tmp_path / "figures")
    assert study_charts(Study(target="x")) == []


def test_with_the_library_each_chart_is_svg_pdf_and_png(tmp_path, saved):
    pytest.importorskip("vl_convert")
    line = write_figures(saved, tmp_path)
    assert "SVG, PDF and PNG" in line
    found = [names(tmp_path, suffix) for suffix in ("svg", "pdf", "png")]
    assert found == [sorted(chart.stem() for chart in saved)] * 3
    for name in found[0]:
        assert (tmp_path / f"{name}.pdf").read_bytes().startswith(b"%PDF-")
        png = (tmp_path / f"{name}.png").read_bytes()
        width = int(ET.parse(tmp_path / f"{name}.svg").getroot().get("width"))
        assert png[:8] == b"\x89PNG\r\n\x1a\n"
        assert int.from_bytes(png[16:20], "big") == 3 * width


def test_report_saves_the_charts_of_runs_and_of_studies(tmp_path, no_library, capsys):
    run = run_folder(tmp_path / "run")
    verb.report([run], figures=tmp_path / "run-figures")
    verb.report([run, run], page=tmp_path / "both.html", figures=tmp_path / "both-figures")
    write_study(tmp_path / "study.json", study())
    verb.report([tmp_path / "study.json"], figures=tmp_path / "study-figures", as_json=True)

    assert names(tmp_path / "run-figures", "svg") == RUN
    assert names(tmp_path / "both-figures", "svg") == [
        "learning-rate",
        "test-accuracy",
        "test-loss",
        "training-loss",
    ]
    assert names(tmp_path / "study-figures", "svg") == STUDY
    printed = capsys.readouterr()
    assert printed.err.count("figures: ") == 3
    assert "figures: " not in printed.out


def test_a_folder_that_cannot_be_used_is_refused_before_the_page_is_written(tmp_path):
    run = run_folder(tmp_path / "run")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"--figures .*file is a file"):
        verb.report([run], figures=tmp_path / "file" / "figures")
    assert not (run / "report.html").exists()


def test_a_full_disk_is_an_error_that_names_the_file(tmp_path, saved, no_library):
    (tmp_path / "speedup.svg").mkdir()
    with pytest.raises(UsageError, match=r"cannot write .*speedup\.svg.* --figures"):
        write_figures(saved, tmp_path)
