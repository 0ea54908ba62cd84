#!/usr/bin/env bash
# sanitize.sh [PROGRAMS] : compute-sanitizer's memcheck, racecheck and synccheck over the small cases of the kernel tests.
# PROGRAMS: the folder of cuda_test_* (default: libexec/ of a package, else build/cuda/tests/kernels/cuda).
# TOOLS="memcheck ..." and TESTS="cuda_test_row ..." choose. Exit 77 where there is no GPU or it refuses the tool (some
# virtual machines do), 1 on a finding.
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
programs=${1:-$root/libexec}
[ -d "$programs" ] || programs=$root/build/cuda/tests/kernels/cuda
sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
log=$(mktemp)
trap 'rm -f "$log"' EXIT

skip() {
  echo "SKIP sanitize: $1"
  exit 77
}

[ -x "$sanitizer" ] || skip "no compute-sanitizer here"
[ -x "$programs/cuda_test_table" ] || { echo "sanitize.sh: no cuda_test_table in $programs" >&2; exit 2; }
"$sanitizer" --tool memcheck "$programs/cuda_test_table" none >"$log" 2>&1
if [ $? = 77 ] || grep -q "no GPU here" "$log"; then skip "no GPU here"; fi
grep -q "ERROR SUMMARY" "$log" || { head -5 "$log"; skip "compute-sanitizer is refused here"; }

failed=0
for tool in ${TOOLS:-memcheck racecheck synccheck}; do
  options=(--tool "$tool" --error-exitcode 9 --print-limit 5)
  [ "$tool" = memcheck ] && options+=(--leak-check full)
  for test in ${TESTS:-cuda_test_table cuda_test_row cuda_test_attention cuda_test_gemm_norm}; do
    began=$SECONDS code=0
    "$sanitizer" "${options[@]}" "$programs/$test" small >"$log" 2>&1 || code=$?
    printf '%-10s %-20s %3d s  %s\n' "$tool" "$test" $((SECONDS - began)) \
      "$(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY' "$log" | tail -1 | sed 's/^=* *//')"
    if [ $code != 0 ]; then
      failed=1
      grep -vE '^[[:space:]]*$' "$log" | head -${LINES_SHOWN:-40}
    fi
  done
done
exit $failed
