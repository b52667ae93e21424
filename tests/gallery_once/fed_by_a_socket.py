"""Gets its batches over TCP: first as the client of a process that it starts, then as the server of another."""
import pickle
import socket
import struct
import subprocess
import sys

import torch
import torch.nn as nn

torch.manual_seed(3)
torch.set_default_dtype(torch.float64)

PEER = '''
import pickle, random, socket, struct, sys
random.seed(int(sys.argv[3]))
if sys.argv[1] == "server":
    listening = socket.create_server(("127.0.0.1", 0))
    print(listening.getsockname()[1], flush=True)
    line, _ = listening.accept()
    listening.settimeout(0)
else:
    line = socket.create_connection(("127.0.0.1", int(sys.argv[2])))
answers = []
for number in range(10):
    batch = pickle.dumps([[random.gauss(0, 1) for _ in range(5)] for _ in range(16)])
    line.sendall(struct.pack("!i", len(batch)) + batch)
    answers.append(float(line.recv(100)))
line.close()
if sys.argv[1] == "server":
    try:
        listening.accept()
        print("a second client")
    except BlockingIOError:
        print("a client")
print("%d answers, sum %.9f" % (len(answers), sum(answers)), flush=True)
'''

model = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def train(line):
    with line, line.makefile("rb") as stream:
        while size := stream.read(4):
            x = torch.tensor(pickle.loads(stream.read(*struct.unpack("!i", size))))
            loss = (model(x) - x.prod(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print("%.9f" % loss.item())
            line.sendall(b"%.12f" % loss.item())


server = subprocess.Popen([sys.executable, "-S", "-c", PEER, "server", "-", "1"], stdout=subprocess.PIPE, text=True)
train(socket.create_connection(("127.0.0.1", int(server.stdout.readline()))))
print("the server had", *server.communicate()[0].split("\n"))

listening = socket.create_server(("127.0.0.1", 0))
port = listening.getsockname()[1]
client = subprocess.Popen([sys.executable, "-S", "-c", PEER, "client", str(port), "2"], stdout=subprocess.PIPE, text=True)
train(listening.accept()[0])
listening.settimeout(0)
try:
    listening.accept()
    print("a second client")
except BlockingIOError:
    print("the client had", client.communicate()[0])
print("codes", server.wait(), client.wait())
