"""junit_summary.py [--times] FILE...: what was skipped and why, what failed, and 'N passed, N failed, N skipped'; --times: what
passed too, with its seconds.

A test of ours is one ctest entry or one step. Parts of a test that were skipped (a cmocka or unittest case) are
listed by the line that says SKIP in its output, and do not count as tests of their own.
"""
import re
import sys
import xml.etree.ElementTree as tree

counts = {"passed": 0, "failed": 0, "skipped": 0}
passed, failed, skipped = [], [], []
files = [argument for argument in sys.argv[1:] if argument != "--times"]
for path in files:
    run = path.rsplit("/", 1)[-1].removesuffix(".xml")
    for case in tree.parse(path).getroot().iter("testcase"):
        name = f"{run}: {case.get('name')}"
        output = (case.findtext("system-out") or "")
        reasons = [line.strip() for line in output.splitlines() if re.search(r"\bSKIP(PED)?\b|\bskipped( '|:)|: skipped$", line)]
        if case.find("failure") is not None or case.get("status") == "fail":
            counts["failed"] += 1
            failed.append(name)
        elif case.find("skipped") is not None or case.get("status") in ("notrun", "disabled"):
            counts["skipped"] += 1
            skipped.append((name, reasons or ["no reason given"]))
        else:
            counts["passed"] += 1
            passed.append(f"passed  {name}, {float(case.get('time', 0)):.1f} s")
            if reasons:
                skipped.append((name + " (in part)", reasons))
if "--times" in sys.argv:
    print("\n".join(passed))
if skipped:
    print("skipped:")
    for name, reasons in skipped:
        for reason in dict.fromkeys(reasons):
            print(f"  {name}: {reason}")
for name in failed:
    print(f"FAILED  {name}")
print(f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
sys.exit(1 if counts["failed"] or not counts["passed"] else 0)
