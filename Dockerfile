# samestep on CPUs. For GPUs, build from an image whose torch has them:
#   docker build --build-arg BASE=pytorch/pytorch:latest -t samestep .
#   docker run --rm --shm-size 1g samestep train digits -n 2
ARG BASE=python:3.12-slim
FROM ${BASE}
WORKDIR /src
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY src src
# An image that has torch keeps it, since pip then finds the requirement fulfilled.
RUN pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu .
RUN useradd --create-home user
USER user
WORKDIR /home/user
ENTRYPOINT ["samestep"]
CMD ["--help"]
