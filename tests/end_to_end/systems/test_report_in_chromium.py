"""The report in a real browser is drawn without log messages and without requests."""

import http.server
import re
import subprocess
import threading
import zlib

import numpy as np
import pytest

from samestep.cli.main import run_command
from samestep.report.read_run import read_run
from samestep.report.run_page import render_side_by_side, write_report
from samestep.scaling.analysis.verdict import conclude
from samestep.scaling.report.page import write_study_page
from support.page_checks import found_in, with_checks
from support.run_folders import run_folder
from support.studies import study, two_cores
from support.systems import program
from support.tiers import long_param, mostly_long

QUIET = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"),
    *("--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"),
)

LONG = (
    "/home/student/projects/language-models/experiments_of_november/transformer_with_rotary_embeddings/"
    "finetune_on_labelled_sentences.py --learning-rate 0.0003 --gradient-accumulation 4"
)

FILL = re.compile(r"(?<!\S)([\d.]+) ([\d.]+) ([\d.]+) rg")


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Return a folder with pages of runs and of studies; one compares two runs, two have long titles."""
    root = tmp_path_factory.mktemp("pages")
    one, two = run_folder(root / "one", steps=1000), run_folder(root / "two", finished=False)
    long = run_folder(root / "resnet_with_squeeze_and_excitation-learning_rate_schedule-20260304-050607")
    write_report(long).rename(root / "long_run.html")
    write_study_page(study(target=LONG), root / "long_study.html")
    write_report(one)
    (root / "both.html").write_text(render_side_by_side([read_run(one), read_run(two)]))
    write_study_page(study(), root / "study.html")
    write_study_page(conclude(two_cores(), 0.7), root / "two_cores.html")
    write_study_page(
        study(workers=(1, 2, 4, 8, 16, 32, 64), modes=("strong", "weak"), variants=("sync=ddp", "sync=flat")),
        root / "studies.html",
    )
    return root


@pytest.fixture
def served(pages):
    """Return an address that serves the folder, and the list of the requested paths."""
    paths = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, directory=str(pages), **kwargs)

        def log_message(self, *_):
            paths.append(self.path)

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", paths
    server.shutdown()
    thread.join()
    server.server_close()


def browse(address, profile, *flags):
    """Open `address` in headless Chromium; return what it prints and its log."""
    chromium = program("chromium", "chromium", "chromium-browser", "google-chrome")
    done = subprocess.run(
        [chromium, *QUIET, f"--user-data-dir={profile}", "--enable-logging=stderr", "--v=0", *flags, address],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    return done.stdout, done.stderr


@pytest.mark.parametrize(
    ("page", "curves"),
    [("one/report.html", 6), long_param("both.html", 4), long_param("studies.html", 8)],
)
def test_a_page_is_drawn_without_log_messages_or_requests(served, tmp_path, page, curves):
    address, paths = served

    dom, log = browse(f"{address}/{page}", tmp_path / "profile", "--virtual-time-budget=2000", "--dump-dom")

    assert dom.count("<figure") == curves
    assert len(re.findall(r'<path class="(?:line|area)|<rect class="part', dom)) >= curves
    assert "CONSOLE" not in log
    assert paths == [f"/{page}"]


@pytest.mark.long
def test_a_measured_study_is_drawn(measured, tmp_path):
    page = measured[0] / "report.html"

    dom, log = browse(f"file://{page}", tmp_path / "profile", "--virtual-time-budget=2000", "--dump-dom")

    assert dom.count("<figure") == page.read_text().count("<figure") >= 4
    assert len(re.findall(r'<path class="(?:line|area)|<rect class="part', dom)) >= 4
    assert not re.search(r'="[^"]*\b(?:nan|inf|None|undefined)\b', dom, re.IGNORECASE)
    assert "CONSOLE" not in log


@pytest.mark.long
def test_the_picture_is_not_blank(pages, tmp_path):
    from PIL import Image

    picture = tmp_path / "page.png"
    browse(
        f"file://{pages / 'one' / 'report.html'}",
        tmp_path / "profile",
        "--window-size=1280,1400",
        f"--screenshot={picture}",
    )

    pixels = np.asarray(Image.open(picture).convert("RGB")).reshape(-1, 3)
    blue = (np.abs(pixels.astype(int) - (0x00, 0x72, 0xB2)).sum(1) < 12).sum()  # the first curve's colour
    assert blue > 500
    assert len(np.unique(pixels, axis=0)) > 50


def painted(page, tmp_path, *flags):
    """Return the pixels of a page that is as wide as a screen and higher."""
    from PIL import Image

    picture = tmp_path / "page.png"
    browse(
        f"file://{page}", tmp_path / "profile", "--window-size=1200,2600", f"--screenshot={picture}", *flags
    )
    return np.asarray(Image.open(picture).convert("RGB")).reshape(-1, 3).astype(int)


@pytest.mark.long
@pytest.mark.parametrize(
    ("flags", "paper"),
    [((), (255, 255, 255)), (("--blink-settings=preferredColorScheme=0",), (0x14, 0x17, 0x1B))],
)
def test_a_study_is_drawn_in_light_and_dark_mode(pages, tmp_path, flags, paper):
    pixels = painted(pages / "study.html", tmp_path, *flags)
    assert (np.abs(pixels - paper).sum(1) < 6).mean() > 0.2
    for colour in ((0x56, 0xB4, 0xE9), (0x00, 0x72, 0xB2), (0xD5, 0x5E, 0x00)):  # forward, backward, exchange
        assert (np.abs(pixels - colour).sum(1) < 12).sum() > 300


@pytest.mark.long
def test_equal_lines_are_all_visible(tmp_path):
    runs = [read_run(run_folder(tmp_path / name, steps=1000)) for name in ("a", "b", "c")]
    page = tmp_path / "equal.html"
    page.write_text(render_side_by_side(runs))

    pixels = painted(page, tmp_path)

    for color in ((0x00, 0x72, 0xB2), (0xD5, 0x5E, 0x00), (0x00, 0x9E, 0x73)):
        assert (np.abs(pixels - color).sum(1) < 12).sum() > 700, color  # 400 of them are keys


@pytest.mark.long
def test_a_study_is_printed_in_its_colors_on_white_paper(pages, tmp_path):
    paper = tmp_path / "study.pdf"
    browse(
        f"file://{pages / 'study.html'}",
        tmp_path / "profile",
        "--blink-settings=preferredColorScheme=0",
        f"--print-to-pdf={paper}",
    )
    streams = re.findall(rb"stream\r?\n(.*?)\r?\nendstream", paper.read_bytes(), re.DOTALL)
    drawn = b"".join(map(inflated, streams)).decode("latin-1")
    filled = {tuple(round(255 * float(part)) for part in rgb) for rgb in FILL.findall(drawn)}
    assert {(0x56, 0xB4, 0xE9), (0x00, 0x72, 0xB2), (0xD5, 0x5E, 0x00)} <= filled
    assert not {(0x14, 0x17, 0x1B), (0x1D, 0x21, 0x27)} & filled  # the paper and the cards of the night


def inflated(stream):
    """Return the decompressed content of a PDF's stream, or nothing if it is not compressed."""
    try:
        return zlib.decompress(stream)
    except zlib.error:
        return b""


PAGES = ("both", "study", "studies", "two_cores", "long_run", "long_study")
VIEWS = [
    f"{page} {width} {scheme}"
    for page in ("one/report.html", *(f"{name}.html" for name in PAGES))
    for width in (400, 1280)
    for scheme in ("dark", "light")
]


@pytest.mark.parametrize(
    "view", mostly_long(VIEWS, ("long_study.html 400 dark", "two_cores.html 1280 light"))
)
def test_a_page_is_readable_at_each_width_in_light_and_dark_mode(pages, tmp_path, view):
    """The window of headless Chromium is at least 500 wide: a frame in it has the width."""
    page, width, scheme = view.split()[0], int(view.split()[1]), int(view.endswith("light"))
    with_checks(pages / page, tmp_path / "page.html")
    frame = tmp_path / "frame.html"
    frame.write_text(
        "<!doctype html><body style='margin:0'>"
        f"<iframe src='page.html' style='border:0;width:{width}px;height:4000px'></iframe>"
        "<script>onload = () => setTimeout(() => { document.body.append(document.querySelector('iframe')"
        ".contentDocument.getElementById('found')) }, 8000)</script>"
    )
    dom, log = browse(
        f"file://{frame}",
        tmp_path / "profile",
        *("--virtual-time-budget=10000", "--dump-dom", "--allow-file-access-from-files"),
        *(f"--window-size={max(width, 600)},2000", f"--blink-settings=preferredColorScheme={scheme}"),
    )

    found = found_in(dom)
    assert "CONSOLE" not in log
    assert found["width"] == width
    assert found["wide"] <= width
    assert found["broken"] == []
    assert found["small"] == []
    assert found["cut"] == [] or width < 1280
    assert found["faults"] == []
    assert "color-contrast" in found["passes"]


def test_a_scaling_report_is_printed_to_a_pdf_by_one_flag(tmp_path, capsys):
    program("chromium", "chromium", "chromium-browser", "google-chrome")
    table, paper = tmp_path / "times.csv", tmp_path / "proposal" / "report.pdf"
    table.write_text("workers,seconds\n1,100\n2,52\n4,29\n")

    assert run_command(["report", str(table), "--pdf", str(paper)]) == 0

    assert paper.read_bytes().startswith(b"%PDF-")
    assert str(paper) in capsys.readouterr().err


def test_a_pdf_without_a_browser_is_refused_before_any_work(tmp_path, monkeypatch, capsys):
    table = tmp_path / "times.csv"
    table.write_text("workers,seconds\n1,100\n2,52\n")
    monkeypatch.setenv("PATH", str(tmp_path))

    assert run_command(["report", str(table), "--pdf", str(tmp_path / "report.pdf")]) == 2

    (line,) = capsys.readouterr().err.splitlines()
    assert "Chromium" in line
    assert not (tmp_path / "times.html").exists()


def test_runs_are_compared_over_the_same_steps_with_their_numbers_of_workers(pages):
    text = (pages / "both.html").read_text()
    assert "seconds of training" not in text
    ticks = re.findall(r'<text class="tick x" x="([\d.]+)"[^>]*>([^<]+)<', text)
    places = {}
    for place, number in ticks:
        places.setdefault(number, set()).add(place)
    assert places
    assert all(len(at) == 1 for at in places.values())
    assert re.search(r"one, \d+ workers?<", text)
