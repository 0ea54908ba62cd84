#!/usr/bin/env bash
# audit_live.sh [OPTION...] : the live audit (docs/TRAFFIC.md) under load, on this machine's GPU: BERT-base in both modes with the
# audit on and off, counted over expected bytes, the CPU time of the thread that reads the counters, and what it all does to p50.
# From a package (./dev package cuda) or a build of preset cuda; nothing else may use the GPU or its counters. `--help` has the
# options. Exit 1: a figure misses what is wanted of it; 77: no GPU, or its counters cannot be had.
set -euo pipefail
exec "${PYTHON:-python3}" "$(dirname "${BASH_SOURCE[0]}")/audit_live.py" "$@"
