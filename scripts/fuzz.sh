# ./dev fuzz [seconds] [target...] : libFuzzer over every parser, each for `seconds` (20), then the canary.
# New inputs go to .cache/fuzz/<name>; a crash is left in .cache/fuzz/ and named.
cmd_fuzz() {
  local seconds=20
  [[ ${1:-} =~ ^[0-9]+$ ]] && { seconds=$1; shift; }
  need_packages "${PACKAGES_FUZZ[@]}"
  build_preset fuzz fuzz_targets
  local names=("$@")
  [ ${#names[@]} -gt 0 ] || mapfile -t names < <(fuzz_names)
  local name failed=0
  for name in "${names[@]}"; do
    fuzz_one "$name" "$seconds" || failed=1
  done
  fuzz_canary || failed=1
  [ "$failed" = 0 ] || die "fuzzing found something (or the canary was not found)"
  say "fuzzing: nothing found in ${#names[@]} targets, $seconds s each; the canary was found"
}

fuzz_names() {
  local source name
  for source in "$FW_ROOT"/tests/fuzz/fuzz_*.c; do
    name=$(basename "$source" .c)
    [ "$name" = fuzz_canary ] || printf '%s\n' "${name#fuzz_}"
  done
}

fuzz_one() {
  local name=$1 seconds=$2 found=$FW_CACHE/fuzz/$1 log=$FW_CACHE/fuzz/$1.log
  local seeds=$FW_ROOT/tests/fuzz/corpus/$name dictionary=$FW_ROOT/tests/fuzz/$name.dict
  mkdir -p "$found"
  local options=(-max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1
    -artifact_prefix="$FW_CACHE/fuzz/$name-")
  [ -f "$dictionary" ] && options+=(-dict="$dictionary")
  if "$FW_ROOT/build/fuzz/tests/fuzz/fuzz_$name" "${options[@]}" "$found" "$seeds" >"$log" 2>&1; then
    note "$name: $(awk '/number_of_executed_units/ {print $2}' "$log") runs"
  else
    tail -n 30 "$log" >&2
    note "$name: FAILED, see .cache/fuzz/"
    return 1
  fi
}

fuzz_canary() {
  mkdir -p "$FW_CACHE/fuzz"
  if "$FW_ROOT/build/fuzz/tests/fuzz/fuzz_canary" -max_total_time=20 -artifact_prefix="$FW_CACHE/fuzz/canary-" \
    >"$FW_CACHE/fuzz/canary.log" 2>&1; then
    note "canary: NOT found within 20 s; the fuzzing itself is broken"
    return 1
  fi
  note "canary: found, as it must be"
}
