#!/usr/bin/env bash
# gpu.sh [--quick] [OUT.jsonl] : our figures on this machine's GPU and the peers' beside them, in one run and one table.
#
# Runs from the relocatable package (./dev package cuda), builds nothing, and needs python3 with PyTorch for the peers
# (PYTHON names another interpreter). --quick leaves out the peers. See bench/gpu/README.md for what each figure is.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
[ -x libexec/cuda_bench_row ] || { echo "gpu.sh: run it from a package made by ./dev package cuda" >&2; exit 2; }
exec "${PYTHON:-python3}" bench/gpu.py "$@"
