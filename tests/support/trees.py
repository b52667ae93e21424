"""Parts of /proc, /sys and /dev of other machines, written from the kernel's documentation."""

from pathlib import Path

_LIMITS = """\
Limit                     Soft Limit           Hard Limit           Units
Max stack size            8388608              unlimited            bytes
Max processes             {processes:<20} {processes:<20} processes
Max open files            {files:<20} {hard:<20} files
Max locked memory         {locked:<20} {locked:<20} bytes
"""


def planted(root: Path, files: dict[str, str]) -> Path:
    """Write `files` below `root` and return it."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return root


def interface(name, *, flags="0x1003", state="up", speed="1000", mtu="1500"):
    """An interface as /sys/class/net shows it; the flags are those of <net/if.h>: up 0x1, loopback 0x8."""
    folder = f"sys/class/net/{name}"
    return {
        f"{folder}/flags": flags,
        f"{folder}/operstate": state,
        f"{folder}/speed": speed,
        f"{folder}/mtu": mtu,
    }


def loopback():
    return interface("lo", flags="0x9", state="unknown", speed="", mtu="65536")


def infiniband_port(
    adapter="mlx5_0", number="1", *, state="4: ACTIVE", rate="200 Gb/sec (4X HDR)", net="ib0"
):
    """A port as Documentation/ABI/stable/sysfs-class-infiniband says."""
    folder = f"sys/class/infiniband/{adapter}"
    port = f"{folder}/ports/{number}"
    return {
        f"{port}/state": state,
        f"{port}/phys_state": "5: LinkUp" if "ACTIVE" in state else "3: Disabled",
        f"{port}/rate": rate,
        f"{port}/link_layer": "InfiniBand",
        **({f"{folder}/device/net/{net}/type": "32"} if net else {}),
    }


def gpu_slot(address, *, numa, cpus, width="16"):
    """An NVIDIA H100 in a PCIe slot, as Documentation/ABI/testing/sysfs-bus-pci says."""
    folder = f"sys/bus/pci/devices/{address}"
    return {
        f"{folder}/vendor": "0x10de",
        f"{folder}/device": "0x2330",
        f"{folder}/class": "0x030200",
        f"{folder}/numa_node": str(numa),
        f"{folder}/local_cpulist": cpus,
        f"{folder}/current_link_width": width,
        f"{folder}/max_link_width": "16",
        f"{folder}/current_link_speed": "32.0 GT/s PCIe",
    }


def limits(*, files="1048576", hard="1048576", processes="unlimited", locked="unlimited"):
    text = _LIMITS.format(files=files, hard=hard, processes=processes, locked=locked)
    return {"proc/self/limits": text}


NEAR = ("0-47,96-143", "48-95,144-191")
"""The processors of each of two NUMA nodes, both hardware threads of each core."""


def two_sockets_with_eight_gpus():
    """Four GPUs and four adapters at each of two sockets; the first port of each is up."""
    files = {**loopback(), **interface("eno1", speed="25000")}
    for i in range(8):
        files |= gpu_slot(f"0000:{0x1B + 0x11 * i:02x}:00.0", numa=i // 4, cpus=NEAR[i // 4])
        files |= infiniband_port(f"mlx5_{i}", net=f"ib{i}") | interface(f"ib{i}", speed="", mtu="2044")
    # What is no accelerator is not taken for one: the management chip's display, a bridge.
    files |= {
        "sys/bus/pci/devices/0000:03:00.0/vendor": "0x1a03",
        "sys/bus/pci/devices/0000:03:00.0/class": "0x030000",
        "sys/bus/pci/devices/0000:00:01.0/vendor": "0x8086",
        "sys/bus/pci/devices/0000:00:01.0/class": "0x060400",
    }
    return files


def container():
    """A container of control groups, version 2, as its processes see it."""
    return {
        **loopback(),
        **interface("eth0", speed="10000"),
        **limits(files="1024", hard="524288"),
        "proc/self/cgroup": "0::/",
        "proc/self/mountinfo": (
            "612 611 0:48 / / rw,relatime - overlay overlay rw,lowerdir=/l1:/l2\n"
            "615 612 0:27 / {group} ro,nosuid - cgroup2 cgroup rw,nsdelegate\n"
            "616 612 0:60 / /data rw - nfs4 server:/export rw,vers=4.2\n"
        ),
        "proc/net/route": (
            "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
            "eth0\t00000000\t010011AC\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"
            "eth0\t000011AC\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0"
        ),
    }
