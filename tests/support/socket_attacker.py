"""Another user who attacks every new socket at which root listens, at once: run as `nobody`.

It needs only Python, and a network namespace of the test's own: it spares no other program. Gloo takes
whoever comes first and sends a small number: such connections come first. Then come garbage, a handshake with
a guessed proof, and many connections that send a byte now and then. The program prints its user once it
watches, and how many connections were taken when its standard input ends.
"""

import os
import select
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

LISTENS = "0A"
NUMBERS, DRIPPING = 4, 40
EVIL = b"cbuiltins\nexec\n(Vraise SystemExit('an attacker')\ntR." + bytes(4096)
GREETING = b"samestep1\n" + bytes(32)
GUESS = GREETING + bytes(32) + (13).to_bytes(4, "big") + bytes(32 + 13)

held: list[socket.socket] = []


def listening() -> set[tuple[str, int]]:
    """Return the addresses at which root's processes listen."""
    found = set()
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                host, port = fields[1].split(":")
                if fields[3] == LISTENS and fields[7] == "0":
                    ip = socket.inet_ntoa(bytes.fromhex(host)[::-1]) if len(host) == 8 else "::1"
                    found.add((ip, int(port, 16)))
    return found


def connect(address: tuple[str, int], data: bytes) -> None:
    with suppress(OSError):
        held.append(socket.create_connection(address, timeout=0.05))
        held[-1].sendall(data)


def attack(address: tuple[str, int]) -> None:
    """Attack one socket until the program ends."""
    for data in (os.urandom(100_000), b"GET / HTTP/1.1\r\n\r\n", GREETING, GUESS, EVIL):
        connect(address, data)
    first = len(held)
    for _ in range(DRIPPING):
        connect(address, b"s")
    for byte in GREETING * 100:
        time.sleep(0.2)
        for peer in held[first : first + DRIPPING]:
            with suppress(OSError):
                peer.send(bytes([byte]))


def main() -> None:
    known = listening()
    print(os.getuid(), flush=True)
    while not select.select([sys.stdin], [], [], 0)[0]:
        new = listening() - known
        known |= new
        for address in new:
            for number in range(NUMBERS):
                connect(address, number.to_bytes(8, "little") + EVIL)
        for address in new:
            threading.Thread(target=attack, args=(address,), daemon=True).start()
    print(len(held), flush=True)


if __name__ == "__main__":
    main()
