"""Each network request of a serial script is sent once, and every rank gets the response."""

import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch

from support.script_runner import run_script

SCRIPT = """
import hashlib, os, sys, urllib.error, urllib.request
import requests, torch

def digest(content):
    return len(content), hashlib.md5(content).hexdigest()

address = sys.argv[1]
path, headers = urllib.request.urlretrieve(address + "data", "data.bin")
print(digest(open(path, "rb").read()), headers["Content-Type"], os.path.getsize("data.bin"))
with urllib.request.urlopen(urllib.request.Request(address + "data")) as answer:
    print(answer.status, answer.reason, answer.length, answer.getheader("Content-Length"))
    print(digest(answer.read()))
state = torch.hub.load_state_dict_from_url(address + "model.pt", model_dir="hub", progress=False)
print(state["weight"], sorted(os.listdir("hub")))
answer = requests.get(address + "data", stream=True)
print(answer.status_code, digest(b"".join(answer.iter_content(100))))
print(requests.get(address + "moved").url[-4:])
for _ in range(2):
    print(requests.get(address + "number").json())  # another one each time
try:
    urllib.request.urlopen(address + "nothing")
except urllib.error.HTTPError as error:
    print(error.code, error.reason, error.read())
print(requests.get(address + "nothing").status_code)
for ask in (urllib.request.urlopen, requests.get):
    try:
        ask("http://127.0.0.1:9/")
    except OSError as error:
        print("refused")
print(urllib.request.urlopen("data:,hello").read())
"""


class Answer(BaseHTTPRequestHandler):
    def do_GET(self):
        name = self.path.lstrip("/")
        self.server.asked[name] += 1
        if name == "moved":
            self.send_response(302)
            self.send_header("Location", "/data")
        content = self.server.files.get(name)
        if name == "number":
            content = str(self.server.asked[name]).encode()
        if name != "moved":
            self.send_response(200 if content is not None else 404)
        content = content or b"none"
        self.send_header("Content-Type", "application/octet-stream")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args):
        pass


@pytest.fixture
def server(tmp_path):
    torch.save({"weight": torch.arange(3)}, tmp_path / "model.pt")
    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        server.asked = Counter()
        server.files = {"data": bytes(range(256)) * 1000, "model.pt": (tmp_path / "model.pt").read_bytes()}
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_each_request_is_sent_once_and_every_rank_gets_the_response(processes, server, tmp_path):
    path = tmp_path / "fetch.py"
    path.write_text(SCRIPT)
    printed, asked = [], []
    for size in (1, 3):
        (tmp_path / str(size)).mkdir()
        arguments = (f"http://127.0.0.1:{server.server_port}/",)
        server.asked.clear()
        ranks = processes.run(run_script, size, path, arguments, tmp_path / str(size))
        assert not any(trace for _, _, trace in ranks), ranks
        printed += [text for text, _, _ in ranks]
        asked.append(dict(server.asked))

    assert asked[0] == asked[1] == {"data": 4, "model.pt": 1, "moved": 1, "number": 2, "nothing": 2}
    assert len(set(printed)) == 1, printed
    files = sorted(str(one.relative_to(tmp_path / "3")) for one in (tmp_path / "3").rglob("*.*"))
    assert files == ["data.bin", "hub/model.pt"]
