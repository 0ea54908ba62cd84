# The CUDA kernels as a library of their own (fw_kernels_cuda): C launchers, and .cu files of two kinds. Included only
# when WITH_CUDA is ON. Nothing of CUDA is linked but cudart, statically (it opens the driver's libcuda late): cuBLASLt
# and NVRTC are opened by name where they are used, so one binary runs with and without a GPU.

# The text that stands before generated kernels, as a C array.
set(prelude_sources "${CMAKE_CURRENT_SOURCE_DIR}/common/act.cuh" "${CMAKE_CURRENT_SOURCE_DIR}/codegen/prelude.cuh")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${prelude_sources})
set(prelude_bytes "")
foreach(source ${prelude_sources})
  file(READ ${source} bytes HEX)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
  string(APPEND prelude_bytes "${bytes}")
endforeach()
file(CONFIGURE OUTPUT "${CMAKE_CURRENT_BINARY_DIR}/row_prelude.c" @ONLY CONTENT
  "extern const char row_prelude[];\nconst char row_prelude[] = {@prelude_bytes@ 0};\n")

# Files that use TMA and wgmma run on sm_90a alone. All others are built for sm_80 (which serves 8.6 and 8.9 too) and sm_90,
# with PTX that newer cards translate.
file(GLOB cuda_cu CONFIGURE_DEPENDS elementwise/*.cu gemm/*.cu attention/*.cu norm/*.cu)
set(cuda_sm90 ${cuda_cu})
list(FILTER cuda_sm90 INCLUDE REGEX "sm90|/flash_(bf16|f16)[.]|/gemm_small_")
set(cuda_portable ${cuda_cu})
list(REMOVE_ITEM cuda_portable ${cuda_sm90})

# fw_cuda_objects(NAME ARCHITECTURES SOURCES...) : -Werror all-warnings covers ignored setmaxnreg; spills are a warning of
# ptxas's own; wgmma that is serialised is none at all (strict_nvcc.sh).
function(fw_cuda_objects name architectures)
  add_library(${name} OBJECT ${ARGN})
  set_target_properties(${name} PROPERTIES CUDA_STANDARD 17 CUDA_ARCHITECTURES "${architectures}"
    RULE_LAUNCH_COMPILE "${CMAKE_SOURCE_DIR}/cmake/strict_nvcc.sh")
  target_include_directories(${name} PRIVATE "${CMAKE_SOURCE_DIR}")
  target_compile_options(${name} PRIVATE -Werror=all-warnings -Xptxas=--warn-on-spills -Xptxas=-Werror
    -lineinfo --compress-mode=size -Xcompiler=-fvisibility=hidden) # a fifth of the size; unpacked once, at load
endfunction()
fw_cuda_objects(fw_cuda_sm90 "90a-real" ${cuda_sm90})
fw_cuda_objects(fw_cuda_portable "80-real;90" ${cuda_portable})

file(GLOB cuda_c CONFIGURE_DEPENDS codegen/jit*.c elementwise/*.c gemm/*.c attention/*.c norm/*.c common/*.c)
add_library(fw_kernels_cuda STATIC ${cuda_c} "${CMAKE_CURRENT_BINARY_DIR}/row_prelude.c"
  $<TARGET_OBJECTS:fw_cuda_sm90> $<TARGET_OBJECTS:fw_cuda_portable>)
target_include_directories(fw_kernels_cuda SYSTEM PUBLIC ${CUDAToolkit_INCLUDE_DIRS})
target_link_libraries(fw_kernels_cuda PUBLIC fw_kernels_common CUDA::cudart_static PkgConfig::OPENSSL ${CMAKE_DL_LIBS})
