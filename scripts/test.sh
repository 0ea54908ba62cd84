# ./dev test [quick | STAGE...]. Each stage is one function; its results are JUnit files in .cache/results, which
# junit_summary.py turns into the list of what was skipped and why, what failed, and the closing line.
TEST_STAGES=(release cuda asan tsan onednn3 fuzz package image)
FW_RESULTS=$FW_CACHE/results

cmd_test() {
  local stages=("${TEST_STAGES[@]}") stage started=$SECONDS
  if [ "${1:-}" = quick ]; then
    stages=(release)
  elif [ $# -gt 0 ]; then
    stages=("$@")
  fi
  rm -rf "$FW_RESULTS"
  mkdir -p "$FW_RESULTS"
  need_packages "${PACKAGES_BUILD[@]}" "${PACKAGES_DEMO[@]}"
  need_python
  (need_clients) || note "not every foreign client: the tests of those that lack are skipped"
  need_model || note "no model: the tests that need it are skipped"
  if [[ " ${stages[*]} " = *" image "* && $(id -u) = 0 ]]; then
    try_packages "${PACKAGES_IMAGE[@]}" "${PACKAGES_FUZZ[@]}" "${PACKAGES_PACKAGE[@]}" || true
    "$FW_ROOT/dev" image packages >"$FW_CACHE/image-packages.out" 2>&1 </dev/null &
  fi
  for stage in "${stages[@]}"; do
    declare -F "stage_$stage" >/dev/null || die "no such stage: $stage (stages: ${TEST_STAGES[*]})"
    say "stage $stage ($((SECONDS - started)) s so far)"
    "stage_$stage"
  done
  say "finished after $((SECONDS - started)) s"
  "$FW_PYTHON" "$FW_ROOT/scripts/junit_summary.py" "$FW_RESULTS"/*.xml
}

# run_ctest NAME PRESET [ctest argument...] : a failure shows in the summary, not in the exit status here.
run_ctest() {
  local name=$1 dir=$FW_ROOT/build/$2
  shift 2
  (cd "$dir" && ctest --output-on-failure --test-output-size-passed 65536 --timeout 300 -j "$FW_JOBS" \
    --output-junit "$FW_RESULTS/$name.xml" "$@") >&2 || true
  [ -s "$FW_RESULTS/$name.xml" ] || die "ctest wrote no results for $name"
}

# run_step NAME COMMAND... : a test that is not ctest's. Exit 77 means skipped, its output saying why.
run_step() {
  local name=$1 log=$FW_RESULTS/$1.log code=0 started=$SECONDS
  shift
  "$@" >"$log" 2>&1 || code=$?
  cat "$log" >&2
  "$FW_PYTHON" "$FW_ROOT/scripts/junit_step.py" "$name" "$code" "$((SECONDS - started))" "$log" >"$FW_RESULTS/$name.xml"
}

stage_release() {
  build_preset release
  run_ctest release release
}

# With the CUDA back end: all of it compiled and linked for every architecture, every test that needs no device run, and the
# programs that need one listed as skipped (they run where there is one). `device: auto` must fall back to the CPU here.
stage_cuda() {
  if ! try_nvcc; then
    run_step cuda bash -c 'echo "SKIP: no nvcc here, and none could be fetched"; exit 77'
    return
  fi
  build_preset cuda
  LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$CUDA_HOME/lib64" run_ctest cuda cuda \
    -R '^(kernels/cuda/|unit/(backend|sched|model|conf)/|sim/|fault/|e2e/(check|serving))'
}

# Everything again under AddressSanitizer and UndefinedBehaviorSanitizer, leaks included; not what runs none of our programs.
stage_asan() {
  build_preset asan
  ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1:abort_on_error=0 \
    UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1 run_ctest asan asan -E '^(tidy/|golden/reference)'
}

# What more than one thread touches, as far as it is cheap; `./dev bench tsan` runs all.
stage_tsan() {
  local e2e='ab|abuse|deadlines|serving|life|health|log|soak|stream|reload|trace'
  build_preset tsan concurrent_tests
  TSAN_OPTIONS=$FW_TSAN_OPTIONS run_ctest tsan tsan \
    -R "^(unit/(base|obs|sched|net|api|rpc)/|sim/|e2e/(${e2e}))"
}

# oneDNN changed its C interface between 2.x and 3.x; the file that calls it must build and be right with both.
stage_onednn3() {
  run_step onednn3 bash "$FW_ROOT/scripts/onednn3.sh"
}

stage_fuzz() {
  try_packages "${PACKAGES_FUZZ[@]}" || true
  run_step fuzz "$FW_ROOT/dev" fuzz "${FW_FUZZ_SECONDS:-3}"
}

stage_package() {
  try_packages "${PACKAGES_PACKAGE[@]}" || true
  run_step package "$FW_ROOT/dev" package
}

stage_image() {
  run_step image "$FW_ROOT/dev" image
}
