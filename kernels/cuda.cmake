# The CUDA kernels as a library of their own (fw_kernels_cuda). Included only when WITH_CUDA is ON.
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)
enable_testing()

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

# Free-standing: it has its own copy of the generator and of types.c, and needs neither oneDNN nor the CPU kernels.
file(GLOB cuda_c CONFIGURE_DEPENDS types.c codegen/*.c elementwise/*.c gemm/*.c attention/*.c norm/*.c common/*.c)
file(GLOB cuda_cu CONFIGURE_DEPENDS elementwise/*.cu gemm/*.cu attention/*.cu norm/*.cu)
add_library(fw_kernels_cuda STATIC ${cuda_c} ${cuda_cu} "${CMAKE_CURRENT_BINARY_DIR}/row_prelude.c")
target_include_directories(fw_kernels_cuda PUBLIC "${CMAKE_SOURCE_DIR}" SYSTEM PUBLIC ${CUDAToolkit_INCLUDE_DIRS})
target_compile_options(fw_kernels_cuda PRIVATE
  $<$<COMPILE_LANGUAGE:C>:-Wall;-Wextra;-Werror;-Wshadow;-fvisibility=hidden>
  # -Werror all-warnings covers wgmma serialisation and ignored setmaxnreg; spills are an error of their own
  $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings;-Xptxas=--warn-on-spills;-Xptxas=-Werror>
  $<$<COMPILE_LANGUAGE:CUDA>:-lineinfo;-Xcompiler=-fvisibility=hidden>)
target_compile_definitions(fw_kernels_cuda PRIVATE _GNU_SOURCE)
set_target_properties(fw_kernels_cuda PROPERTIES CUDA_STANDARD 17 CUDA_ARCHITECTURES 90a)
target_link_libraries(fw_kernels_cuda PUBLIC CUDA::cudart_static PkgConfig::OPENSSL ${CMAKE_DL_LIBS})

if(FUSEWIRE_TESTS)
  file(GLOB cuda_tests CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/tests/kernels/cuda/test_*.c")
  foreach(source ${cuda_tests})
    get_filename_component(name ${source} NAME_WE)
    add_executable(cuda_${name} ${source})
    target_link_libraries(cuda_${name} PRIVATE fw_kernels_cuda fw_options m)
    add_test(NAME kernels/cuda/${name} COMMAND cuda_${name} WORKING_DIRECTORY "${CMAKE_SOURCE_DIR}")
    set_tests_properties(kernels/cuda/${name} PROPERTIES SKIP_RETURN_CODE 77) # no GPU here
  endforeach()
  if(TARGET cuda_test_row) # every generated kernel of the test through NVRTC: needs no GPU
    add_test(NAME kernels/cuda/row_compile COMMAND cuda_test_row compile)
    set_tests_properties(kernels/cuda/row_compile PROPERTIES SKIP_RETURN_CODE 77)
  endif()
endif()
file(GLOB cuda_bench CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/bench/gpu/bench_*.c")
foreach(source ${cuda_bench})
  get_filename_component(name ${source} NAME_WE)
  add_executable(cuda_${name} EXCLUDE_FROM_ALL ${source})
  target_link_libraries(cuda_${name} PRIVATE fw_kernels_cuda fw_options m)
endforeach()
if(TARGET cuda_bench_gemm)
  target_link_libraries(cuda_bench_gemm PRIVATE CUDA::cublasLt)
endif()
