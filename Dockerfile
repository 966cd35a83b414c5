# An image with gpuloader for CUDA 13, of the wheel in dist/. It says whether the machine's GPUs can be used:
#   scripts/wheels && docker build -t gpuloader . && docker run --rm --gpus all gpuloader
FROM nvidia/cuda:13.0.1-base-ubuntu24.04

# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libjpeg-turbo-progs python3-venv \
    && rm -rf /var/lib/apt/lists/*

# By "video" the driver's libnvcuvid comes into the container: nvJPEG needs it for a GPU's JPEG engines.
ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility,video PATH=/opt/gpuloader/bin:$PATH

RUN --mount=type=bind,source=dist,target=/dist \
    python3 -m venv /opt/gpuloader \
    && pip install --no-cache-dir "$(echo /dist/gpuloader-*_"$(uname -m)".whl)[cuda13]"

USER 1000:1000
WORKDIR /home/ubuntu
CMD ["gpuloader", "doctor"]
