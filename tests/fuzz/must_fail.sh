#!/bin/sh
# must_fail.sh COMMAND... : succeeds only when the command fails, be it by an exit code or by a signal.
if "$@" >/dev/null 2>&1; then
  echo "expected a failure, but this succeeded: $*"
  exit 1
fi
echo "failed, as it must"
