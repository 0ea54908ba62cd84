"""tidy.py [ROOT]: house rules that a compiler does not check. Prints file:line: what is wrong; exit 1 if anything is.

    include arrows (docs/ARCHITECTURE.md, decision 2), which folder may see which library, function and file length,
    line length, banned calls, include guards, files that nothing uses, big or binary files, tests
    that documents name.
"""
import os
import re
import subprocess
import sys

FUNCTION_LINES, FILE_LINES, LINE_COLUMNS, FILE_BYTES = 70, 500, 110, 400_000
TEST_FILE_LINES = 700  # a table of cases is long without being hard to read
SCRIPT_COLUMNS = 130

# Layer -> layers it may include. Arrows below these are allowed too: who sees model/ sees the graph/ of its headers.
ARROWS = {
    "base": [], "obs": ["base"], "kernels": [], "proto": [],
    "conf": ["base", "obs"],
    "graph": ["kernels", "base", "obs"],
    "backend": ["graph", "kernels", "base", "obs"],
    "model": ["conf", "graph", "backend", "base", "obs"],
    "explain": ["model", "backend", "graph", "base"],
    "audit": ["model", "backend", "graph", "base", "obs"],
    "sched": ["audit", "model", "backend", "base", "obs"],
    "rpc": ["base", "obs"],
    "net": ["rpc", "conf", "base", "obs"],
    "api": ["rpc", "sched", "audit", "model", "explain", "proto", "base", "obs"],
    "trace": ["proto", "base", "obs"],
    "main": ["net", "api", "explain", "trace"],
    "client": ["base", "proto"],
}
# Single headers of plain data that a layer may see out of order.
EXCEPTIONS = {("sched", "rpc/call_ref.h")}
# graph/ sees the kernels' description of work, and times of their tiles, never a kernel.
ONLY_HEADERS = {("graph", "kernels"): {"kernels/types.h", "kernels/ops.def", "kernels/gemm/x3_tiles.h"}}
# Library -> files that may include it.
LIBRARIES = {
    r"uv\.h": r"server/net/|client/|tests/",
    r"nghttp2/": r"server/rpc/(h2|internal)|client/|tests/",
    r"(oneapi/)?dnnl": r"kernels/cpu/onednn|tests/kernels/|bench/",
    r"yaml\.h": r"server/conf/",
    r"microhttpd\.h": r"server/net/",
    r"openssl/": r"(server/net|client)/tls|kernels/codegen/jit|tests/",
    r"protobuf-c/": r"server/(api|trace)/|client/|tests/",
    r"curl/": r"server/trace/",
    r"cuda|nvrtc|cublas": r"server/backend/cuda/|kernels/(cuda|common|ptx|gemm|attention|norm|elementwise)|"
                          r"tests/kernels/cuda/|bench/",
}
BANNED = {
    "sprintf": "snprintf", "vsprintf": "vsnprintf", "strcpy": "memcpy with a checked length", "strcat": "a length",
    "strncpy": "memcpy with a checked length", "strncat": "a length", "gets": "fgets", "atoi": "strtoll",
    "atol": "strtoll", "atoll": "strtoll", "atof": "strtod", "strtok": "a scanner", "rand": "a seeded generator",
    "srand": "a seeded generator", "alloca": "an array with a bound", "setjmp": "a status", "longjmp": "a status",
    "system": "nothing", "tmpnam": "mkstemp", "assert": "FW_ASSERT",
}
# The C library's; a header of ours of that name in a folder that is searched ("server", the root) is found by
# gcc's own #include_next in the place of the system's.
SYSTEM_HEADERS = {f"{name}.h" for name in (
    "assert complex ctype dirent elf endian errno error fcntl features fenv float getopt inttypes iso646 limits link "
    "locale malloc math memory netdb poll pthread sched search semaphore setjmp signal stdalign stdarg stdatomic stdbool "
    "stddef stdint stdio stdlib stdnoreturn string strings syslog termios tgmath threads time uchar unistd utime values "
    "wait wchar wctype").split()}
C_FOLDERS = ("server", "kernels", "client", "tests", "bench", "examples")


class Findings(list):
    def add(self, path, line, text):
        self.append(f"{path}:{line}: {text}")


def tracked_files(root):
    listed = subprocess.run(["git", "-C", root, "ls-files"], capture_output=True, text=True)
    if listed.returncode == 0 and listed.stdout:
        return [path for path in listed.stdout.splitlines() if os.path.isfile(os.path.join(root, path))]
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in (".git", ".cache") and not name.startswith("build")]
        found += [os.path.relpath(os.path.join(folder, name), root) for name in names]
    return sorted(found)


def strip_comments(text):
    """Comments and string contents become blanks; line numbers and columns stay."""
    def blank(match):
        return re.sub(r"[^\n]", " ", match.group(0))
    return re.sub(r'//[^\n]*|/\*.*?\*/|"(\\.|[^"\\\n])*"', blank, text, flags=re.S)


def layer_of(path):
    parts = path.split("/")
    if parts[0] == "server":
        return "main" if len(parts) == 2 else parts[1]
    return parts[0] if parts[0] in ("kernels", "client") else None


def reachable(layer):
    seen, todo = set(), [layer]
    while todo:
        for below in ARROWS[todo.pop()]:
            if below not in seen:
                seen.add(below)
                todo.append(below)
    return seen


def included_layer(header, own_folder_files):
    if header.endswith(".pb-c.h"):
        return "proto"
    first = header.split("/")[0]
    if header == "bounds.h" or header in own_folder_files:
        return None
    return first if first in ARROWS else None


def check_includes(path, text, files, findings):
    layer = layer_of(path)
    folder = os.path.dirname(path)
    own = {os.path.relpath(f, folder) for f in files if os.path.dirname(f) == folder}
    for number, line in enumerate(text.splitlines(), 1):
        match = re.match(r'\s*#\s*include\s+([<"])([^>"]+)[>"]', line)
        if not match:
            continue
        header = match.group(2)
        for library, allowed in LIBRARIES.items():
            if match.group(1) == "<" and re.match(library, header) and not re.match(allowed, path):
                findings.add(path, number, f"<{header}> may be included only by {allowed}")
        if match.group(1) == '"' and layer:
            check_arrow(path, number, layer, header, own, findings)


def check_arrow(path, number, layer, header, own, findings):
    target = included_layer(header, own)
    if target is None or target == layer or (layer, header) in EXCEPTIONS:
        return
    if target not in reachable(layer):
        findings.add(path, number, f"wrong arrow: {layer} must not include {header}")
    only = ONLY_HEADERS.get((layer, target))
    if only and header not in only:
        findings.add(path, number, f"{layer} may include of {target} only {', '.join(sorted(only))}")


def check_functions(path, code, findings):
    """A definition begins at the left margin and ends with `}` at the left margin."""
    for match in re.finditer(r"^[A-Za-z_][^;{}#]*?(\w+)\([^;{}]*\)[^;{}]*\{$", code, flags=re.M):
        end = code.find("\n}", match.end())
        first, last = code.count("\n", 0, match.start()) + 1, code.count("\n", 0, end) + 2
        if last - first + 1 > FUNCTION_LINES:
            name = re.search(r"(\w+)\(", match.group(0)).group(1)
            findings.add(path, first, f"{name}() has {last - first + 1} lines, at most {FUNCTION_LINES}")


def check_lines(path, text, findings):
    lines = text.splitlines()
    most = TEST_FILE_LINES if path.startswith("tests/") else FILE_LINES
    if len(lines) > most:
        findings.add(path, most, f"{len(lines)} lines, at most {most}")
    columns = LINE_COLUMNS if path.endswith((".c", ".h", ".cu", ".cuh", ".cc")) else SCRIPT_COLUMNS
    wide = [number for number, line in enumerate(lines, 1)
            if len(line) > columns and not path.endswith(".def") and "http" not in line]
    if wide:
        findings.add(path, wide[0], f"{len(wide)} lines of more than {columns} columns")
    for number, line in enumerate(lines, 1):
        if line != line.rstrip() or "\t" in line:
            findings.add(path, number, "trailing blank or tab")


def check_calls(path, code, findings):
    for number, line in enumerate(code.splitlines(), 1):
        for call in re.findall(r"(?<![\w.>])(\w+)\s*\(", line):
            if call in BANNED:
                findings.add(path, number, f"{call}() is banned: use {BANNED[call]}")


def check_guard(path, text, findings):
    if os.path.dirname(path) in ("", "server") and os.path.basename(path) in SYSTEM_HEADERS:
        findings.add(path, 1, "named like a header of the C library")
    if "once" in text and re.search(r"#\s*pragma\s+once", text):
        findings.add(path, 1, "#pragma once: use an include guard")
    guards = re.findall(r"^#ifndef (\w+_H)\s*\n#define (\w+_H)", text, flags=re.M)
    if not guards or guards[0][0] != guards[0][1]:
        findings.add(path, 1, "no include guard FOLDER_FILE_H")


def check_dead(files, texts, findings):
    """A header nobody includes, a script or a Python module nobody names."""
    for path in files:
        name = os.path.basename(path)
        if path.endswith((".h", ".def")):
            used = any(f'/{name}"' in text or f'"{name}"' in text or f"/{name}>" in text or f"{name}\"" in text
                       for other, text in texts.items() if other != path)
        elif path.startswith(("scripts/", "tests/harness/")) and not name.startswith("__"):
            stem = os.path.splitext(name)[0]
            used = any(re.search(rf"\b{re.escape(stem)}\b", text) for other, text in texts.items() if other != path)
        else:
            continue
        if not used:
            findings.add(path, 1, "nothing uses this file")


def check_named_tests(texts, findings):
    """Tests that documents name are there: `test_x.test_y` of tests/e2e, `unit/layer/test_x:case` of a C file, `fault/x`."""
    runners = texts.get("tests/fault/CMakeLists.txt", "") + texts.get("tests/sim/CMakeLists.txt", "")
    for path, text in texts.items():
        if not path.startswith("docs/"):
            continue
        for number, line in enumerate(text.splitlines(), 1):
            missing = [f"{module}.{case}" for module, case in re.findall(r"`(test_\w+)\.(test_\w+)`", line)
                       if f"def {case}(" not in texts.get(f"tests/e2e/{module}.py", "")]
            missing += [f"{file}:{case}" for file, case in re.findall(r"`((?:unit|kernels|fault)/[\w/]+):(\w+)`", line)
                        if not re.search(rf"^static void {case}\(void \*\*", texts.get(f"tests/{file}.c", ""), re.M)]
            missing += [name for name in re.findall(r"`((?:fault|sim)/\w+)`", line)
                        if not re.search(rf"\b{name.split('/')[1]}\b", runners)]
            for name in missing:
                findings.add(path, number, f"names a test that is not there: {name}")


def check(root):
    findings, files, texts = Findings(), tracked_files(root), {}
    for path in files:
        with open(os.path.join(root, path), "rb") as file:
            data = file.read()
        if len(data) > FILE_BYTES:
            findings.add(path, 1, f"{len(data)} bytes, at most {FILE_BYTES}")
        if b"\0" not in data:
            texts[path] = data.decode("utf-8", "replace")
        elif "/corpus/" not in path:
            findings.add(path, 1, "a binary file")
    for path, text in texts.items():
        if path.startswith(C_FOLDERS) and path.endswith((".c", ".h", ".cu", ".cuh", ".cc", ".def")):
            code = strip_comments(text)
            check_includes(path, text, files, findings)
            check_lines(path, text, findings)
            check_functions(path, code, findings)
            if path.startswith(("server/", "kernels/", "client/")):
                check_calls(path, code, findings)
            if path.endswith(".h"):
                check_guard(path, text, findings)
        elif path.endswith((".py", ".sh", ".cmake", "CMakeLists.txt")) or path == "dev":
            check_lines(path, text, findings)
    check_dead(files, texts, findings)
    check_named_tests(texts, findings)
    return findings


if __name__ == "__main__":
    found = check(sys.argv[1] if len(sys.argv) > 1 else ".")
    print("\n".join(found))
    print(f"{len(found)} findings")
    sys.exit(1 if found else 0)
