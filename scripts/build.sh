# ./dev build [preset]
cmd_build() {
  local preset=${1:-release}
  [ "$preset" = fuzz ] && need_packages "${PACKAGES_FUZZ[@]}"
  build_preset "$preset"
  say "built: build/$preset/server/fusewired build/$preset/client/fusewire"
}
