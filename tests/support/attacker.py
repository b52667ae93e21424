"""Another user who attacks every listening port: run as `nobody` with addresses and hosts; needs only Python.

An address with a port is attacked at once. Of a host alone every port is tried that a job can use,
repeatedly, and the ports that answer are attacked. Then follow connections that send a byte from time to
time, and replays of the messages of ranks: the lines of `packet_recorder`, on standard input. A line of
JSON reports the attacked addresses and the sizes of the answers: after the given addresses, after the
attacks of each further one, when a further one answers a replay, and at SIGTERM.

A user without the secret gets at most a server's answer to a handshake: 64 bytes, which mean nothing
without the secret.
"""

import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from threading import Thread

GREETING = b"samestep1\n" + bytes(32)
ANSWER = 64
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
GUESSES = range(15000, 61000)
"""Ports that jobs choose, and those that Linux chooses."""
AT_ONCE = 200

Address = tuple[str, int]


class Attacker:
    """The attacks, each of which runs on a thread; `known` are the addresses."""

    def __init__(self, known: list[Address]) -> None:
        self.known = known
        self.answers = dict.fromkeys((*ATTACKS, "replay"), 0)
        self.attacked: list[Address] = []
        self.replayed: list[Address] = []
        self.recorded: dict[str, tuple[Address, list[bytes]]] = {}

    def report(self) -> None:
        report = {name: getattr(self, name) for name in ("answers", "attacked", "replayed")}
        sys.stdout.write(json.dumps({"uid": os.getuid(), **report}) + "\n")  # at once: others report too
        sys.stdout.flush()

    def sent(self, name: str, address: Address, packets: list[bytes]) -> int:
        """Send packets, and return how many bytes came back."""
        count = received(address, packets)
        self.answers[name] = max(self.answers[name], count)
        return count

    def attack(self, address: Address) -> None:
        for name, data in ATTACKS.items():
            self.sent(name, address, [data])
        self.attacked.append(address)

    def guess(self, host: str) -> None:
        while True:
            for address in listening(host):
                if address not in self.known:
                    self.known.append(address)
                    Thread(target=self.attack_found, args=(address,), daemon=True).start()

    def attack_found(self, address: Address) -> None:
        self.attack(address)
        self.report()

    def replay(self) -> None:
        """Send recorded packets to their addresses and to the other known ones, the latest first."""
        while True:
            for line in sys.stdin:
                packet = json.loads(line)
                _, packets = self.recorded.setdefault(packet["stream"], (tuple(packet["to"]), []))
                packets.append(bytes.fromhex(packet["data"]))
            for to, packets in reversed(self.recorded.values()):
                for address in (to, *self.known):
                    if self.sent("replay", address, packets) >= ANSWER and address not in self.replayed:
                        self.replayed.append(address)
                        self.report()
            time.sleep(0.05)

    def drip(self) -> None:
        """Hold many connections, and send a byte of a handshake on each from time to time."""
        held: list[tuple[socket.socket, int]] = []
        while True:
            for number in range((DRIPPING - len(held)) if self.known else 0):
                with suppress(OSError):
                    address = self.known[number % len(self.known)]
                    held.append((socket.create_connection(address, timeout=1), 0))
            held = [(peer, at + 1) for peer, at in held if dripped(peer, GREETING[at % len(GREETING) :][:1])]
            time.sleep(0.1)


def received(address: Address, packets: list[bytes]) -> int:
    """Return how many bytes come back; the next packet is sent when something has, or nothing does."""
    count = 0
    with suppress(OSError), socket.create_connection(address, timeout=1) as peer:
        peer.settimeout(0.3)
        peer.sendall(packets[0])
        for data in packets[1:]:
            with suppress(TimeoutError):
                count += len(peer.recv(65536))
            peer.sendall(data)
        while more := peer.recv(65536):
            count += len(more)
    return count


def dripped(peer: socket.socket, byte: bytes) -> bool:
    with suppress(OSError):
        return peer.send(byte) == 1
    peer.close()
    return False


def listening(host: str) -> Iterator[Address]:
    """Yield the addresses at which a host answers."""
    ip = socket.gethostbyname(host)
    for first in range(GUESSES.start, GUESSES.stop, AT_ONCE):
        tried = {}
        answers = select.poll()
        for port in range(first, min(first + AT_ONCE, GUESSES.stop)):
            peer = socket.socket()
            peer.setblocking(False)
            peer.connect_ex((ip, port))
            tried[peer.fileno()] = peer, port
            answers.register(peer, select.POLLOUT)
        time.sleep(0.01)  # others need the processor too
        for file, _ in answers.poll(0):
            peer, port = tried[file]
            if not peer.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                yield ip, port
        for peer, _ in tried.values():
            peer.close()


def main() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    parts = [text.rpartition(":") for text in sys.argv[1:]]
    attacker = Attacker([(host, int(port)) for host, _, port in parts if host])
    for address in attacker.known:
        attacker.attack(address)
    attacker.report()
    for given, _, host in parts:
        if not given:
            Thread(target=attacker.guess, args=(host,), daemon=True).start()
    for work in (attacker.drip, attacker.replay):
        Thread(target=work, daemon=True).start()
    signal.sigwait({signal.SIGTERM})
    attacker.report()


if __name__ == "__main__":
    main()
