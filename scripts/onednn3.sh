#!/usr/bin/env bash
# Builds kernels and CPU back end with oneDNN 3.2 (wheels of the Python index) in place of the distribution's, and runs
# their tests. Exit 77 with the reason where that can't be done.
set -euo pipefail
FW_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=scripts/common.sh
. "$FW_ROOT/scripts/common.sh"
tree=$FW_CACHE/onednn3 build=$FW_ROOT/build/onednn3

fetch() {
  [ -f "$tree/.complete" ] && return 0
  rm -rf "$tree"
  "$FW_PYTHON" -m pip download --quiet --disable-pip-version-check --no-deps -d "$tree/wheels" \
    onednn-cpu-gomp==2023.2.0 onednn-devel-cpu-gomp==2023.2.0 || return 1
  "$FW_PYTHON" - "$tree" <<'PY'
import glob, os, sys, zipfile
tree = sys.argv[1]
for wheel in glob.glob(f"{tree}/wheels/*.whl"):
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            inside = name.split(".data/data/", 1)[-1]
            if ".data/data/" in name and inside.startswith(("lib/libdnnl.so", "include/")) and not name.endswith("/"):
                os.makedirs(os.path.dirname(f"{tree}/{inside}"), exist_ok=True)
                with open(f"{tree}/{inside}", "wb") as out:
                    out.write(archive.read(name))
PY
  rm -rf "$tree/wheels"
  touch "$tree/.complete"
}

fetch || { echo "SKIP onednn3: the wheels of oneDNN 3.2 could not be had"; exit 77; }
need_packages "${PACKAGES_BUILD[@]}"
launcher=()
have ccache && launcher=(-DCMAKE_C_COMPILER_LAUNCHER=ccache)
cmake -S "$FW_ROOT" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DWITH_CUDA=OFF "${launcher[@]}" \
  -DDNNL_INCLUDE_DIR="$tree/include" -DDNNL_LIBRARY="$tree/lib/libdnnl.so.3" >/dev/null
cmake --build "$build" -j "$FW_JOBS" --target onednn_tests >"$build/build.log" 2>&1 ||
  { grep -E 'error' -A5 "$build/build.log" | head -40; exit 1; }
cd "$build"
LD_LIBRARY_PATH="$tree/lib" ctest -R '^(kernels/test_|unit/backend|unit/sched)' --output-on-failure -j "$FW_JOBS"
