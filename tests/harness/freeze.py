"""One thread of a child process stands still: what a device that hangs, or a kernel that never ends, looks like from outside.
By ptrace, so that the program needs no hook for it. From one thread of the test only."""
import ctypes
import errno
import os
import time

SEIZE, INTERRUPT, DETACH = 0x4206, 0x4207, 17
WALL = 0x40000000
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
libc.ptrace.restype = ctypes.c_long


def thread_named(pid, name):
    """The first thread of that name; None: there is none."""
    for task in sorted(int(task) for task in os.listdir(f"/proc/{pid}/task")):
        with open(f"/proc/{pid}/task/{task}/comm") as file:
            if file.read().strip() == name:
                return task
    return None


class Frozen:
    """with Frozen(thread_id): ... PermissionError where ptrace is not allowed."""

    def __init__(self, thread):
        self.thread, self.held, self.ended = thread, False, False

    def __enter__(self):
        self._call(SEIZE)
        self.held = True
        self._call(INTERRUPT)
        os.waitpid(self.thread, WALL)
        return self

    def __exit__(self, *_):
        if self.held and not self.ended:
            self.held = False
            self._call(DETACH)

    def wait_end(self, seconds):
        """Until the process has ended: no parent hears of that before its tracer has. False: it lives on."""
        end = time.monotonic() + seconds
        while not self.ended and time.monotonic() < end:
            self.ended = os.waitpid(self.thread, WALL | os.WNOHANG)[0] == self.thread
            time.sleep(0.01)
        return self.ended

    def _call(self, request):
        if libc.ptrace(request, self.thread, None, None) != 0:
            code = ctypes.get_errno()
            if code in (errno.EPERM, errno.ENOSYS):
                raise PermissionError(code, "ptrace is not allowed here")
            raise OSError(code, os.strerror(code))
