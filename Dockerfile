# `cnaps serve` and `cnaps studio` on a CPU: no torch, no compiler, no root.
#   docker build -t cnaps .
#   docker run -p 8766:8766 -e CNAPS_TOKEN=... -v "$PWD/tasks:/tasks:ro" cnaps
FROM python:3.12-slim AS build
WORKDIR /source
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src ./src
RUN python -m venv /opt/cnaps \
    && /opt/cnaps/bin/pip install --no-cache-dir --disable-pip-version-check -c constraints.txt '.[serve]'

FROM python:3.12-slim
COPY --from=build /opt/cnaps /opt/cnaps
ENV PATH=/opt/cnaps/bin:$PATH PYTHONUNBUFFERED=1 PORT=8766
RUN useradd --create-home --uid 10001 cnaps && mkdir /tasks /projects && chown cnaps /tasks /projects
USER 10001
WORKDIR /home/cnaps
EXPOSE 8766 8765
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s \
    CMD ["python", "-c", "import os, urllib.request; urllib.request.urlopen(f'http://127.0.0.1:{os.environ[\"PORT\"]}/health', timeout=4)"]
# beyond loopback, so a token is needed: CNAPS_TOKEN, or the one that is printed
CMD ["cnaps", "serve", "/tasks", "--host", "0.0.0.0", "--access-log", "json"]
