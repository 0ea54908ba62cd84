# ./dev bench WHAT [arguments] : ours beside the peers in one run; results under bench/results/.
#   cpu   MiniLM and a BERT-base shape beside PyTorch, onnxruntime, OpenVINO   (bench/peers/cpu.py --help)
#   rpc   the gRPC path with an identity model beside gRPC C++                 (bench/peers/rpc.py --help)
#   soak  ten minutes of abuse beside honest load: the conservation law, files, flat memory   (tests/harness/soak.py --help)
#   deadlines [CALLS]  100,000 calls with deadlines around the service time under ThreadSanitizer
#   tsan  [ctest argument...]  every test of what has threads, end-to-end tests included, under ThreadSanitizer
#   faults  every single allocation of TLS, calls, streams, reloads and scrapes failing in turn
#   overload   an honest client's latency beside peers that take without giving   (bench/overload.py --help)
#   ab    fused against unfused, in total and by kind of step                  (bench/ab.py --help)
#   chain, reductions, epilogue, attention   fused against separate, measured against predicted   (bench/fusion.py --help)
#   predicted   what the cost model makes of every measurement in bench/results   (tests/unit/graph/test_recorded*.c)
cmd_bench() {
  local what=${1:-}
  shift || true
  case $what in
    cpu | rpc | ab | overload) ;;
    soak | deadlines | tsan | faults)
      "bench_$what" "$@"
      return
      ;;
    chain | reductions | epilogue | attention)
      bench_fusion "$what" "$@"
      return
      ;;
    predicted)
      need_packages "${PACKAGES_BUILD[@]}"
      build_preset release graph_test_recorded graph_test_recorded_kernels
      (cd "$FW_ROOT" && build/release/tests/graph_test_recorded && build/release/tests/graph_test_recorded_kernels)
      return
      ;;
    *)
      die "which one? ./dev bench cpu|rpc|overload|ab|soak|deadlines|tsan|faults|chain|reductions|epilogue|attention" \
        "or predicted"
      ;;
  esac
  mkdir -p "$FW_ROOT/bench/results"
  need_packages "${PACKAGES_BUILD[@]}" "${PACKAGES_DEMO[@]}"
  need_python
  need_model
  build_preset release
  "bench_$what" "$@"
}

bench_cpu() {
  local venv=$FW_CACHE/peers/venv wanted=$FW_ROOT/bench/peers/requirements.txt
  if ! cmp -s "$wanted" "$venv/.requirements"; then
    say "environment of the peers in .cache/peers (4 GB, most of it PyTorch)"
    mkdir -p "$FW_CACHE/peers"
    /usr/bin/python3 -m venv --clear "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check -r "$wanted" >&2
    cp "$wanted" "$venv/.requirements"
  fi
  "$venv/bin/python" "$FW_ROOT/bench/peers/cpu.py" "$@"
}

bench_rpc() {
  need_packages "${PACKAGES_RPC_BENCH[@]}"
  build_grpc_peer
  "$FW_PYTHON" "$FW_ROOT/bench/peers/rpc.py" "$@"
}

# The peer is built like a user would: distribution's gRPC, -O2.
build_grpc_peer() {
  local source=$FW_ROOT/bench/peers/grpc_cpp out=$FW_CACHE/peers/grpc_cpp
  mkdir -p "$out"
  local bare=$FW_ROOT/bench/peers/bare_tcp.c
  [ "$FW_CACHE/peers/bare_tcp" -nt "$bare" ] ||
    cc -O2 -std=c17 -Wall -Wextra "$bare" -o "$FW_CACHE/peers/bare_tcp"
  [ "$out/peer" -nt "$source/peer.cc" ] && [ "$out/peer" -nt "$source/echo.proto" ] && return 0
  say "building the gRPC C++ peer"
  protoc -I"$source" --cpp_out="$out" --grpc_out="$out" \
    --plugin=protoc-gen-grpc="$(command -v grpc_cpp_plugin)" "$source/echo.proto"
  # shellcheck disable=SC2046
  g++ -O2 -std=c++17 -I"$out" "$source/peer.cc" "$out/echo.pb.cc" "$out/echo.grpc.pb.cc" -o "$out/peer" \
    $(pkg-config --cflags --libs grpc++ protobuf) -lpthread
}

bench_soak() {
  need_packages "${PACKAGES_BUILD[@]}"
  need_python
  build_preset release fusewired fault_leak
  "$FW_PYTHON" "$FW_ROOT/tests/harness/soak.py" "$@"
}

bench_deadlines() {
  local calls=${1:-100000} out=$FW_ROOT/bench/results/deadlines-tsan.txt
  need_packages "${PACKAGES_BUILD[@]}"
  need_python
  build_preset tsan fusewired sim_deadlines
  export TSAN_OPTIONS=$FW_TSAN_OPTIONS
  {
    printf './dev bench deadlines %s, %s, %s\nexecutor and a device that takes real time: ' "$calls" "$(date -u '+%F %R')" \
      "$(git -C "$FW_ROOT" rev-parse --short HEAD)"
    (cd "$FW_ROOT" && FW_DEADLINE_CALLS=$calls build/tsan/tests/sim/sim_deadlines)
    printf 'the daemon, two connections: '
    FUSEWIRE_DEADLINE_CALLS=$calls "$FW_PYTHON" "$FW_ROOT/tests/harness/run.py" "$FW_ROOT/tests/e2e/test_deadlines.py" \
      --daemon "$FW_ROOT/build/tsan/server/fusewired" --sanitizer thread 2>&1 |
      sed -n 's/^test_.*[.][.][.] //p; /^\(OK\|FAILED\|Ran\)/p'
  } | tee "$out"
  grep -q '^OK$' "$out" || die "some call did not end as it must"
}

# Everything that has threads, where `./dev test tsan` runs what costs least: without the layers that are pure functions.
bench_tsan() {
  local out=$FW_ROOT/bench/results/tsan.txt xml=$FW_CACHE/tsan.xml started=$SECONDS
  need_packages "${PACKAGES_BUILD[@]}"
  need_python
  (need_clients) || note "not every foreign client: the tests of those that lack are skipped"
  build_preset tsan
  rm -f "$xml"
  (cd "$FW_ROOT/build/tsan" && TSAN_OPTIONS=$FW_TSAN_OPTIONS ctest --output-on-failure --timeout 900 -j "$FW_JOBS" \
    --output-junit "$xml" \
    -R '^(unit/(api|audit|backend|base|client|net|obs|rpc|sched|trace)/|sim/|fault/|e2e/)' "$@") >&2 || true
  {
    printf './dev bench tsan%s, %s, %s, %s cores, %s s\n' "${*:+ $*}" "$(date -u '+%F %R')" \
      "$(git -C "$FW_ROOT" rev-parse --short HEAD)" "$(nproc)" $((SECONDS - started))
    "$FW_PYTHON" "$FW_ROOT/scripts/junit_summary.py" --times "$xml"
  } | tee "$out"
  ! grep -q '^FAILED' "$out" || die "some of it failed under ThreadSanitizer"
}

bench_faults() {
  local out=$FW_ROOT/bench/results/faults.txt
  need_packages "${PACKAGES_BUILD[@]}"
  need_python
  build_preset release fusewired fault_preload fault_tls fault_infer fault_load
  {
    printf './dev bench faults, %s, %s\n' "$(date -u '+%F %R')" "$(git -C "$FW_ROOT" rev-parse --short HEAD)"
    (cd "$FW_ROOT" && build/release/tests/fault/fault_load && build/release/tests/fault/fault_infer &&
      FW_FAULT_STEP=1 build/release/tests/fault/fault_tls 2>&1 | grep -E 'allocations|PASSED|FAILED')
    FUSEWIRE_FAULTS_ALL=1 "$FW_PYTHON" "$FW_ROOT/tests/harness/run.py" "$FW_ROOT/tests/e2e/test_failing_system.py" 2>&1 |
      grep -oE '[a-zA-Z]+: [0-9]+ allocations.*|^(OK|FAILED).*|^Ran .*|failed on purpose.*|[0-9]+ of 40 served.*'
  } | tee "$out"
  grep -q '^OK$' "$out" || die "some failure was not survived"
}

bench_overload() { "$FW_PYTHON" "$FW_ROOT/bench/overload.py" "$@"; }

bench_ab() { "$FW_PYTHON" "$FW_ROOT/bench/ab.py" "$@"; }

# With --from it only draws what was measured elsewhere.
bench_fusion() {
  need_packages "${PACKAGES_BUILD[@]}"
  need_python
  if [[ " $* " = *" --from "* ]]; then
    build_preset release graph_test_recorded # what was measured, beside what is predicted today
  else
    build_preset release bench_fusion
  fi
  "$FW_PYTHON" "$FW_ROOT/bench/fusion.py" "$@"
}
