# ./dev image : the container image, target cpu, built for real without a container engine (buildah, chroot isolation),
# then started from its own root file system, sent a request, and measured.
FW_IMAGE_ROOT=$FW_CACHE/containers

cmd_image() {
  local base started=$SECONDS
  [ "$(id -u)" = 0 ] || image_skip "needs root (chroot)"
  (($(sed -n 's/^CapEff:\t/0x/p' /proc/self/status) >> 21 & 1)) || image_skip "may not mount here (CAP_SYS_ADMIN)"
  try_packages "${PACKAGES_IMAGE[@]}" || true
  have buildah || image_skip "no buildah here"
  have debootstrap || image_skip "no debootstrap here"
  need_python
  base=$(image_base) || image_skip "debootstrap failed: see .cache/debootstrap.log"
  say "building the Dockerfile's target cpu with buildah"
  fw_buildah bud --layers --isolation chroot --target cpu --build-arg "BUILD_BASE=$base" \
    -t localhost/fusewire:cpu "$FW_ROOT" >"$FW_CACHE/image.log" 2>&1 ||
    { tail -n 30 "$FW_CACHE/image.log" >&2; die "buildah failed; the whole log is .cache/image.log"; }
  note "built in $((SECONDS - started)) s"
  image_run
}

image_skip() {
  echo "SKIP image: $1"
  exit 77
}

fw_buildah() {
  buildah --storage-driver vfs --root "$FW_IMAGE_ROOT" --runroot "$FW_IMAGE_ROOT/run" "$@"
}

# A minimal system of this host's kind as the build stage's base, made once. Prints the image's name.
image_base() {
  local suite name tree=$FW_CACHE/debootstrap container components=main
  suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
  name=localhost/fusewire-base-$suite
  grep -q '^ID=ubuntu' /etc/os-release && components=main,universe
  if ! fw_buildah images -q "$name" >/dev/null 2>&1; then
    say "a minimal $suite by debootstrap, once"
    rm -rf "$tree"
    debootstrap --variant=minbase --components="$components" "$suite" "$tree" >"$FW_CACHE/debootstrap.log" 2>&1 || return 1
    rm -rf "$tree/var/cache/apt/archives"/*.deb "$tree/var/lib/apt/lists"/*
    tar -C "$tree" -cf "$tree.tar" . && rm -rf "$tree"
    container=$(fw_buildah from scratch)
    fw_buildah add "$container" "$tree.tar" / >/dev/null
    fw_buildah commit "$container" "$name" >/dev/null 2>&1
    fw_buildah rm "$container" >/dev/null
    rm -f "$tree.tar"
  fi
  printf '%s\n' "$name"
}

image_run() {
  local container mount
  container=$(fw_buildah from localhost/fusewire:cpu)
  mount=$(fw_buildah mount "$container")
  say "image: $(du -sm --apparent-size "$mount" | cut -f1) MB unpacked, $(find "$mount" -type f | wc -l) files"
  local code=0
  "$FW_PYTHON" "$FW_ROOT/tests/harness/smoke.py" --chroot "$mount" || code=$?
  fw_buildah rm "$container" >/dev/null
  [ "$code" = 0 ] || die "the image does not serve"
}
