# Two images of one source: `cpu` and `cuda`.
#
#   docker build --target cpu  -t fusewire:cpu  .
#   docker build --target cuda -t fusewire:cuda .
#   docker run --read-only -p 8001:8001 -p 127.0.0.1:8002:8002 -v "$PWD/models:/models:ro" fusewire:cpu /models/mine.yaml
#
# The final stages start from nothing: two programs, the shared libraries that they need, the configuration. No shell, no
# package manager, no user but 65532, nothing written to the root file system. Every base image is a build argument.
ARG BUILD_BASE=docker.io/library/debian:12-slim
ARG CUDA_BUILD_BASE=docker.io/nvidia/cuda:13.0.1-devel-ubuntu24.04
ARG RUN_BASE=scratch

# ---- cpu ------------------------------------------------------------------------------------------
FROM ${BUILD_BASE} AS packages-cpu
RUN apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
      gcc libc6-dev cmake ninja-build pkg-config libuv1-dev libnghttp2-dev libprotobuf-c-dev \
      protobuf-c-compiler libyaml-dev libssl-dev libdnnl-dev libjansson-dev libmicrohttpd-dev \
      libcurl4-openssl-dev \
    && rm -rf /var/lib/apt/lists/*

FROM packages-cpu AS build-cpu
COPY . /source
RUN cd /source && cmake --preset release -DFUSEWIRE_TESTS=OFF && cmake --build build/release \
    && sh scripts/rootfs.sh build/release /rootfs

FROM ${RUN_BASE} AS cpu
COPY --from=build-cpu /rootfs/ /
USER 65532:65532
EXPOSE 8001 8002
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s CMD ["/usr/bin/fusewire", "status", "--url", "127.0.0.1:8001"]
ENTRYPOINT ["/usr/bin/fusewired", "--config", "/etc/fusewire/server.yaml"]
CMD ["/etc/fusewire/models/mlp.yaml"]

# ---- cuda -----------------------------------------------------------------------------------------
# libcuda.so comes from the host's driver (580 or newer) through the container toolkit; everything else is in the image,
# NVRTC (for generated kernels) and cuBLASLt with it: they are opened when a GPU is, and make most of its size. Without the
# 540 MB of cuBLASLt products are our own alone: --build-arg CUDA_LATE="libnvrtc.so.13 libnvrtc-builtins.so.13.0".
FROM ${CUDA_BUILD_BASE} AS build-cuda
RUN apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
      gcc g++ libc6-dev cmake ninja-build pkg-config libuv1-dev libnghttp2-dev libprotobuf-c-dev \
      protobuf-c-compiler libyaml-dev libssl-dev libjansson-dev libmicrohttpd-dev \
      libcurl4-openssl-dev \
    && rm -rf /var/lib/apt/lists/*
COPY . /source
ARG CUDA_LATE="libnvrtc.so.13 libnvrtc-builtins.so.13.0 libcublasLt.so.13"
RUN cd /source && cmake --preset cuda-package -DFUSEWIRE_TESTS=OFF && cmake --build build/cuda-package --target fusewired fusewire \
    && sh scripts/rootfs.sh build/cuda-package /rootfs $CUDA_LATE

FROM ${RUN_BASE} AS cuda
COPY --from=build-cuda /rootfs/ /
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 65532:65532
EXPOSE 8001 8002
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s CMD ["/usr/bin/fusewire", "status", "--url", "127.0.0.1:8001"]
ENTRYPOINT ["/usr/bin/fusewired", "--config", "/etc/fusewire/server.yaml"]
CMD ["/etc/fusewire/models/mlp.yaml"]
