# The server with its page and OpenAI's protocol: docker build -t unlimiformer . && docker run -p 8000:8000
#   -e UNLIMIFORMER_TOKEN=… -v unlimiformer:/data unlimiformer
FROM python:3.11-slim

# The scans of long memories are compiled when the package is installed; in C they are several times faster.
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
RUN pip install --no-cache-dir torch --index-url https://download.pytorch.org/whl/cpu
COPY pyproject.toml setup.py README.md LICENSE /app/
COPY src /app/src
RUN pip install --no-cache-dir "/app[models,serve]"

RUN useradd --create-home user && mkdir /data && chown user /data
USER user
ENV UNLIMIFORMER_CACHE=/data
VOLUME /data
EXPOSE 8000
# A token is required, since other machines can reach this address: UNLIMIFORMER_TOKEN.
CMD ["unlimiformer", "serve", "--host", "0.0.0.0"]
