"""Another user who attacks whatever listens: run as `nobody` with addresses and ports; needs only Python.

It prints one line of JSON, the bytes that each attack was sent, and then drips on many connections until it
is ended. Nobody who lacks the secret may get more than a server's answer to a handshake: 64 bytes, which mean
nothing without the secret.
"""

import json
import os
import socket
import sys
import time
from contextlib import suppress

GREETING = b"samestep1\n" + bytes(32)
ATTACKS = {
    "silence": b"",
    "garbage": os.urandom(100_000),
    "line": b"samestep slurm 1.0 2 1\n",
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    # What torch's own stores are asked: their magic number, and for a key.
    "torch": bytes([9]) + (0x3C85F7CE).to_bytes(4, "little") + bytes([2]) + (1).to_bytes(8, "little") + b"x",
    "handshake": GREETING,
    "guessed proof": GREETING + bytes(32) + (13).to_bytes(4, "big") + bytes(32 + 13),
}
DRIPPING = 100


def attacked(host: str, port: int, data: bytes) -> int:
    """Return how many bytes came back."""
    received = 0
    with suppress(OSError), socket.create_connection((host, port), timeout=2) as peer:
        peer.settimeout(0.3)
        peer.sendall(data)
        while more := peer.recv(65536):
            received += len(more)
    return received


def drip(targets: list[tuple[str, int]]) -> None:
    """Hold many connections, and send a byte of a handshake on each from time to time."""
    held: list[tuple[socket.socket, int]] = []
    while True:
        for number in range(DRIPPING - len(held)):
            with suppress(OSError):
                held.append((socket.create_connection(targets[number % len(targets)], timeout=1), 0))
        held = [(peer, at + 1) for peer, at in held if sent(peer, GREETING[at % len(GREETING) :][:1])]
        time.sleep(0.1)


def sent(peer: socket.socket, byte: bytes) -> bool:
    with suppress(OSError):
        return peer.send(byte) == 1
    peer.close()
    return False


def main() -> None:
    targets = [(host, int(port)) for host, _, port in (text.rpartition(":") for text in sys.argv[1:])]
    answers = {name: max(attacked(*at, data) for at in targets) for name, data in ATTACKS.items()}
    print(json.dumps({"uid": os.getuid(), "answers": answers}), flush=True)
    drip(targets)


if __name__ == "__main__":
    main()
