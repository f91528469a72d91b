# warpmpi on Debian's Open MPI. GPUs: docker run --gpus all --ipc host.
# Ranks of one host find each other's memory by their process numbers: run them
# in one container, or with --pid host.
ARG BASE=debian:12-slim

FROM ${BASE} AS build
# Debian keeps no earlier versions to pin.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends \
        build-essential libopenmpi-dev openmpi-bin python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
RUN python3 -m venv /opt/warpmpi \
    && WARPMPI_ABIS=installed /opt/warpmpi/bin/python -m pip install --no-cache-dir .

FROM ${BASE}
# Debian keeps no earlier versions to pin.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends \
        libopenmpi3 openmpi-bin python3 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 user
COPY --from=build /opt/warpmpi /opt/warpmpi
ENV PATH=/opt/warpmpi/bin:$PATH
USER 1000
WORKDIR /home/user
CMD ["python", "-m", "warpmpi", "--help"]
