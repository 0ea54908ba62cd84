"""Time in tests: how much longer all takes in this build, and waiting for what has to come.

A bound on a time, and a time in which the daemon or a client has to do something, go through scaled(): what is asserted stays,
in the measure of the build. Whatever another thread or process does in its own time is waited for, by wait_for(), never looked at
once. Pauses that only pass time, and lower bounds on times, are not scaled."""
import os
import time

SLOWER = {"thread": 6.0, "address": 3.0, "undefined": 2.0}  # beside a release build, client and daemon on two cores
FACTOR = max([SLOWER.get(name, 1.0) for name in os.environ.get("FUSEWIRE_SANITIZER", "").split(",")])


def scaled(seconds):
    return seconds * FACTOR


def wait_for(condition, seconds=30, what="what was waited for did not come"):
    """What condition() gives, as soon as it is true. `what`: the message when it never is, or a function that makes it."""
    end = time.monotonic() + scaled(seconds)
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > end:
            raise AssertionError(what() if callable(what) else what)
        time.sleep(0.01)
