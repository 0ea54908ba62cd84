"""What this processor can do, asked of the kernel and not of the daemon."""


def flags():
    with open("/proc/cpuinfo") as file:
        for line in file:
            if line.startswith("flags"):
                return set(line.split(":", 1)[1].split())
    return set()


def has_bf16():
    return bool(flags() & {"avx512_bf16", "amx_bf16"})
