"""A search on the built site, by the site's own program in a real browser, finds the right page first."""

import html
import http.server
import json
import re
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest

from support.commands import environment
from support.systems import program

ROOT = Path(__file__).parents[3]
pytestmark = [pytest.mark.timeout(400), pytest.mark.long]
QUERIES = {
    "install": "install/",
    "learning rate": "howto/learning-rate/",
    "W&B": "howto/trackers/",
    "wandb": "howto/trackers/",
    "resume": "howto/resume/",
    "Hugging Face": "howto/hugging-face/",
    "Transformers Trainer": "howto/hugging-face/",
    "Keras": "howto/keras/",
    "notebook": "howto/notebook/",
    "VS Code": "howto/vs-code/",
    "troubleshooting": "troubleshooting/",
    "Slurm": "howto/cluster/",
    "DDP script": "howto/ddp-script/",
}
PROBE = """<pre></pre><img src="/wait"><script>
const queries = %s, found = [], worker = new Worker("%s");
worker.onmessage = ({data}) => {
  if (data.type === 3) found.push(data.data.items.map(page => page[0].location));
  if (found.length < queries.length) worker.postMessage({type: 2, data: queries[found.length]});
  else { document.querySelector("pre").textContent = JSON.stringify(found); fetch("/done"); }
};
fetch("search/search_index.json").then(answer => answer.json())
  .then(index => worker.postMessage({type: 0, data: {...index, options: {suggest: false}}}));
</script>"""
"""Searches as the pages do: message 0 sets the worker up, 2 is a query, 3 a result; /wait ends by /done."""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    site = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", site]
    ended = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return site


@pytest.fixture(scope="module")
def found(site):
    """Return the locations that the search finds for each query, the best first."""
    chromium = program("chromium", "chromium", "chromium-browser", "google-chrome")
    (worker,) = (site / "assets/javascripts/workers").glob("search.*.min.js")
    (site / "probe.html").write_text(PROBE % (json.dumps(list(QUERIES)), worker.relative_to(site)))
    done = threading.Event()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def do_GET(self):
            if self.path not in ("/wait", "/done"):
                super().do_GET()
                return
            done.set() if self.path == "/done" else done.wait(60)
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(site)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        address = f"http://127.0.0.1:{server.server_port}/probe.html"
        flags = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--timeout=70000")
        page = subprocess.run(
            [chromium, *flags, "--dump-dom", address], capture_output=True, text=True, timeout=90
        )
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    (answer,) = re.findall("<pre>(.+?)</pre>", page.stdout)
    return dict(zip(QUERIES, json.loads(html.unescape(answer)), strict=True))


@pytest.mark.parametrize("query", QUERIES)
def test_a_search_finds_the_page_first(found, query):
    assert found[query][:1] == [QUERIES[query]]


def test_internal_modules_are_not_in_the_index(site):
    index = json.loads((site / "search" / "search_index.json").read_text())
    pages = {one["location"].partition("#")[0] for one in index["docs"]}

    shown = {"reference/", "reference/commands/", "reference/score/"}
    assert {page for page in pages if page.startswith("reference/")} == shown
