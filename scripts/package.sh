# ./dev package [cuda] : dist/fusewire-<version>-<arch>/ and a .tar.gz of it. bin/ finds lib/ by $ORIGIN, so the tree runs from
# any place on any host whose glibc is not older than this one's. The C library, what belongs to the host's kernel and
# drivers, and CUDA's own libraries are not bundled.
#
# `cuda` is for a host with a GPU: fusewired with the CUDA back end and without oneDNN, and beside it, in libexec/, the
# programs that need a device (tests and benches), with the scripts that run them. It wants of the host: NVIDIA's driver,
# libnvrtc.so.13 (generated kernels) and libcublasLt.so.13 (without it products are our own); Python 3 for the scripts.
FW_NOT_BUNDLED='^(ld-linux|libc|libm|libdl|libpthread|librt|libresolv|libutil|libcuda|libnvidia-ml)[-.]'
FW_NOT_BUNDLED+='|^lib(cublas|cublasLt|nvrtc|cupti)[-.]'

cmd_package() {
  local what=${1:-cpu} tree
  need_packages "${PACKAGES_PACKAGE[@]}"
  case $what in
    cpu)
      tree=$FW_ROOT/dist/fusewire-$(package_version)-$(uname -m)
      build_preset release
      package_tree "$tree" "$FW_ROOT/build/release"
      ;;
    cuda)
      tree=$FW_ROOT/dist/fusewire-cuda-$(package_version)-$(uname -m)
      build_preset cuda
      package_tree "$tree" "$FW_ROOT/build/cuda"
      package_device_programs "$tree" "$FW_ROOT/build/cuda"
      ;;
    *) die "which one? ./dev package [cuda]" ;;
  esac
  package_check "$tree"
  tar -C "$(dirname "$tree")" -czf "$tree.tar.gz" "$(basename "$tree")"
  say "package: $(du -sh "$tree" | cut -f1), archive $(du -sh "$tree.tar.gz" | cut -f1)"
}

package_version() { sed -n 's/^project(fusewire VERSION \([0-9.]*\).*/\1/p' "$FW_ROOT/CMakeLists.txt"; }

package_tree() {
  local tree=$1 build=$2
  say "packaging ${tree#"$FW_ROOT"/}"
  rm -rf "$tree"
  mkdir -p "$tree/bin" "$tree/lib"
  cp "$build/server/fusewired" "$build/client/fusewire" "$tree/bin/"
  strip "$tree/bin/fusewired" "$tree/bin/fusewire"
  bundle_libraries "$tree" "$tree/bin/fusewired" "$tree/bin/fusewire"
  cp -r "$FW_ROOT/config" "$FW_ROOT/examples" "$tree/"
  cp "$FW_ROOT/README.md" "$tree/" 2>/dev/null || true
}

# What tests and measures on a GPU: programs in libexec/, scripts and what they read at the places that they have in the sources.
package_device_programs() {
  local tree=$1 build=$2 program
  mkdir -p "$tree/libexec" "$tree/tests/kernels" "$tree/bench/peers"
  for program in "$build"/tests/kernels/cuda/cuda_test_* "$build"/tests/backend_test_cuda_* "$build"/bench/gpu/cuda_bench_*; do
    [ -f "$program" ] && [ -x "$program" ] || continue
    strip -o "$tree/libexec/$(basename "$program")" "$program"
  done
  bundle_libraries "$tree" "$tree"/libexec/*
  cp -r "$FW_ROOT/tests/harness" "$FW_ROOT/tests/e2e" "$FW_ROOT/tests/golden" "$tree/tests/"
  cp "$FW_ROOT"/tests/kernels/*.sh "$tree/tests/kernels/"
  cp "$FW_ROOT"/bench/gpu.* "$tree/bench/"
  cp "$FW_ROOT"/bench/peers/gpu.py "$tree/bench/peers/"
  find "$tree" -name __pycache__ -prune -exec rm -rf {} +
}

# bundle_libraries TREE BINARY... : every shared library they need, transitively, with run paths inside the tree.
bundle_libraries() {
  local tree=$1 library name
  shift
  while read -r library; do
    name=$(basename "$library")
    [[ $name =~ $FW_NOT_BUNDLED ]] && continue
    [ -f "$tree/lib/$name" ] && continue
    cp -L "$library" "$tree/lib/$name"
    chmod u+w "$tree/lib/$name"
    strip --strip-unneeded "$tree/lib/$name"
    patchelf --set-rpath '$ORIGIN' "$tree/lib/$name"
  done < <(ldd "$@" | awk '$2 == "=>" && $3 ~ /^\// {print $3}' | sort -u)
  patchelf --set-rpath '$ORIGIN/../lib' "$@"
}

# Run it from elsewhere, with an empty environment, and see that nothing is loaded from the host but its C library.
package_check() {
  local tree=$1 elsewhere outside
  elsewhere=$(mktemp -d)
  cp -r "$tree" "$elsewhere/moved"
  outside=$(env -i ldd "$elsewhere/moved/bin/fusewired" | awk '$2 == "=>" {print $3}' | grep -v "^$elsewhere/moved/" |
    xargs -r -n1 basename | grep -Ev "$FW_NOT_BUNDLED" || true)
  [ -z "$outside" ] || { rm -rf "$elsewhere"; die "the package needs of the host: $outside"; }
  if [ -x "$FW_PYTHON" ]; then
    "$FW_PYTHON" "$FW_ROOT/tests/harness/smoke.py" "$elsewhere/moved" || { rm -rf "$elsewhere"; die "the package does not run"; }
  else
    note "not started: no Python environment (./dev test makes it)"
  fi
  rm -rf "$elsewhere"
}
