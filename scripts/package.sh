# ./dev package [cuda] : dist/fusewire-<version>-<arch>/ and a .tar.gz of it, which run from any place. libexec/ finds lib/ by
# $ORIGIN; bin/ is launcher.sh, which takes the host's C library or, on an older system than this one, the one in lib/c. What
# belongs to the host's drivers, and CUDA's own libraries, are not bundled.
#
# `cuda` is for a host with a GPU: fusewired with the CUDA back end and without oneDNN, and beside it, in libexec/, the
# programs that need a device (tests and benches), with the scripts that run them. It wants of the host: NVIDIA's driver,
# libnvrtc.so.13 (generated kernels) and libcublasLt.so.13 (without it products are our own); Python 3 for the scripts.
FW_NOT_BUNDLED='^(ld-linux|libc|libm|libdl|libpthread|librt|libresolv|libutil|libcuda|libnvidia-ml)[-.]'
FW_NOT_BUNDLED+='|^lib(cublas|cublasLt|nvrtc|cupti)[-.]'

cmd_package() {
  local what=${1:-cpu} tree
  need_packages "${PACKAGES_PACKAGE[@]}"
  need_python # the check that it runs asks it by the clients of the tests
  case $what in
    cpu)
      tree=$FW_ROOT/dist/fusewire-$(package_version)-$(uname -m)
      build_preset release
      package_tree "$tree" "$FW_ROOT/build/release"
      ;;
    cuda)
      tree=$FW_ROOT/dist/fusewire-cuda-$(package_version)-$(uname -m)
      build_preset cuda-package fusewired fusewire device_programs
      package_tree "$tree" "$FW_ROOT/build/cuda-package"
      package_device_programs "$tree" "$FW_ROOT/build/cuda-package"
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
  mkdir -p "$tree/bin" "$tree/lib" "$tree/libexec"
  cp "$build/server/fusewired" "$build/client/fusewire" "$tree/libexec/"
  strip "$tree/libexec/fusewired" "$tree/libexec/fusewire"
  bundle_c_library "$tree"
  bundle_libraries "$tree" "$tree/libexec/fusewired" "$tree/libexec/fusewire"
  cp -r "$FW_ROOT/config" "$FW_ROOT/examples" "$tree/"
  cp "$FW_ROOT/README.md" "$tree/" 2>/dev/null || true
}

# What tests and measures on a GPU: one program under many names in libexec/, scripts and what they read at the places that they
# have in the sources.
package_device_programs() {
  local tree=$1 build=$2 name
  mkdir -p "$tree/tests/kernels" "$tree/bench/peers" "$tree/docs"
  strip -o "$tree/libexec/device_programs" "$build/tests/device/device_programs"
  bundle_libraries "$tree" "$tree/libexec/device_programs"
  while read -r name; do
    ln -s device_programs "$tree/libexec/$name"
  done < <(sed -n 's/^PROGRAM(\(.*\))$/\1/p' "$build/tests/device/programs.def")
  cp -r "$FW_ROOT/tests/harness" "$FW_ROOT/tests/e2e" "$FW_ROOT/tests/golden" "$tree/tests/"
  cp "$FW_ROOT"/tests/kernels/*.sh "$tree/tests/kernels/"
  cp "$FW_ROOT/docs/CONFORMANCE.md" "$tree/docs/" # test_http2.py holds its list to the tests
  cp "$FW_ROOT"/bench/gpu.* "$FW_ROOT"/bench/audit.sh "$FW_ROOT"/bench/audit_live.* "$tree/bench/"
  cp "$FW_ROOT"/bench/peers/gpu.py "$tree/bench/peers/"
  find "$tree" -name __pycache__ -prune -exec rm -rf {} +
}

# The loader and the C library of this system to lib/c, and the launchers that know when they are wanted.
bundle_c_library() {
  local tree=$1 loader libc name minor
  loader=$(patchelf --print-interpreter "$tree/libexec/fusewired")
  libc=$(ldd "$tree/libexec/fusewired" | awk '$1 == "libc.so.6" {print $3}')
  minor=$(getconf GNU_LIBC_VERSION | sed 's/.*\.//')
  mkdir -p "$tree/lib/c"
  cp -L "$loader" "$tree/lib/c/"
  for name in libc.so.6 libm.so.6 libdl.so.2 libpthread.so.0 librt.so.1 libresolv.so.2 libutil.so.1; do
    cp -L "$(dirname "$libc")/$name" "$tree/lib/c/"
  done
  for name in fusewired fusewire; do
    sed "s/@MINOR@/$minor/; s/@LOADER@/$(basename "$loader")/" "$FW_ROOT/scripts/launcher.sh" >"$tree/bin/$name"
    chmod +x "$tree/bin/$name"
  done
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

# Run it from elsewhere, with an empty environment: on this host's C library, and nothing else of the host, and on its own.
package_check() {
  local tree=$1 elsewhere outside moved
  elsewhere=$(mktemp -d)
  moved=$elsewhere/moved
  cp -r "$tree" "$moved"
  outside=$(env -i ldd "$moved/libexec/fusewired" | awk '$2 == "=>" {print $3}' | grep -v "^$moved/" |
    xargs -r -n1 basename | grep -Ev "$FW_NOT_BUNDLED" || true)
  [ -z "$outside" ] || { rm -rf "$elsewhere"; die "the package needs of the host: $outside"; }
  sed -i 's/-ge [0-9]*/-ge 999/' "$moved/bin/fusewire" # as on a system older than this one
  if ! env -i "$moved/bin/fusewire" --version >/dev/null ||
    ! env -i "$moved"/lib/c/ld-* --library-path "$moved/lib/c:$moved/lib" "$moved/libexec/fusewired" \
      --check "$moved/config/models/mlp.yaml" >/dev/null 2>&1; then
    rm -rf "$elsewhere"
    die "the package does not run on its own C library"
  fi
  if [ -x "$FW_PYTHON" ]; then
    "$FW_PYTHON" "$FW_ROOT/tests/harness/smoke.py" "$moved" || { rm -rf "$elsewhere"; die "the package does not run"; }
  else
    note "not started: no Python environment (./dev test makes it)"
  fi
  rm -rf "$elsewhere"
}
