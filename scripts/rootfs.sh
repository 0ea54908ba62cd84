#!/bin/sh
# rootfs.sh BUILD_FOLDER OUT [LIBRARY...] : a root file system of the two programs, the shared libraries they need (with the
# dynamic loader), and the configuration. What a container image holds; runs in the Dockerfile's build stage and needs no more
# than binutils. Run it from the source folder. LIBRARY: names of libraries that are opened late, so that no program lists
# them (libnvrtc.so.13); they are found through the loader's cache.
set -eu
build=$1
out=$2
shift 2
mkdir -p "$out/usr/bin" "$out/etc/fusewire" "$out/tmp"

install_library() {
  mkdir -p "$out$(dirname "$1")"
  cp -L "$1" "$out$1"
  strip --strip-unneeded "$out$1" 2>/dev/null || true
}

# "name => /path (address)" for libraries; "/lib64/ld-linux... (address)" for the loader itself.
needed_by() {
  ldd "$1" | awk '$2 == "=>" && $3 ~ /^\// {print $3} $1 ~ /^\// {print $1}'
}

{
  for program in "$build/server/fusewired" "$build/client/fusewire"; do
    strip -o "$out/usr/bin/$(basename "$program")" "$program"
    needed_by "$program"
  done
  for name in "$@"; do
    library=$(ldconfig -p | awk -v name="$name" '$1 == name {print $NF; exit}')
    [ -n "$library" ] || { echo "rootfs.sh: $name is not in the loader's cache" >&2; exit 1; }
    echo "$library"
    needed_by "$library"
  done
} | sort -u | while read -r library; do
  install_library "$library"
done

cp config/server.yaml "$out/etc/fusewire/"
cp -r config/models "$out/etc/fusewire/models"
echo 'fusewire:x:65532:65532:fusewire:/:/bin/false' >"$out/etc/passwd"
# Libraries outside the loader's own folders (CUDA's) are found through the cache.
find "$out" -name '*.so*' -printf '/%P\n' | sed 's#/[^/]*$##' | sort -u >"$out/etc/ld.so.conf"
ldconfig -r "$out" 2>/dev/null || true
