"""What this processor can do, and what a process has had of it; asked of the kernel and not of the daemon."""
import os


def flags():
    with open("/proc/cpuinfo") as file:
        for line in file:
            if line.startswith("flags"):
                return set(line.split(":", 1)[1].split())
    return set()


def has_bf16():
    return bool(flags() & {"avx512_bf16", "amx_bf16"})


def cpu_seconds(pid):
    """Of all threads of a process, in nanosecond steps (/proc/PID/stat counts ticks of 10 ms)."""
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/schedstat") as file:
            total += int(file.read().split()[0])
    return total / 1e9
