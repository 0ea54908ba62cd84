"""junit_step.py NAME EXIT_CODE SECONDS LOG: one step of ./dev test as a JUnit file on standard output."""
import sys
from xml.sax.saxutils import escape, quoteattr

name, code, seconds, log = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
text = "".join(c for c in open(log, errors="replace").read() if c.isprintable() or c == "\n")
status = {0: "run", 77: "notrun"}.get(code, "fail")
inner = {"run": "", "notrun": "<skipped/>", "fail": f'<failure message="exit code {code}"/>'}[status]
print(f'<testsuite><testcase name={quoteattr("step/" + name)} time="{seconds}" status="{status}">'
      f"{inner}<system-out>{escape(text[-20000:])}</system-out></testcase></testsuite>")
