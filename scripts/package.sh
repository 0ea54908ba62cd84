# ./dev package : dist/fusewire-<version>-<arch>/ and a .tar.gz of it. bin/ finds lib/ by $ORIGIN, so the tree runs from
# any place on any host whose glibc is not older than this one's. The C library and what belongs to the host's kernel
# and drivers are not bundled.
FW_NOT_BUNDLED='^(ld-linux|libc|libm|libdl|libpthread|librt|libresolv|libutil|libcuda|libnvidia-ml)[-.]'

cmd_package() {
  need_packages "${PACKAGES_PACKAGE[@]}"
  build_preset release
  local tree
  tree=$FW_ROOT/dist/fusewire-$(package_version)-$(uname -m)
  say "packaging ${tree#"$FW_ROOT"/}"
  package_tree "$tree"
  package_check "$tree"
  tar -C "$(dirname "$tree")" -czf "$tree.tar.gz" "$(basename "$tree")"
  say "package: $(du -sh "$tree" | cut -f1), archive $(du -sh "$tree.tar.gz" | cut -f1)"
}

package_version() { sed -n 's/^project(fusewire VERSION \([0-9.]*\).*/\1/p' "$FW_ROOT/CMakeLists.txt"; }

package_tree() {
  local tree=$1
  rm -rf "$tree"
  mkdir -p "$tree/bin" "$tree/lib"
  cp "$FW_ROOT/build/release/server/fusewired" "$FW_ROOT/build/release/client/fusewire" "$tree/bin/"
  strip "$tree/bin/fusewired" "$tree/bin/fusewire"
  bundle_libraries "$tree" "$tree/bin/fusewired" "$tree/bin/fusewire"
  cp -r "$FW_ROOT/config" "$FW_ROOT/examples" "$tree/"
  cp "$FW_ROOT/README.md" "$tree/" 2>/dev/null || true
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
