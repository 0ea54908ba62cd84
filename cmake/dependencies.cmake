# Every outside library, as an imported target. Versions are those of Debian 12 and newer.
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
pkg_check_modules(UV REQUIRED IMPORTED_TARGET libuv>=1.44)
pkg_check_modules(NGHTTP2 REQUIRED IMPORTED_TARGET libnghttp2>=1.52)
pkg_check_modules(PROTOBUFC REQUIRED IMPORTED_TARGET libprotobuf-c>=1.4)
pkg_check_modules(YAML REQUIRED IMPORTED_TARGET yaml-0.1>=0.2.5)
pkg_check_modules(JANSSON REQUIRED IMPORTED_TARGET jansson)
pkg_check_modules(MICROHTTPD REQUIRED IMPORTED_TARGET libmicrohttpd)
pkg_check_modules(OPENSSL REQUIRED IMPORTED_TARGET openssl)
pkg_check_modules(CURL REQUIRED IMPORTED_TARGET libcurl>=7.87)
find_program(PROTOC_C NAMES protoc-c REQUIRED)

# oneDNN has no pkg-config file in Debian; 2.6 and 3.x both work (kernels/cpu/onednn.c). Without it the CPU's products are
# our own alone: as fast on AVX-512, slower on AVX2, and bf16 needs AMX. A GPU host's package does without its 40 MB.
option(FUSEWIRE_ONEDNN "CPU products by oneDNN where our own are not faster" ON)
add_library(fw_dnnl INTERFACE)
if(FUSEWIRE_ONEDNN)
  find_path(DNNL_INCLUDE_DIR oneapi/dnnl/dnnl.h HINTS ${DNNL_ROOT}/include REQUIRED)
  find_library(DNNL_LIBRARY NAMES dnnl HINTS ${DNNL_ROOT}/lib REQUIRED)
  target_include_directories(fw_dnnl SYSTEM INTERFACE "${DNNL_INCLUDE_DIR}")
  target_link_libraries(fw_dnnl INTERFACE "${DNNL_LIBRARY}")
endif()
