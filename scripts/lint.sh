# ./dev lint [fix] : clang-format (check, or rewrite with `fix`), then clang-tidy over the commands of the
# release build, or of the cuda build where there is nvcc (elsewhere the files that need CUDA are left out).
cmd_lint() {
  need_packages "${PACKAGES_LINT[@]}"
  local files
  mapfile -t files < <(cd "$FW_ROOT" && git ls-files {server,kernels,client,tests,bench}/'*.[ch]')
  if [ "${1:-}" = fix ]; then
    (cd "$FW_ROOT" && clang-format -i "${files[@]}")
    say "formatted ${#files[@]} files"
    return
  fi
  say "clang-format over ${#files[@]} files"
  (cd "$FW_ROOT" && clang-format --dry-run --Werror "${files[@]}") || die "not formatted: run ./dev lint fix"
  lint_tidy
}

lint_tidy() {
  local preset=release sources
  find_nvcc && preset=cuda
  build_preset "$preset" fw_proto fw_otlp # the generated headers
  say "clang-tidy"
  mapfile -t sources < <(cd "$FW_ROOT" && git ls-files 'server/*.c' 'kernels/*.c' 'client/*.c' |
    while read -r file; do grep -q "\"$FW_ROOT/$file\"" "build/$preset/compile_commands.json" && echo "$file"; done)
  (cd "$FW_ROOT" && printf '%s\n' "${sources[@]}" |
    xargs -P "$FW_JOBS" -n 1 clang-tidy --quiet -p "build/$preset" 2>/dev/null) || die "clang-tidy has findings"
  say "lint: clean"
}
