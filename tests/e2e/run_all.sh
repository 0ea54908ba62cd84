#!/usr/bin/env bash
# run_all.sh [cuda|cpu] [NAME...] : the whole end-to-end suite (or test_NAME.py alone) against an installed tree (./dev
# package), for a host without the build: a line for each file, what was skipped and why; exit 1 if anything failed. Needs
# python3 with the packages of scripts/requirements.txt (PYTHON names another interpreter). A file that takes longer than
# FILE_SECONDS (300) is ended and failed.
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
export FUSEWIRE_TEST_DEVICE=${1:-cuda} PYTHONUNBUFFERED=1
[ $# -gt 1 ] && files=("${@:2}") && files=("${files[@]/#/$root/tests/e2e/test_}") && files=("${files[@]/%/.py}")
[ $# -gt 1 ] || files=("$root"/tests/e2e/test_*.py)
log=$(mktemp) failed=0
trap 'rm -f "$log"' EXIT
for file in "${files[@]}"; do
  began=$SECONDS code=0
  timeout "${FILE_SECONDS:-300}" "${PYTHON:-python3}" "$root/tests/harness/run.py" "$file" \
    --daemon "$root/bin/fusewired" --client "$root/bin/fusewire" >"$log" 2>&1 || code=$?
  case $code in 0) word=passed ;; 77) word=skipped ;; *) word=FAILED failed=1 ;; esac
  printf '%-8s %-20s %3d s  %s\n' "$word" "$(basename "$file" .py)" $((SECONDS - began)) "$(grep -E '^Ran [0-9]+' "$log")"
  grep -E '^SKIP|least cosine|start to ready|most requests' "$log" | sed 's/^/    /'
  [ $code = 124 ] && tail -n 8 "$log" | sed 's/^/    /'
  [ $word = FAILED ] && grep -E '^(FAIL|ERROR):|Error|^  File' -A12 "$log" | head -n "${LINES_SHOWN:-120}" | sed 's/^/    /'
done
exit $failed
