"""Metadata: local first, then the brokers in order; live and observable."""

import asyncio
import pickle
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atlas_agents import Context, MemoryStore, Metadata, ToolContext, tool
from atlas_agents.core.store import SetSessionMetadata, Write
from atlas_agents.testing import Scripted, calls, in_memory_atlas, says
from atlas_agents.tools.context import SessionMetadata
from checks import TIMEOUT


def test_set_stores_locally_and_returns_itself() -> None:
    parent = Metadata().set("theme", "light")
    child = Metadata(parent)
    assert child.set("theme", "dark").set("color", "blue") is child
    assert (child.get("theme"), child.get("color")) == ("dark", "blue")
    assert parent.all() == {"theme": "light"}


def test_local_values_come_first_then_the_brokers_in_order() -> None:
    first, second = Metadata(values={"a": "first", "b": "first"}), Metadata(values={"a": "second", "c": "second"})
    child = Metadata(first, second, values={"b": "mine"})
    assert child.all() == {"a": "first", "b": "mine", "c": "second"}
    assert [child.get(key) for key in "abcd"] == ["first", "mine", "second", None]


def test_all_brokers_of_a_broker_come_before_the_next_broker() -> None:
    old = Metadata(values={"k": "old"})
    child = Metadata(Metadata(old), Metadata(values={"k": "second"}))
    assert child.get("k") == "old"
    assert child.all() == {"k": "old"}


def test_value_may_be_none() -> None:
    parent = Metadata(values={"k": 1})
    child = Metadata(parent, values={"k": None})
    assert child.get("k", "default") is None
    assert child.has("k") and "k" in child
    assert child["k"] is None


def test_missing_key_gives_the_default_or_an_error() -> None:
    empty = Metadata()
    assert (empty.get("k"), empty.get("k", 5), empty.has("k"), "k" in empty) == (None, 5, False, False)
    with pytest.raises(KeyError, match="k"):
        _ = empty["k"]


def test_delete_uncovers_the_value_of_a_broker() -> None:
    child = Metadata(Metadata(values={"k": "parent"}), values={"k": "child"})
    assert child.delete("k") is child
    assert child.get("k") == "parent"
    child.delete("k").delete("nothing")
    assert child.get("k") == "parent"


def test_subscripts_and_iteration_work_as_in_a_dict() -> None:
    metadata = Metadata(Metadata(values={"a": 1}))
    metadata["b"] = 2
    assert {key: metadata[key] for key in metadata} == {"a": 1, "b": 2}
    assert metadata.local() == {"b": 2}
    assert repr(metadata) == "Metadata({'a': 1, 'b': 2})"


def test_initial_mapping_is_copied() -> None:
    given = {"k": 1}
    metadata = Metadata(values=given)
    metadata.set("k", 2)
    assert given == {"k": 1}


def test_later_change_of_a_broker_is_visible() -> None:
    parent = Metadata()
    child = Metadata(Metadata(parent))
    assert child.get("k") is None
    parent.set("k", 1)
    assert (child.get("k"), child.has("k"), child.all()) == (1, True, {"k": 1})
    parent.delete("k")
    assert child.has("k") is False


def test_listener_gets_visible_changes() -> None:
    parent = Metadata()
    child = Metadata(parent)
    changes: list[tuple[str, Any]] = []
    stop = child.on_change(lambda key, value: changes.append((key, value)))
    parent.set("a", 1)
    child.set("b", 2)
    child.set("a", 3)
    parent.set("a", 4)  # hidden by the child's own
    child.delete("a")
    parent.delete("a")
    parent.delete("a")
    stop()
    parent.set("a", 5)
    assert changes == [("a", 1), ("b", 2), ("a", 3), ("a", 4), ("a", None)]


def test_listener_does_not_get_hidden_changes() -> None:
    grandparent = Metadata()
    child = Metadata(Metadata(grandparent, values={"k": "parent"}))
    changes: list[tuple[str, Any]] = []
    child.on_change(lambda key, value: changes.append((key, value)))
    grandparent.set("k", 1).set("other", 2)
    assert changes == [("other", 2)]


def test_change_in_a_diamond_is_reported_once() -> None:
    top = Metadata()
    bottom = Metadata(Metadata(top), Metadata(top))
    changes: list[tuple[str, Any]] = []
    bottom.on_change(lambda key, value: changes.append((key, value)))
    top.set("k", 1)
    assert changes == [("k", 1)]


def test_one_listener_can_unsubscribe() -> None:
    metadata = Metadata()
    changes: list[str] = []
    first = metadata.on_change(lambda key, _: changes.append(f"1 {key}"))
    second = metadata.on_change(lambda key, _: changes.append(f"2 {key}"))
    metadata.set("a", 0)
    first()
    first()
    metadata.set("b", 0)
    second()
    metadata.set("c", 0)
    assert changes == ["1 a", "2 a", "2 b"]


def test_context_metadata_object_never_changes() -> None:
    parent = Context(metadata={"a": 1})
    child = Context(parent)
    store, changes = child.metadata, list[tuple[str, Any]]()
    store.on_change(lambda key, value: changes.append((key, value)))
    parent.metadata = {"b": 2}
    assert store.all() == {"b": 2}
    child.metadata = {"c": 3}
    child.inherit(Context(metadata={"d": 4}))
    assert child.metadata is store
    assert store.all() == {"b": 2, "c": 3, "d": 4}
    assert sorted(changes, key=str) == [("a", None), ("b", 2), ("c", 3), ("d", 4)]


def test_change_of_a_later_parent_is_reported() -> None:
    child, parent = Context(), Context()
    changes: list[tuple[str, Any]] = []
    child.metadata.on_change(lambda key, value: changes.append((key, value)))
    child.inherit(parent)
    parent.metadata.set("k", 1)
    assert changes == [("k", 1)]


def test_pickled_metadata_is_a_copy_of_all_values() -> None:
    metadata = Metadata(Metadata(values={"a": 1}), values={"b": [2]})
    metadata.on_change(print)
    assert pickle.loads(pickle.dumps(metadata)).all() == {"a": 1, "b": [2]}


def test_hundred_thousand_brokers_cause_no_recursion_error() -> None:
    metadata = oldest = Metadata()
    for _ in range(100_000):
        metadata = Metadata(metadata)
    oldest.set("k", 1)
    assert (metadata.get("k"), metadata.all()) == (1, {"k": 1})


keys = st.sampled_from("abc")
steps = st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["set", "delete"]), keys, st.integers()), max_size=30)


@given(steps)
def test_listener_always_agrees_with_get(steps: list[tuple[int, str, str, int]]) -> None:
    top = Metadata()
    left, right = Metadata(top), Metadata(top)
    bottom = Metadata(left, right)
    places = [top, left, right, bottom, Metadata(bottom, left)]
    known: list[dict[str, Any]] = [{} for _ in places]
    for place, notes in zip(places, known, strict=True):
        place.on_change(notes.__setitem__)
    for at, verb, key, value in steps:
        if verb == "set":
            places[at].set(key, value)
        else:
            places[at].delete(key)
        for place, notes in zip(places, known, strict=True):
            assert {key: value for key, value in notes.items() if value is not None} == place.all()


class _DeletedMeanwhile(dict[str, Any]):
    """A dict from which another thread deletes a key right after it was found."""

    def __contains__(self, key: object) -> bool:
        found = super().__contains__(key)
        self.pop(str(key), None)
        return found


def test_value_that_another_thread_deletes_meanwhile_counts_as_deleted() -> None:
    values = _DeletedMeanwhile()
    metadata = SessionMetadata(Metadata(), values, stored=True)
    assert metadata.set("a", 1).get("a", "default") == "default"
    with pytest.raises(KeyError):
        metadata.set("a", 1)["a"]
    assert metadata.set("a", 1).delete("a") is metadata
    metadata.set("a", 1)
    assert metadata.take_changes() in (({"a": 1}, ()), ({}, ("a",)))


class _SlowStore(MemoryStore):
    """A store that commits metadata only after a tool in a thread has changed them again."""

    def __init__(self) -> None:
        super().__init__()
        self.committing, self.changed = threading.Event(), threading.Event()
        self.stored: list[dict[str, Any]] = []
        self._in_order = asyncio.Lock()

    async def commit(self, tenant: str, writes: Sequence[Write]) -> Any:
        given = [write for write in writes if isinstance(write, SetSessionMetadata)]
        if not given:
            return await super().commit(tenant, writes)
        async with self._in_order:  # as every store commits
            self.stored += [dict(write.values) for write in given]
            self.committing.set()
            assert await asyncio.to_thread(self.changed.wait, TIMEOUT)
            return await super().commit(tenant, writes)


async def test_metadata_that_a_thread_sets_while_the_session_is_stored_is_stored_next() -> None:
    store = _SlowStore()

    @tool
    async def quick(context: ToolContext[Any]) -> str:
        """Set a value."""
        context.metadata.set("shared", "early").set("quick", 1)
        return "done"

    @tool
    def slow(context: ToolContext[Any]) -> str:
        """Set values in a thread while those of `quick` are stored."""
        assert store.committing.wait(TIMEOUT)
        context.metadata.set("shared", "late").set("slow", 2).delete("quick")
        store.changed.set()
        return "done"

    model = Scripted(calls("quick") + calls("slow"), says("Done."))
    async with in_memory_atlas(model, [quick, slow], store=store) as atlas:
        await atlas.ask("Go", session="s")
        assert (await atlas.sessions.get("s")).metadata == {"shared": "late", "slow": 2}
    assert store.stored[0] == {"shared": "early", "quick": 1}
