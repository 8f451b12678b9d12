"""Child process that runs llama.cpp's server as long as its parent lives.

It runs as a file, not as a module, because importing the package would only slow down the start.
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
    """Ask the Linux kernel to kill this process when its parent dies; elsewhere `exit_with_parent` does it."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def exit_with_parent() -> None:
    """Exit when the pipe from the parent closes: the parent died, or wants this process to end."""
    while os.read(0, 1024):
        pass
    os._exit(0)


def start_server(config: dict[str, Any]) -> tuple[Any, bool]:
    """Start the server; also return whether it supports llguidance grammars."""
    xllamacpp: Any = import_module("xllamacpp")
    settings = xllamacpp.CommonParams()
    settings.model.path = config["path"]
    settings.model_alias = {config["alias"]}
    settings.api_keys = [config["key"]]
    settings.n_ctx = config["context"]
    settings.n_parallel = config["parallel"]
    settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = config["threads"]
    settings.port = 0
    settings.use_jinja = True
    settings.kv_unified = True  # a long conversation may use the context that others leave free
    settings.cache_ram_mib = 256  # by default the prompt cache grows to 8 GB
    settings.no_extra_bufts = True  # keeps no second, repacked copy of the weights
    settings.warmup = settings.ui = settings.endpoint_slots = False
    settings.cors_origins = ""  # web pages have no access
    settings.offline = True
    # Without a GPU there is nothing to fit: it would only load the vocabulary twice, which is half of a start.
    settings.fit_params = any("GPU" in device["type"].name for device in xllamacpp.get_device_info())
    grammar: str = xllamacpp.json_schema_to_grammar('{"type": "object"}')
    return xllamacpp.Server(settings), grammar.startswith("%llguidance")


def main() -> None:
    die_with_parent()
    report_fd = os.dup(1)
    os.dup2(2, 1)  # everything that is printed goes to the log
    with open(0, encoding="utf-8", closefd=False) as pipe:
        config = json.loads(pipe.readline())
    if os.getppid() != config["parent"]:
        os._exit(0)  # the parent died before it could be watched
    threading.Thread(target=exit_with_parent, daemon=True).start()
    try:
        server, guided = start_server(config)
        report = {"url": server.listening_address, "guided": guided}
    except ImportError as error:
        report = {"missing": str(error)}
    except Exception as error:  # noqa: BLE001 - the parent tells what it was
        report = {"failed": str(error)}
    os.write(report_fd, json.dumps(report).encode() + b"\n")
    os.close(report_fd)
    while "url" in report:
        signal.pause()


main()
