"""Network namespaces as the nodes of a cluster: each has an address, a host name and a link of its own.

::

    login ---+
    node0 ---+-- switch        a bridge, with no way to the machine's own network or back
    node1 ---+

A node is a process that holds three namespaces (network, host name, mounts). When its stdin is closed it
kills what runs there and ends, so that nothing outlives the tests, however they end. Nodes share processors,
process ids and the file system, as those of a cluster share its file server, but not ``/dev/shm``.
"""

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from support.commands import Ended, environment, finish
from support.systems import missing, program

LOGIN = "login"

_NET, _NET_6 = "10.77.0", "fd77:"  # nobody outside the namespaces sees them

# A fresh /sys shows the node's own network devices; control groups are looked for below it.
_HOLD = """
hostname "$0"
mount --bind "$1" /etc/hosts
mount -t tmpfs -o size=2g tmpfs /dev/shm
mount -t sysfs -o ro sysfs "$2"
if mountpoint -q /sys/fs/cgroup; then mount --rbind /sys/fs/cgroup "$2/fs/cgroup"; fi
mount --move "$2" /sys
echo ready
while read -r line; do :; done
for process in /proc/[0-9]*; do
    if [ "$process" = /proc/$$ ]; then continue; fi
    if [ "$process/ns/net" -ef /proc/$$/ns/net ]; then kill -9 "${process#/proc/}"; fi
done
"""

# Stands in for ssh: the options of both MPIs' rsh launchers, then the host, then the command.
_RSH = """#!/bin/sh
while :; do case $1 in -[lpoiF]) shift 2 ;; -*) shift ;; *) break ;; esac; done
host=$1; shift
case $host in
{hosts}
*) echo "there is no node $host" >&2; exit 255 ;;
esac
exec nsenter --target "$pid" --net --uts --mount -- /bin/sh -c "$*"
"""


class Nodes:
    """Some nodes and a login node, on one switch.

    Args:
        folder: an empty one, for files that the nodes need.
        count: nodes beside the login node.

    The name of a node has an address of IPv4, with ``-ipv6`` behind it one of IPv6.
    """

    def __init__(self, folder: Path, count: int) -> None:
        self.names = [f"node{i}" for i in range(count)]
        self.addresses = {name: f"{_NET}.{i}" for i, name in enumerate([*self.names, LOGIN], 1)}
        self.rsh = folder / "rsh"
        self._holders: dict[str, subprocess.Popen[str]] = {}
        hosts, sys = folder / "hosts", folder / "sys"
        self._six = {name: f"{_NET_6}:{i}" for i, name in enumerate(self.addresses, 1)}
        hosts.write_text(self.hosts())
        sys.mkdir()
        try:
            self._hold("switch", ["unshare", "--net", "sh", "-ec", "echo ready; exec cat"])
            for name in self.addresses:
                inside = ["sh", "-ec", _HOLD, name, str(hosts), str(sys)]
                self._hold(name, ["unshare", "--net", "--uts", "--mount", *inside])
            self._connect()
        except BaseException:
            self.close()
            raise
        cases = "\n".join(f"{name}) pid={self._holders[name].pid} ;;" for name in self.addresses)
        self.rsh.write_text(_RSH.format(hosts=cases))
        self.rsh.chmod(0o755)

    def hosts(self, **others: str) -> str:
        """Return the table of names that the nodes have, with other addresses for some."""
        addresses = self.addresses | others
        lines = [f"{address} {name}" for name, address in addresses.items()]
        lines += [f"{address} {name}-ipv6" for name, address in self._six.items()]
        return "\n".join(["127.0.0.1 localhost", *lines, ""])

    def command(self, node: str, *command: object, folder: Path | None = None) -> list[str]:
        """Return the command line that runs `command` on a node; the process is that of the command."""
        target = f"--target={self._holders[node].pid}"
        there = ["env", "-C", str(folder or Path.cwd())]
        return ["nsenter", target, "--net", "--uts", "--mount", "--", *there, *map(str, command)]

    def start(
        self, node: str, *command: object, folder: Path | None = None, **changes: str
    ) -> subprocess.Popen[str]:
        """Start a command on a node, without any launcher's variables but `changes`."""
        return subprocess.Popen(
            self.command(node, *command, folder=folder),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(**changes),
            start_new_session=True,
        )

    def run(self, node: str, *command: object, folder: Path | None = None, **changes: str) -> Ended:
        """Run a command on a node to its end."""
        return finish(self.start(node, *command, folder=folder, **changes))

    def disconnect(self, node: str) -> None:
        """Disconnect a node at the switch; on the node itself the link is up."""
        self._net("switch", "ip", "link", "set", f"to-{node}", "nomaster")

    def reconnect(self, node: str) -> None:
        """Connect a node again."""
        self._net("switch", "ip", "link", "set", f"to-{node}", "master", "br0")

    def processes(self, *nodes: str) -> set[int]:
        """Return the processes that run on some nodes, or on any, beside those that hold them."""
        spaces = {_network_of(self._holders[name].pid) for name in nodes or self._holders} - {None}
        holders = {holder.pid for holder in self._holders.values()}
        every = {int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()}
        return {pid for pid in every - holders if _network_of(pid) in spaces}

    def kill(self, pids: set[int]) -> None:
        """Kill processes as one, and wait until they are gone from the nodes.

        They are stopped before: none lives to see another's end and to tell somebody, as none does where a
        machine goes out.
        """
        _signal(pids & self.processes(), signal.SIGSTOP)
        end = time.monotonic() + 10
        while (left := pids & self.processes()) and time.monotonic() < end:
            _signal(left, signal.SIGKILL)
            time.sleep(0.02)

    def close(self) -> None:
        """End what runs on the nodes, and the nodes."""
        self.kill(self.processes())
        for holder in self._holders.values():
            holder.communicate()

    def _hold(self, name: str, command: list[str]) -> None:
        pipe = subprocess.PIPE
        # A session of its own: a signal that ends the tests must not end it before it has cleared up.
        holder = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, text=True, env=environment(), start_new_session=True
        )
        self._holders[name] = holder
        if holder.stdout.readline() != "ready\n":
            raise AssertionError(f"the node {name} did not come up (exit code {holder.wait()})")

    def _connect(self) -> None:
        links = ["link add br0 type bridge forward_delay 0", "link set br0 up"]
        for name in self.addresses:
            links += [
                f"link add to-{name} type veth peer name eth0 netns {self._holders[name].pid}",
                f"link set to-{name} master br0",
                f"link set to-{name} up",
            ]
        self._net("switch", "ip", "-batch", "-", given=links)
        for name, address in self.addresses.items():
            own = ["link set lo up", "link set eth0 up", f"address add {address}/24 dev eth0"]
            # At once: nobody else has it.
            own.append(f"address add {self._six[name]}/64 dev eth0 nodad")
            self._net(name, "ip", "-batch", "-", given=own)

    def _net(self, node: str, *command: str, given: list[str] | None = None) -> None:
        """Run a command in a node's network, but with this process's files and host name."""
        enter = ["nsenter", f"--target={self._holders[node].pid}", "--net"]
        subprocess.run([*enter, *command], input="\n".join(given or ()), text=True, check=True)


def can_make_nodes() -> None:
    """Skip the test, or fail it if ``netns`` is required, where this process may not make namespaces."""
    for name in ("ip", "nsenter", "unshare"):
        program("netns", name)
    tried = subprocess.run(
        ["unshare", "--net", "--uts", "--mount", "true"], capture_output=True, text=True, check=False
    )
    if tried.returncode:
        missing("netns", f"this process may not make namespaces: {tried.stderr.strip()}")


def _signal(pids: set[int], which: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, which)


def _network_of(pid: int) -> Path | None:
    try:
        return Path(f"/proc/{pid}/ns/net").readlink()
    except OSError:  # gone, or a zombie
        return None
