# Compiler options for all of our own code, as one interface target.
add_library(fw_options INTERFACE)
# For C only: nvcc has words of its own (kernels/cuda.cmake).
set(fw_warnings -Wall -Wextra -Werror -Wshadow -Wvla -Wpointer-arith -Wstrict-prototypes -Wmissing-prototypes
  -Wwrite-strings -Wundef -Wformat=2 -fno-common -fvisibility=hidden -fno-strict-aliasing)
target_compile_options(fw_options INTERFACE "$<$<COMPILE_LANGUAGE:C>:${fw_warnings}>")
target_compile_definitions(fw_options INTERFACE _GNU_SOURCE FUSEWIRE_VERSION="${PROJECT_VERSION}")
# -iquote, not -I: <...> is the system, "..." is ours.
target_compile_options(fw_options INTERFACE "$<$<COMPILE_LANGUAGE:C>:SHELL:-iquote ${CMAKE_SOURCE_DIR}/server>"
  "$<$<COMPILE_LANGUAGE:C>:SHELL:-iquote ${CMAKE_SOURCE_DIR}>")
# Line numbers and functions for backtraces, without variables: these double the compile time of the unrolled kernels.
# The preset debug has everything.
set(CMAKE_C_FLAGS_RELWITHDEBINFO "-O2 -g1 -DNDEBUG")
if(FUSEWIRE_SANITIZE)
  target_compile_options(fw_options INTERFACE
    "$<$<COMPILE_LANGUAGE:C>:-fsanitize=${FUSEWIRE_SANITIZE};-fno-omit-frame-pointer>")
  target_link_options(fw_options INTERFACE -fsanitize=${FUSEWIRE_SANITIZE})
  if(FUSEWIRE_SANITIZE MATCHES "undefined")
    target_compile_options(fw_options INTERFACE $<$<COMPILE_LANGUAGE:C>:-fno-sanitize-recover=undefined>)
  endif()
endif()
if(FUSEWIRE_FUZZ)
  target_compile_options(fw_options INTERFACE $<$<COMPILE_LANGUAGE:C>:-fsanitize=fuzzer-no-link>)
endif()

# fw_library(NAME DEPS...): every .c of the calling folder (and its subfolders) as a static library.
# A library without sources yet becomes an interface library, so that a new layer links from its first day.
function(fw_library name)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/*.c")
  fw_drop_cuda(sources)
  if(sources)
    add_library(${name} STATIC ${sources})
    target_link_libraries(${name} PUBLIC fw_options ${ARGN})
  else()
    add_library(${name} INTERFACE)
    target_link_libraries(${name} INTERFACE fw_options ${ARGN})
  endif()
endfunction()
