"""What runs in the model's process: llama.cpp's server, for as long as the parent lives.

Run as a file, not as a module: it needs nothing of the package, whose import would only cost time.
"""

import ctypes
import json
import os
import signal
import sys
import threading
from importlib import import_module
from typing import Any

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Have the kernel end this process with its parent, however that one ends. Elsewhere than on Linux, see `watch`."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def watch() -> None:
    """End when the pipe from the parent does: it is dead, or wants this process to be."""
    while os.read(0, 1024):
        pass
    os._exit(0)


def start(wanted: dict[str, Any]) -> tuple[Any, bool]:
    """The running server, and whether it can hold a model to a grammar of ours."""
    xllamacpp: Any = import_module("xllamacpp")
    settings = xllamacpp.CommonParams()
    settings.model.path = wanted["path"]
    settings.model_alias = {wanted["alias"]}
    settings.api_keys = [wanted["key"]]
    settings.n_ctx = wanted["context"]
    settings.n_parallel = wanted["parallel"]
    settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = wanted["threads"]
    settings.port = 0
    settings.use_jinja = True
    settings.kv_unified = True  # one long conversation may use what the others leave
    settings.cache_ram_mib = 256  # the default would let remembered prompts grow to 8 GB
    settings.no_extra_bufts = True  # weights are not kept a second time in another order
    settings.warmup = settings.ui = settings.endpoint_slots = False
    settings.cors_origins = ""  # no web page may ask it
    settings.offline = True
    grammar: str = xllamacpp.json_schema_to_grammar('{"type": "object"}')
    return xllamacpp.Server(settings), grammar.startswith("%llguidance")


def main() -> None:
    die_with_parent()
    report = os.dup(1)
    os.dup2(2, 1)  # whatever is printed belongs into the log
    with open(0, encoding="utf-8", closefd=False) as pipe:
        wanted = json.loads(pipe.readline())
    if os.getppid() != wanted["parent"]:
        os._exit(0)  # it died before it could be watched
    threading.Thread(target=watch, daemon=True).start()
    try:
        server, guided = start(wanted)
        answer = {"url": server.listening_address, "guided": guided}
    except ImportError as error:
        answer = {"missing": str(error)}
    except Exception as error:  # noqa: BLE001 - the parent tells what it was
        answer = {"failed": str(error)}
    os.write(report, json.dumps(answer).encode() + b"\n")
    os.close(report)
    while "url" in answer:
        signal.pause()


main()
