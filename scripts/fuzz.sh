# ./dev fuzz [seconds | runs=N] [target...] : libFuzzer over every parser, each for `seconds` (20) or for N runs, then the canary.
# New inputs go to .cache/fuzz/<name>; a crash is left in .cache/fuzz/ and named. A run of runs=N is recorded in
# bench/results/fuzz.txt, one line a target.
cmd_fuzz() {
  local limit=-max_total_time=20 words="20 s"
  if [[ ${1:-} =~ ^(runs=)?[0-9]+$ ]]; then
    if [[ $1 = runs=* ]]; then limit=-$1 words="${1#runs=} runs"; else limit=-max_total_time=$1 words="$1 s"; fi
    shift
  fi
  need_packages "${PACKAGES_FUZZ[@]}"
  build_preset fuzz fuzz_targets
  local names=("$@")
  [ ${#names[@]} -gt 0 ] || mapfile -t names < <(fuzz_names)
  local name failed=0 running=0
  for name in "${names[@]}"; do # as many at once as there are cores
    if [ "$running" -ge "$FW_JOBS" ]; then
      wait -n || failed=1
      running=$((running - 1))
    fi
    fuzz_one "$name" "$limit" &
    running=$((running + 1))
  done
  for (( ; running > 0; running--)); do wait -n || failed=1; done
  fuzz_canary || failed=1
  [ "$failed" = 0 ] || die "fuzzing found something (or the canary was not found)"
  say "fuzzing: nothing found in ${#names[@]} targets, $words each; the canary was found"
}

fuzz_names() {
  local source name
  for source in "$FW_ROOT"/tests/fuzz/fuzz_*.c; do
    name=$(basename "$source" .c)
    [ "$name" = fuzz_canary ] || printf '%s\n' "${name#fuzz_}"
  done
}

# fuzz_one NAME LIMIT : LIMIT is libFuzzer's own option. A target whose source says `// max_len: N` gets inputs of at most N bytes
# in nine tenths of its runs, since short ones run many times as often, and up to 4,096 in the rest.
fuzz_one() {
  local name=$1 kind=${2%=*} all=${2#*=} log=$FW_CACHE/fuzz/$1.log began=$SECONDS code=0 short long commit
  commit=$(git -C "$FW_ROOT" rev-parse --short HEAD)
  mkdir -p "$FW_CACHE/fuzz/$name"
  # Copied first, so that a build meanwhile is no matter.
  cp "$FW_ROOT/build/fuzz/tests/fuzz/fuzz_$name" "$FW_CACHE/fuzz/fuzz_$name"
  short=$(sed -n 's|^// max_len: ||p' "$FW_ROOT/tests/fuzz/fuzz_$name.c")
  long=$((short ? all / 10 : all))
  : >"$log"
  [ -z "$short" ] || fuzz_session "$name" "$kind=$((all - long))" "-max_len=$short" || code=$?
  # 0 of anything is no limit to libFuzzer.
  if [ "$code" = 0 ] && [ "$long" -gt 0 ]; then fuzz_session "$name" "$kind=$long" ${short:+-max_len=4096} || code=$?; fi
  local runs seconds=$((SECONDS - began))
  runs=$(awk '/number_of_executed_units/ {sum += $2} END {print sum + 0}' "$log")
  case $code in
    0) note "$name: $runs runs" ;;
    72) note "$name: interrupted after $runs runs" ;;
    *) tail -n 30 "$log" >&2; note "$name: FAILED, see .cache/fuzz/" ;;
  esac
  if [ "$kind" = -runs ]; then fuzz_record "$name" "$runs" "$seconds" "$code" "$commit"; fi
  return "$code"
}

# fuzz_session NAME OPTION... : one life of a target.
fuzz_session() {
  local name=$1 dictionary=$FW_ROOT/tests/fuzz/$1.dict found=$FW_CACHE/fuzz/$1
  shift
  local options=(-timeout=30 -rss_limit_mb=2048 -reload=0 -print_final_stats=1 -artifact_prefix="$FW_CACHE/fuzz/$name-")
  [ -f "$dictionary" ] && options+=(-dict="$dictionary")
  # A small quarantine and short stacks of allocations: a run is short, and fresh pages cost more than the allocator.
  ASAN_OPTIONS=quarantine_size_mb=4:malloc_context_size=2 "$FW_CACHE/fuzz/fuzz_$name" "${options[@]}" "$@" "$found" \
    "$FW_ROOT/tests/fuzz/corpus/$name" >>"$FW_CACHE/fuzz/$name.log" 2>&1
}

fuzz_record() {
  local verdict="nothing found"
  [ "$4" = 0 ] || verdict="FOUND something"
  [ "$4" != 72 ] || verdict="nothing found until it was interrupted"
  printf '%s %-12s %9d runs %6d s %7d/s  %s  %s\n' "$(date -u +%F)" "$1" "$2" "$3" $(($2 / ($3 > 0 ? $3 : 1))) \
    "$5" "$verdict" >>"$FW_ROOT/bench/results/fuzz.txt"
  local sum='$2 == name && /nothing found/ {sum += $3} END {print sum + 0}'
  note "$1: $(awk -v name="$1" "$sum" "$FW_ROOT/bench/results/fuzz.txt") runs in all recorded sessions"
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
