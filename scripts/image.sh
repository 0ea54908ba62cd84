# ./dev image : the container image, target cpu, built for real without a container engine (buildah, chroot isolation),
# then started from its own root file system, sent a request, and measured.
FW_IMAGE_ROOT=$FW_CACHE/containers

# ./dev image packages: only the build stage's system, which waits for package servers most of its time; ./dev test
# has it made beside its first builds.
cmd_image() {
  local base started=$SECONDS
  [ "$(id -u)" = 0 ] || image_skip "needs root (chroot)"
  image_may_mount || image_skip "may not mount here (CAP_SYS_ADMIN)"
  try_packages "${PACKAGES_IMAGE[@]}" || true
  have buildah || image_skip "no buildah here"
  have debootstrap || image_skip "no debootstrap here"
  need_python
  base=$(image_base) || image_skip "debootstrap failed: see .cache/debootstrap.log"
  if [ "${1:-}" = packages ]; then
    image_build packages-cpu
    return
  fi
  say "building the Dockerfile's target cpu with buildah"
  image_build cpu -t localhost/fusewire:cpu
  note "built in $((SECONDS - started)) s"
  image_run
}

# image_build TARGET [option...] : one build at a time
image_build() {
  local target=$1 log=$FW_CACHE/image-$1.log
  shift
  flock "$FW_CACHE/image.lock" buildah --storage-driver vfs --root "$FW_IMAGE_ROOT" --runroot "$FW_IMAGE_ROOT/run" \
    bud --layers --isolation chroot --target "$target" --build-arg "BUILD_BASE=$base" "$@" "$FW_ROOT" >"$log" 2>&1 ||
    { tail -n 30 "$log" >&2; die "buildah failed; the whole log is ${log#"$FW_ROOT"/}"; }
}

image_may_mount() {
  (($(sed -n 's/^CapEff:\t/0x/p' /proc/self/status) >> 21 & 1))
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
  (flock 9 && image_base_locked) 9>"$FW_CACHE/image-base.lock"
}

image_base_locked() {
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
