# WITH_CUDA: the CUDA back end and its kernels. On by itself where nvcc is found; off under the sanitizers and the fuzzers,
# whose stages would compile every kernel again without looking into it (the device's code is compute-sanitizer's:
# tests/kernels/sanitize.sh).
find_program(NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
if(NOT NVCC)
  set(cuda_default OFF)
  set(cuda_reason "no nvcc found")
elseif(FUSEWIRE_SANITIZE OR FUSEWIRE_FUZZ)
  set(cuda_default OFF)
  set(cuda_reason "off by default in a sanitized build")
else()
  set(cuda_default ON)
  set(cuda_reason "off by request")
endif()
option(WITH_CUDA "build the CUDA back end (needs nvcc 12.8 or newer)" ${cuda_default})
if(WITH_CUDA AND NOT NVCC)
  message(WARNING "WITH_CUDA is on, but there is no nvcc (PATH, CUDA_HOME, /usr/local/cuda): building without CUDA")
  set(WITH_CUDA OFF)
endif()

# The parts of server/backend/cuda that are pure functions: built, and tested, in every build.
set(FUSEWIRE_CUDA_PURE errors ledger buckets host_pool)

if(WITH_CUDA)
  if(NOT CMAKE_CUDA_COMPILER)
    set(CMAKE_CUDA_COMPILER "${NVCC}")
  endif()
  set(CMAKE_CUDA_ARCHITECTURES OFF) # each target of kernels/cuda.cmake names its own
  enable_language(CUDA)
  find_package(CUDAToolkit REQUIRED)
  # Headers of CUPTI, for the live audit and bench_audit; the library is opened late. One of them, C otherwise, includes
  # C++'s <string>.
  find_path(CUPTI_INCLUDE_DIR cupti_range_profiler.h HINTS ${CUDAToolkit_INCLUDE_DIRS}
    "${CUDAToolkit_LIBRARY_ROOT}/extras/CUPTI/include" "${CUDAToolkit_BIN_DIR}/../extras/CUPTI/include")
  if(CUPTI_INCLUDE_DIR)
    file(WRITE "${CMAKE_BINARY_DIR}/cupti/string" "")
    set(CUPTI_INCLUDE_DIRS "${CUPTI_INCLUDE_DIR}" "${CMAKE_BINARY_DIR}/cupti")
  endif()
  message(STATUS "CUDA back end: on (nvcc ${CMAKE_CUDA_COMPILER_VERSION}, ${CMAKE_CUDA_COMPILER})")
else()
  message(STATUS "CUDA back end: off (${cuda_reason})")
endif()

# fw_drop_cuda(SOURCES KEEP) : without CUDA, take out of a list the files under cuda/ that need it.
function(fw_drop_cuda list_name)
  if(NOT WITH_CUDA)
    set(kept "")
    foreach(source ${${list_name}})
      get_filename_component(name ${source} NAME_WE)
      string(REGEX REPLACE "^test_cuda_" "" part ${name})
      if(NOT source MATCHES "/cuda/|/unit/backend/test_cuda_" OR part IN_LIST FUSEWIRE_CUDA_PURE)
        list(APPEND kept ${source})
      endif()
    endforeach()
    set(${list_name} ${kept} PARENT_SCOPE)
  endif()
endfunction()
