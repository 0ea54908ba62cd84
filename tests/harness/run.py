"""run.py FILE --daemon PATH --client PATH [--sanitizer LIST] [NAME...]: one unittest file against one build.

Prints a line `SKIP name: reason` for each skipped case. Exit 0: passed, 1: failed, 77: everything was skipped.
"""
import argparse
import importlib.util
import os
import sys
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("file")
    arguments.add_argument("names", nargs="*", help="only these, as Class.test_name")
    arguments.add_argument("--daemon", default=f"{ROOT}/build/release/server/fusewired")
    arguments.add_argument("--client", default=f"{ROOT}/build/release/client/fusewire")
    arguments.add_argument("--sanitizer", default="")
    given = arguments.parse_args()
    os.environ.update(FUSEWIRED=given.daemon, FUSEWIRE=given.client, FUSEWIRE_SANITIZER=given.sanitizer)
    sys.path.insert(0, os.path.join(ROOT, "tests"))
    spec = importlib.util.spec_from_file_location("under_test", given.file)
    module = importlib.util.module_from_spec(spec)
    sys.modules["under_test"] = module
    spec.loader.exec_module(module)
    loader = unittest.defaultTestLoader
    suite = loader.loadTestsFromNames(given.names, module) if given.names else loader.loadTestsFromModule(module)
    result = unittest.TextTestRunner(stream=sys.stdout, verbosity=2).run(suite)
    for case, reason in result.skipped:
        print(f"SKIP {case.id().removeprefix('under_test.')}: {reason}")
    if not result.wasSuccessful() or not result.testsRun and not result.skipped:
        return 1
    return 77 if len(result.skipped) == result.testsRun or not result.testsRun else 0


if __name__ == "__main__":
    sys.exit(main())
