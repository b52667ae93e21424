"""A search on the built site finds the right page first."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.commands import environment
from support.site_search import rank

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    """Return the search index of the site."""
    site = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", site]
    ended = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return site / "search" / "search_index.json"


@pytest.mark.parametrize(
    ("query", "page"),
    [
        ("install", "install/"),
        ("learning rate", "howto/learning-rate/"),
        ("W&B", "howto/trackers/"),
        ("resume", "howto/resume/"),
        ("Hugging Face", "howto/hugging-face/"),
        ("Transformers Trainer", "howto/hugging-face/"),
        ("Lightning", "howto/lightning/"),
        ("Keras", "howto/keras/"),
        ("notebook", "howto/notebook/"),
        ("VS Code", "howto/vs-code/"),
        ("troubleshooting", "troubleshooting/"),
        ("Slurm", "guide/submit/"),
        ("DDP script", "howto/ddp-script/"),
    ],
)
def test_a_search_finds_the_page_first(index, query, page):
    assert rank(index, query)[0] == page


def test_internal_modules_are_not_in_the_index(index):
    pages = {one["location"].partition("#")[0] for one in json.loads(index.read_text())["docs"]}

    assert {page for page in pages if page.startswith("reference/")} == {"reference/", "reference/commands/"}
