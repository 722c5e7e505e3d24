"""llama.cpp's server from xllamacpp, for serving.py.

python _llama_server.py FILE PORT THREADS PLACES
"""

from __future__ import annotations

import sys
import time

import xllamacpp


def main() -> None:
    file, port, threads, places = sys.argv[1:]
    params = xllamacpp.CommonParams()
    params.model.path = file
    params.hostnames, params.port = ["127.0.0.1"], int(port)
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = int(threads)
    params.n_parallel, params.cont_batching = int(places), True
    params.n_ctx = 2048 * int(places)
    server = xllamacpp.Server(params)
    print(server.listening_address, xllamacpp.BUILD_INFO, flush=True)
    while True:
        time.sleep(60)


if __name__ == "__main__":
    main()
