# ./dev bench WHAT [arguments] : ours beside the peers in one run; results under bench/results/.
#   cpu   MiniLM and a BERT-base shape beside PyTorch, onnxruntime, OpenVINO   (bench/peers/cpu.py --help)
#   rpc   the gRPC path with an identity model beside gRPC C++                 (bench/peers/rpc.py --help)
#   soak  ten minutes of abuse beside honest load: the conservation law, files, flat memory   (tests/harness/soak.py --help)
#   ab    fused against unfused, in total and by kind of step                  (bench/ab.py --help)
#   chain, reductions, epilogue, attention   fused against separate, measured against predicted   (bench/fusion.py --help)
cmd_bench() {
  local what=${1:-}
  shift || true
  case $what in
    cpu | rpc | ab) ;;
    soak)
      bench_soak "$@"
      return
      ;;
    chain | reductions | epilogue | attention)
      bench_fusion "$what" "$@"
      return
      ;;
    *) die "which one? ./dev bench cpu|rpc|ab|soak|chain|reductions|epilogue|attention" ;;
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
  build_preset release fusewired
  "$FW_PYTHON" "$FW_ROOT/tests/harness/soak.py" "$@"
}

bench_ab() { "$FW_PYTHON" "$FW_ROOT/bench/ab.py" "$@"; }

# With --from it only draws what was measured elsewhere.
bench_fusion() {
  need_packages "${PACKAGES_BUILD[@]}"
  need_python
  [[ " $* " = *" --from "* ]] || build_preset release bench_fusion
  "$FW_PYTHON" "$FW_ROOT/bench/fusion.py" "$@"
}
