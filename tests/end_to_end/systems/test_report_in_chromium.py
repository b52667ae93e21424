"""The report in a real browser: drawn, silent, and without a request."""

import http.server
import re
import subprocess
import threading

import numpy as np
import pytest

from samestep.report.compare import write_comparison
from samestep.report.run_page import write_report
from support.run_folders import run_folder
from support.systems import program

QUIET = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"),
    *("--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """A folder with the page of a run, and one that lays two side by side."""
    root = tmp_path_factory.mktemp("pages")
    one, two = run_folder(root / "one", steps=1000), run_folder(root / "two", finished=False)
    write_report(one)
    write_comparison([one, two], root / "both.html")
    return root


@pytest.fixture
def asked(pages):
    """An address that serves the folder, and what it is asked for."""
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


@pytest.mark.parametrize(("page", "curves"), [("one/report.html", 6), ("both.html", 4)])
def test_a_page_is_drawn_without_a_word_or_a_request(asked, tmp_path, page, curves):
    address, paths = asked

    dom, log = browse(f"{address}/{page}", tmp_path / "profile", "--virtual-time-budget=2000", "--dump-dom")

    assert dom.count("<figure") == curves
    assert len(re.findall(r'<path class="(?:line|area)', dom)) >= curves
    assert "CONSOLE" not in log
    assert paths == [f"/{page}"]


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
