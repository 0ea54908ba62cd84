#!/usr/bin/env bash
# audit.sh [--json FILE] [CASE...] : the traffic model (docs/TRAFFIC.md) against the counters of the GPU's memory, for every kind
# of kernel and for whole encoder stacks; a table on standard output. From a package (./dev package cuda) or a build of preset
# cuda. Nothing else may use the GPU meanwhile. Exit 1: something lies out of its band; 77: no GPU, or its counters are refused.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
for program in "$root/libexec/cuda_bench_audit" "$root/build/cuda/bench/gpu/cuda_bench_audit"; do
  [ -x "$program" ] && exec "$program" "$@"
done
echo "audit.sh: no cuda_bench_audit: ./dev package cuda, or ./dev build cuda with the toolkit's CUPTI headers" >&2
exit 2
