#!/bin/sh
# rootfs.sh BUILD_FOLDER OUT : a root file system of the two programs, the shared libraries they need (with the dynamic
# loader), and the configuration. What a container image holds; runs in the Dockerfile's build stage and needs no more
# than binutils. Run it from the source folder.
set -eu
build=$1
out=$2
mkdir -p "$out/usr/bin" "$out/etc/fusewire" "$out/tmp"

install_library() {
  mkdir -p "$out$(dirname "$1")"
  cp -L "$1" "$out$1"
  strip --strip-unneeded "$out$1" 2>/dev/null || true
}

for program in "$build/server/fusewired" "$build/client/fusewire"; do
  strip -o "$out/usr/bin/$(basename "$program")" "$program"
  # "name => /path (address)" for libraries; "/lib64/ld-linux... (address)" for the loader itself.
  ldd "$program" | awk '$2 == "=>" && $3 ~ /^\// {print $3} $1 ~ /^\// {print $1}'
done | sort -u | while read -r library; do
  install_library "$library"
done

cp config/server.yaml "$out/etc/fusewire/"
cp -r config/models "$out/etc/fusewire/models"
echo 'fusewire:x:65532:65532:fusewire:/:/bin/false' >"$out/etc/passwd"
# Libraries outside the loader's own folders (CUDA's) are found through the cache.
ldconfig -r "$out" 2>/dev/null || true
