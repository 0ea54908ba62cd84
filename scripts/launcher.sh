#!/bin/sh
# In a package, bin/fusewired and bin/fusewire: starts the program of the same name in libexec/, whose libraries lie in lib/.
# The C library is the host's; where that is older than the one built with, it is lib/c, which wants no more than a kernel.
self=$(command -p readlink -f -- "$0")
tree=${self%/bin/*}
program=$tree/libexec/${self##*/}
host=$(command -p getconf GNU_LIBC_VERSION 2>/dev/null) # "glibc 2.36"
if [ "${host##*.}" -ge @MINOR@ ] 2>/dev/null; then
  exec "$program" "$@"
fi
exec "$tree/lib/c/@LOADER@" --library-path "$tree/lib/c:$tree/lib" "$program" "$@"
