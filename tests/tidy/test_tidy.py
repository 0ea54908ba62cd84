"""The tree keeps the house rules, and a tree with one fault of each kind does not (so that tidy is known to look)."""
import os
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import tidy

LONG_FUNCTION = "int long_one(int x) {\n" + "  x++;\n" * 75 + "  return x;\n}\n"
GUARD = "#ifndef BASE_X_H\n#define BASE_X_H\n#endif\n"
# path, content, what tidy must say of it
FAULTS = [
    ("server/base/a.c", '#include "graph/graph.h"\n', "wrong arrow: base must not include graph/graph.h"),
    ("server/sched/a.c", '#include "api/infer.h"\n', "wrong arrow: sched must not include api/infer.h"),
    ("server/sched/b.c", '#include "rpc/call.h"\n', "wrong arrow: sched must not include rpc/call.h"),
    ("kernels/cpu/a.c", '#include "base/status.h"\n', "wrong arrow: kernels must not include base/status.h"),
    ("server/graph/a.c", '#include "kernels/cpu/onednn.h"\n', "graph may include of kernels only"),
    ("client/a.c", '#include "model/model.h"\n', "wrong arrow: client must not include model/model.h"),
    ("server/rpc/a.c", "#include <uv.h>\n", "<uv.h> may be included only by"),
    ("server/api/a.c", "#include <nghttp2/nghttp2.h>\n", "<nghttp2/nghttp2.h> may be included only by"),
    ("kernels/cpu/row.c", "#include <oneapi/dnnl/dnnl.h>\n", "may be included only by"),
    ("server/base/long.c", LONG_FUNCTION, "long_one() has 78 lines"),
    ("server/base/many.c", "int x;\n" * 501, "501 lines, at most 500"),
    ("server/base/wide.c", "// " + "x" * 110 + "\n", "1 lines of more than 110 columns"),
    ("server/base/call.c", "void f(char *a) {\n  sprintf(a, 0);\n}\n", "sprintf() is banned"),
    ("server/base/number.c", "int f(char *a) {\n  return atoi(a);\n}\n", "atoi() is banned"),
    ("server/base/blank.c", "int x; \n", "trailing blank"),
    ("server/base/guard.h", "int f(void);\n", "no include guard"),
    ("server/errno.h", GUARD, "named like a header of the C library"),
    ("server/base/x.h", GUARD, "nothing uses this file"),
    ("scripts/forgotten.sh", "true\n", "nothing uses this file"),
    ("docs/FAULTS.md", "| class | `test_life.test_of_nothing` |\n", "names a test that is not there: test_life.test_of_nothing"),
    ("docs/FAULTS.md", "`unit/rpc/test_h2:no_such_case`\n", "names a test that is not there: unit/rpc/test_h2:no_such_case"),
    ("docs/FAULTS.md", "`fault/nothing`\n", "names a test that is not there: fault/nothing"),
    ("docs/blob.bin", "\0\0", "a binary file"),
]
FINE = [
    ("server/api/a.c", '#include "graph/plan.h"\n#include "rpc/call.h"\n#include "infer.pb-c.h"\n'),
    ("server/sched/b.c", '#include "rpc/call_ref.h"\n#include "bounds.h"\n'),
    ("server/rpc/h2.c", "#include <nghttp2/nghttp2.h>\n"),
    ("server/base/words.c", '// sprintf(a) and atoi(b) in a comment\nconst char *s = "strcpy(x)";\n'),
    ("server/base/short.c", "int f(int a,\n      int b);\n" + "// x\n" * 90 + "int g(int a) {\n  return a;\n}\n"),
]


def findings_of(files):
    with tempfile.TemporaryDirectory() as root:
        for path, content in files:
            os.makedirs(os.path.join(root, os.path.dirname(path)), exist_ok=True)
            with open(os.path.join(root, path), "w") as file:
                file.write(content)
        return list(tidy.check(root))


class TidyTest(unittest.TestCase):
    def test_the_tree_keeps_the_house_rules(self):
        found = tidy.check(ROOT)
        if found:
            self.fail(f"{len(found)} findings:\n" + "\n".join(found))

    def test_every_kind_of_fault_is_found(self):
        for path, content, expected in FAULTS:
            with self.subTest(path=path, expected=expected):
                found = [line for line in findings_of([(path, content)]) if line.startswith(path)]
                self.assertTrue(any(expected in line for line in found), f"found only {found}")

    def test_what_is_allowed_is_not_reported(self):
        self.assertEqual([], findings_of(FINE))


if __name__ == "__main__":
    unittest.main()
