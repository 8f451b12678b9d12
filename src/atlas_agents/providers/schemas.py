"""Output schemas, and those of strict tools: JSON schemas as each vendor accepts them.

`Adaptation.adapt` calls `fit_output` for every request, so the encoders find in `Request.output` a schema that they can
send unchanged, or no output and an instruction in the system prompt. The rules are the vendors' own:

- Anthropic: `transform_schema` of its SDK. Every object is closed; what the API does not know moves to the description.
- OpenAI, strict: platform guide "Structured outputs". Every object is closed and requires all of its properties;
  optional ones become nullable. What strict mode cannot express is sent without `strict`.
- Gemini: reference of `GenerationConfig.responseJsonSchema`.

A root that is not an object is wrapped in one; `agents/output.py` unwraps the answer, and removes nulls that only the
schema as sent allowed.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias, cast

import msgspec

from atlas_agents.core.json import encode
from atlas_agents.core.messages import ToolSpec, memo
from atlas_agents.providers.base import Dialect, OutputSpec, Request
from atlas_agents.providers.catalogue import ModelProfile

Schema: TypeAlias = dict[str, Any]
WRAPPED = "value"
"""The only property of the object around a root that is not an object."""
_FORMATS = frozenset(("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"))
_GEMINI_FORMATS = frozenset(("date-time", "date", "time"))
_TYPE_NAMES: dict[type, str] = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}
_ANNOTATIONS = frozenset(("type", "enum", "title", "description", "required"))
_ANTHROPIC_KEPT = _ANNOTATIONS | {"const"}
_BOUNDS = frozenset(("minimum", "maximum", "minItems", "maxItems"))
_OPENAI_KEPT = (
    _ANNOTATIONS | _BOUNDS | {"const", "additionalProperties", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
)
_LOOK_AROUND = re.compile(r"\(\?<?[=!]")
_GEMINI_KEPT = _ANNOTATIONS | _BOUNDS | {"additionalProperties"}
_MAX_PROPERTIES, _MAX_LEVELS, _MAX_ENUM_VALUES = 5000, 10, 1000
_MAPS = {name: name for name in ("properties", "patternProperties", "$defs")} | {"definitions": "$defs"}
"""Keywords whose value maps names to schemas."""
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLE = ("items", "not", "if", "then", "else", "contains", "propertyNames", "unevaluatedItems")
_UNUSABLE = "$schema", "$id", "discriminator", "examples", "readOnly", "writeOnly", "deprecated"


class _NotExpressible(Exception):
    """The schema has a part that the vendor's rules cannot express."""


def fit_output(request: Request, profile: ModelProfile, dialect: Dialect, *, refused: bool) -> Request:
    """Return the request with its output schema as the model accepts it, or with an instruction in its place.

    `refused` if the model refused an output schema before.
    """
    spec = request.output
    if spec is None:
        return request
    accepted = profile.typed_output == "schema" and (profile.typed_with_tools or not request.tools) and not refused
    if accepted and (prepared := prepare_output(spec, dialect)) is not None:
        return msgspec.structs.replace(request, output=prepared)
    is_json_mode = profile.typed_output == "json" and not request.tools and not refused
    system = "\n\n".join([piece for piece in (request.system, _describe(spec, is_wrapped=is_json_mode)) if piece])
    return msgspec.structs.replace(
        request, system=system, output=OutputSpec(spec.name, {}, json_mode=True) if is_json_mode else None
    )


def _describe(spec: OutputSpec, *, is_wrapped: bool) -> str:
    """Return the instruction for an output, computed once per spec."""
    cache, key = memo(spec), "wrapped instruction" if is_wrapped else "instruction"
    if key not in cache:
        cache[key] = instruction(wrap(spec.schema) if is_wrapped else spec.schema)
    return cast(str, cache[key])


def instruction(schema: Schema) -> str:
    """Return the instruction for a model that does not get the schema in a field of its own."""
    text = encode(schema).decode()
    return f"Answer only with JSON that matches this schema, without any other text:\n{text}"


def prepare_output(spec: OutputSpec, dialect: Dialect) -> OutputSpec | None:
    """Return the output in a vendor's dialect, computed once per spec; None if only an instruction can express it."""
    cache = memo(spec)
    if dialect not in cache:
        cache[dialect] = _prepare(spec, dialect)
    return cast(OutputSpec | None, cache[dialect])


def _prepare(spec: OutputSpec, dialect: Dialect) -> OutputSpec | None:
    plain = wrap(spec.schema)
    if dialect == "plain":
        return OutputSpec(spec.name, plain)
    try:
        return OutputSpec(spec.name, _TRANSFORMS[dialect](plain), strict=dialect != "gemini")
    except (_NotExpressible, RecursionError):
        return OutputSpec(spec.name, plain) if dialect == "openai" else None


def strict_parameters(tool: ToolSpec, dialect: Dialect) -> Schema | None:
    """Return a tool's schema for strict mode, if it means the same there; None if it does not."""
    schema = _inline_root(_modernise(tool.parameters))
    definitions = cast(Schema, schema.get("$defs", {}))
    nodes = (schema, *definitions.values())
    if not _is_object(schema) or (dialect == "openai" and any(_has_defaults(each, definitions) for each in nodes)):
        return None
    try:
        return _TRANSFORMS[dialect](schema)
    except (_NotExpressible, RecursionError):
        return None


def _has_defaults(node: Schema, definitions: Schema) -> bool:
    """Return whether leaving a property out differs from null, which OpenAI's strict mode demands in its place."""
    required = node.get("required", ())
    for name, each in cast(Schema, node.get("properties", {})).items():
        if name not in required and (each.get("default", ()) is not None or not _accepts_null(each, definitions)):
            return True
    return any(_has_defaults(each, definitions) for each in _children(node))


def count_choices(schema: Schema) -> tuple[int, int]:
    """Return how many optional properties and how many unions a schema has."""
    optional = len(schema.get("properties", {}).keys() - set(schema.get("required", ())))
    unions = int("anyOf" in schema)
    for each in (*_children(schema), *schema.get("$defs", {}).values()):
        more = count_choices(each)
        optional, unions = optional + more[0], unions + more[1]
    return optional, unions


def wrap(schema: Schema) -> Schema:
    """Return a schema whose root is an object: itself, or an object with the schema as its only property."""
    root = _inline_root(_modernise(schema))
    if _is_object(root):
        return root
    definitions = root.pop("$defs", None)
    outer: Schema = {"type": "object", "properties": {WRAPPED: root}, "required": [WRAPPED]}
    outer["additionalProperties"] = False
    return {**outer, "$defs": definitions} if definitions else outer


def is_wrapped(schema: Schema) -> bool:
    """Return whether a schema's root is not an object."""
    return not _is_object(_inline_root(_modernise(schema)))


def _is_object(root: Schema) -> bool:
    alternatives = any(name in root for name in ("anyOf", "oneOf", "allOf", "enum", "const"))
    return root.get("type") == "object" and not alternatives


def drop_added_nulls(value: Any, schema: Schema) -> Any:
    """Return an answer without the nulls that strict mode demands for a property that is optional, but not nullable."""
    modern = _modernise(schema)
    return _drop_nulls(value, modern, modern.get("$defs", {}))


def _drop_nulls(value: Any, schema: Schema, definitions: Schema) -> Any:
    schema = _resolve(schema, definitions)
    if variants := schema.get("anyOf") or schema.get("oneOf"):
        fitting = [each for each in variants if _may_match(value, _resolve(each, definitions))]
        return _drop_nulls(value, fitting[0], definitions) if fitting else value
    if isinstance(value, list):
        items: Schema = schema.get("items") or {}
        return [_drop_nulls(each, items, definitions) for each in cast(list[Any], value)]
    if not isinstance(value, dict):
        return value
    given, properties, required = cast(Schema, value), schema.get("properties", {}), schema.get("required", ())
    return {
        name: _drop_nulls(each, properties.get(name) or {}, definitions)
        for name, each in given.items()
        if each is not None or name in required or _accepts_null(properties.get(name) or {}, definitions)
    }


def _may_match(value: Any, schema: Schema) -> bool:
    """Return whether a value has the properties of this variant of a union."""
    if isinstance(value, list):
        return schema.get("type") == "array"
    if not isinstance(value, dict) or "properties" not in schema:
        return False
    given, properties = cast(Schema, value), schema["properties"]
    constants = {name: each["const"] for name, each in properties.items() if "const" in each}
    return (
        given.keys() <= properties.keys()
        and all(name in given for name in schema.get("required", ()))
        and all(given.get(name, constant) == constant for name, constant in constants.items())
    )


def _accepts_null(schema: Schema, definitions: Schema) -> bool:
    schema = _resolve(schema, definitions)
    kinds = schema.get("type")
    if kinds == "null" or (isinstance(kinds, list) and "null" in kinds):
        return True
    if None in schema.get("enum", ()) or ("const" in schema and schema["const"] is None):
        return True
    variants = schema.get("anyOf") or schema.get("oneOf") or ()
    return any(_accepts_null(each, definitions) for each in variants) or not schema.keys() - {"title", "description"}


# Walking and normalising


def _modernise(node: Schema) -> Schema:
    """Return a copy with `$defs` instead of `definitions`, and with the type of objects that have none."""
    found: Schema = {}
    for name, each in node.items():
        if name in _MAPS and isinstance(each, dict):
            found[_MAPS[name]] = {key: _as_schema(value) for key, value in cast(Schema, each).items()}
        elif name in _LISTS and isinstance(each, list):
            found[name] = [_as_schema(value) for value in cast(list[Any], each)]
        elif name in _SINGLE and not isinstance(each, list):
            found[name] = _as_schema(each)
        else:
            found[name] = _as_schema(each) if name == "additionalProperties" and isinstance(each, dict) else each
    if isinstance(reference := found.get("$ref"), str):
        found["$ref"] = reference.replace("#/definitions/", "#/$defs/", 1)
    if "properties" in found:
        found.setdefault("type", "object")
    return found


def _as_schema(value: Any) -> Schema:
    """Return a schema inside another one, which may be true (anything) or false (nothing)."""
    if isinstance(value, dict):
        return _modernise(cast(Schema, value))
    return {} if value else {"not": {}}


def _resolve(schema: Schema, definitions: Schema) -> Schema:
    """Follow a reference to a definition; what stands beside it takes precedence."""
    followed = 0
    while isinstance(reference := schema.get("$ref"), str):
        target = definitions.get(reference.removeprefix("#/$defs/"))
        followed += 1
        if not isinstance(target, dict) or followed > len(definitions):
            return {}
        schema = {**cast(Schema, target), **{name: each for name, each in schema.items() if name != "$ref"}}
    return schema


def _inline_root(schema: Schema) -> Schema:
    definitions = cast(Schema, schema.get("$defs") or schema.get("definitions") or {})
    if "$ref" not in schema:
        return dict(schema)
    return {**_resolve({"$ref": schema["$ref"]}, definitions), **{k: v for k, v in schema.items() if k != "$ref"}}


def _children(node: Schema) -> Iterator[Schema]:
    """Yield the schemas directly inside a schema, without its definitions."""
    for name in ("properties", "patternProperties"):
        yield from cast(Schema, node.get(name) or {}).values()
    for name in ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames"):
        if isinstance(node.get(name), dict):
            yield node[name]
    for name in ("anyOf", "oneOf", "allOf", "prefixItems"):
        yield from node.get(name) or ()


def _is_open(node: Schema) -> bool:
    """Return whether an object's properties are not known beforehand, as in `dict[str, int]`."""
    return node.get("type") == "object" and not node.get("properties") and node.get("additionalProperties") is not False


def _check_expressible(node: Schema) -> None:
    """Raise for parts that a closed schema would change: open objects, tuples and values of any type."""
    is_empty_model = "properties" in node and "additionalProperties" not in node and "patternProperties" not in node
    if _is_open(node) and not is_empty_model:
        raise _NotExpressible("object without known properties")
    if "prefixItems" in node or isinstance(node.get("items"), list):
        raise _NotExpressible("tuple")
    if node.get("type") == "array" and not isinstance(node.get("items"), dict):
        raise _NotExpressible("array of any values")
    if not any(name in node for name in ("type", "anyOf", "oneOf", "allOf", "enum", "const", "$ref")):
        raise _NotExpressible("value of any type")
    values = [*node.get("enum", ()), node.get("const")]
    if ("enum" in node and not node["enum"]) or any(isinstance(each, (dict, list)) for each in values):
        raise _NotExpressible("constant that is an object or a list")


def _find_recursion(schema: Schema, *, optional_allowed: bool) -> bool:
    """Return whether a definition contains itself; with `optional_allowed`, only through required properties."""
    definitions = cast(Schema, schema.get("$defs", {}))
    finite: set[str] = set()

    def visit(node: Schema, open_names: frozenset[str]) -> bool:
        if isinstance(reference := node.get("$ref"), str):
            name = reference.removeprefix("#/$defs/")
            if name in open_names or name not in definitions:
                return True
            if name in finite or not visit(definitions[name], open_names | {name}):
                finite.add(name)
                return False
            return True
        if optional_allowed and "properties" in node:
            required = node.get("required", ())
            return any(visit(each, open_names) for name, each in node["properties"].items() if name in required)
        return any(visit(each, open_names) for each in _children(node))

    return any(visit({"$ref": f"#/$defs/{name}"}, frozenset()) for name in definitions) or visit(schema, frozenset())


# Dialects


def _take_children(rest: Schema, transform: Callable[[Schema], Schema]) -> Schema:
    """Move the schemas inside `rest` into a new schema, transformed. A `oneOf` becomes an `anyOf`."""
    if "oneOf" in rest:
        rest["anyOf"] = rest.pop("oneOf")
    kept: Schema = {}
    for name in ("$defs", "properties"):
        if name in rest:
            kept[name] = {key: transform(each) for key, each in cast(Schema, rest.pop(name)).items()}
    for name in ("anyOf", "allOf", "prefixItems"):
        if name in rest:
            kept[name] = [transform(each) for each in rest.pop(name)]
    for name in ("items", "additionalProperties"):
        if isinstance(rest.get(name), dict):
            kept[name] = transform(rest.pop(name))
    return kept


def _finish(kept: Schema, rest: Schema, names: frozenset[str], formats: frozenset[str]) -> Schema:
    """Keep the keywords that a vendor knows, and move the others to the description."""
    kept.update({name: rest.pop(name) for name in list(rest) if name in names})
    if rest.get("format") in formats:
        kept["format"] = rest.pop("format")
    rest = {name: each for name, each in rest.items() if name not in _UNUSABLE}
    if rest:
        note = "{" + ", ".join([f"{name}: {each}" for name, each in rest.items()]) + "}"
        kept["description"] = f"{kept['description']}\n\n{note}" if kept.get("description") else note
    return kept


def _simplify(node: Schema) -> Schema:
    """Return an `allOf` with one schema as that schema, whose siblings take precedence; drop a default of null."""
    merged = dict(node)
    if len(cast(list[Schema], node.get("allOf", ()))) == 1:
        merged = {**merged.pop("allOf")[0], **merged}
    if merged.get("default", ()) is None:
        del merged["default"]
    return merged


def _to_anthropic(schema: Schema) -> Schema:
    if _find_recursion(schema, optional_allowed=False):
        raise _NotExpressible("recursive type")
    return _anthropic_node(schema)


def _anthropic_node(node: Schema) -> Schema:
    if "$ref" in node:
        return {"$ref": node["$ref"]}
    rest = _split_types(node)
    _check_expressible(rest)
    is_object = rest.get("type") == "object"
    if any(name in rest for name in ("enum", "const", "anyOf", "oneOf", "allOf")):
        rest.pop("type", None)
    if is_object:
        rest.setdefault("properties", {})
        rest.pop("additionalProperties", None)
    kept = _take_children(rest, _anthropic_node)
    if is_object:
        kept["additionalProperties"] = False
    if rest.get("minItems") in (0, 1):
        kept["minItems"] = rest.pop("minItems")
    return _finish(kept, rest, _ANTHROPIC_KEPT, _FORMATS | {"uri"})


def _split_types(node: Schema) -> Schema:
    """Return a union in place of a list of types."""
    kinds: object = node.get("type")
    if not isinstance(kinds, list):
        return dict(node)
    shared = {name: node[name] for name in ("title", "description", "$defs") if name in node}
    own = {name: each for name, each in node.items() if name not in (*shared, "type", "enum")}
    if "enum" in node:
        return {"enum": node["enum"], **shared, **own}
    return {"anyOf": [{**_relevant(own, kind), "type": kind} for kind in cast(list[str], kinds)], **shared}


def _relevant(keywords: Schema, kind: str) -> Schema:
    """Return the keywords that concern a type; null has none, and only containers have children."""
    if kind in ("object", "array"):
        return keywords
    skipped = ("properties", "required", "additionalProperties", "items", "minItems", "maxItems")
    return {} if kind == "null" else {name: each for name, each in keywords.items() if name not in skipped}


def _to_openai(schema: Schema) -> Schema:
    strict = _openai_node(schema, cast(Schema, schema.get("$defs", {})), ())
    _check_limits(strict)
    return strict


def _openai_node(node: Schema, definitions: Schema, inlined: tuple[str, ...]) -> Schema:
    rest = _simplify(node)
    if "$ref" in rest:
        return _openai_reference(rest, definitions, inlined)
    if "allOf" in rest:
        raise _NotExpressible("intersection")
    if isinstance(rest.get("type"), list) and not set(rest["type"]).isdisjoint(("object", "array")):
        rest = _split_types(rest)
    _check_expressible(rest)
    if rest.get("type") == "object":
        properties, required = cast(Schema, rest.get("properties", {})), rest.get("required", ())
        rest["properties"] = {
            name: each if name in required else _make_nullable(each, definitions) for name, each in properties.items()
        }
        rest |= {"required": list(properties), "additionalProperties": False}
    elif "enum" in rest or "const" in rest:
        rest.setdefault("type", _type_of(rest.get("enum", [rest.get("const")])))
    kept = _take_children(rest, lambda each: _openai_node(each, definitions, inlined))
    if not _LOOK_AROUND.search(rest.get("pattern", "(?=")):
        kept["pattern"] = rest.pop("pattern")
    return _finish(kept, rest, _OPENAI_KEPT, _FORMATS)


def _openai_reference(node: Schema, definitions: Schema, inlined: tuple[str, ...]) -> Schema:
    """Return a reference, or its target if there are other keywords: none may stand beside a reference."""
    name = str(node["$ref"]).removeprefix("#/$defs/")
    if name not in definitions:
        raise _NotExpressible("reference outside the definitions")
    others = {key: each for key, each in node.items() if key != "$ref"}
    if not others or name in inlined:
        return {"$ref": node["$ref"]}
    return _openai_node({**definitions[name], **others}, definitions, (*inlined, name))


def _type_of(values: list[object]) -> str | list[str]:
    names = list(dict.fromkeys([_TYPE_NAMES.get(type(each), "string") for each in values]))
    return names[0] if len(names) == 1 else names


def _make_nullable(schema: Schema, definitions: Schema) -> Schema:
    if _accepts_null(schema, definitions):
        return schema
    outside = {name: schema[name] for name in ("title", "description", "default") if name in schema}
    inner = {name: each for name, each in schema.items() if name not in outside}
    return {"anyOf": [inner, {"type": "null"}], **outside}


def _check_limits(schema: Schema) -> None:
    """Raise for schemas beyond OpenAI's limits of properties, levels and enum values."""
    definitions = cast(Schema, schema.get("$defs", {}))
    depths: dict[str, int] = {}
    counts = {"properties": 0, "enum": 0}

    def measure(node: Schema) -> int:
        """Return the levels of objects and lists in a node, and count what it contains; a definition counts once."""
        if name := str(node.get("$ref", "")).removeprefix("#/$defs/"):
            if name not in depths:
                depths[name] = 0  # of a type that contains itself, one turn is measured
                depths[name] = measure(definitions[name])
            return depths[name]
        for key in counts:
            counts[key] += len(node.get(key, ()))
        return max([measure(each) for each in _children(node)], default=0) + (node.get("type") in ("object", "array"))

    depth = measure(schema)
    if depth >= _MAX_LEVELS or counts["properties"] > _MAX_PROPERTIES or counts["enum"] > _MAX_ENUM_VALUES:
        raise _NotExpressible("too large for strict mode")


def _to_gemini(schema: Schema) -> Schema:
    if _find_recursion(schema, optional_allowed=True):
        raise _NotExpressible("required recursion")
    return _gemini_node(schema)


def _gemini_node(node: Schema) -> Schema:
    rest = _simplify(node)
    if "$ref" in rest:  # no other keyword may stand beside a reference
        return {"$ref": rest["$ref"]}
    if "const" in rest:
        rest["enum"] = [rest.pop("const")]
    if "enum" in rest:
        values = cast(list[object], rest["enum"])
        rest.setdefault("type", _type_of(values))
        if any(type(each) not in (str, int, float) for each in values):
            rest["allowed values"] = rest.pop("enum")
    return _finish(_take_children(rest, _gemini_node), rest, _GEMINI_KEPT, _GEMINI_FORMATS)


_TRANSFORMS: dict[str, Callable[[Schema], Schema]] = {
    "anthropic": _to_anthropic,
    "openai": _to_openai,
    "gemini": _to_gemini,
}
