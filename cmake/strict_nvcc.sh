#!/bin/sh
# strict_nvcc.sh COMMAND...: runs a compiler, and fails also where ptxas lets matrix instructions wait for one
# another. It calls that information, which no option turns into an error; such a product takes half as long again.
said=$("$@" 2>&1)
status=$?
[ -z "$said" ] || printf '%s\n' "$said" >&2
case $said in
*'Potential Performance Loss'*) exit 1 ;;
esac
exit $status
