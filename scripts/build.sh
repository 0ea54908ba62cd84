# ./dev build [preset] : without a preset, cuda where there is nvcc, else release.
cmd_build() {
  local preset=${1:-release}
  [ $# = 0 ] && find_nvcc && preset=cuda
  [ "$preset" = fuzz ] && need_packages "${PACKAGES_FUZZ[@]}"
  build_preset "$preset"
  say "built: build/$preset/server/fusewired build/$preset/client/fusewire"
}
