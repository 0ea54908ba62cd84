#!/bin/sh
# Builds the tests of the CPU back end against oneDNN 3.2 (wheels of the Python index) and runs them: the one file that
# calls oneDNN must work with 2.x and 3.x. Not part of the suite: it downloads 40 MB and builds the kernels again.
#
#   tests/kernels/check_onednn3.sh [BUILD_FOLDER]
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
build=${1:-$root/build/onednn3}
mkdir -p "$build/wheels"
cd "$build/wheels"
python3 -m pip download -q --no-deps onednn-cpu-gomp==2023.2.0 onednn-devel-cpu-gomp==2023.2.0
for wheel in *.whl; do python3 -m zipfile -e "$wheel" .; done
include=$(dirname "$(dirname "$(dirname "$(find "$PWD" -path '*oneapi/dnnl/dnnl.h')")")")/include
library=$(find "$PWD" -name libdnnl.so.3)
cmake -G Ninja -S "$root" -B "$build" -DDNNL_INCLUDE_DIR="$include" -DDNNL_LIBRARY="$library" >/dev/null
ninja -C "$build" kernels_test_cpu_product backend_test_cpu_encoder
"$build/tests/kernels_test_cpu_product"
"$build/tests/backend_test_cpu_encoder"
ldd "$build/tests/backend_test_cpu_encoder" | grep libdnnl
