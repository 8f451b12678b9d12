"""The SQL of documents and passages, bound to one `:tenant` like all of ours."""

from functools import cache

_DOCUMENT = "kind, id, shelf, source, title, hash, model, about, passages, created_at"
_PASSAGE = "id, document, shelf, place, heading, text, position"
_ON_SHELF = "tenant = :tenant AND kind = :kind AND (:any OR shelf = :shelf)"

PUT_DOCUMENT = f"""
INSERT INTO documents (tenant, {_DOCUMENT}) VALUES (:tenant, :kind, :id, :shelf, :source, :title, :hash, :model, :about,
    :passages, :now) RETURNING {_DOCUMENT}"""
GROW_DOCUMENT = f"""
UPDATE documents SET passages = passages + :added, hash = :hash WHERE tenant = :tenant AND kind = :kind AND id = :id
RETURNING {_DOCUMENT}"""
DROP_DOCUMENT = f"DELETE FROM documents WHERE {_ON_SHELF} AND id = :id RETURNING model"
COUNT_VECTORS = """
SELECT count(*) FROM passages WHERE tenant = :tenant AND kind = :kind AND document = :id AND vector IS NOT NULL"""
DROP_PASSAGES = "DELETE FROM passages WHERE tenant = :tenant AND kind = :kind AND document = :id"
CHANGED = """
INSERT INTO libraries (tenant, kind, model, version, vectors) VALUES (:tenant, :kind, :model, 1, :vectors)
ON CONFLICT (tenant, kind, model) DO UPDATE SET version = libraries.version + 1,
    vectors = libraries.vectors + :vectors"""

DOCUMENT = f"SELECT {_DOCUMENT} FROM documents WHERE tenant = :tenant AND kind = :kind AND id = :id"
DOCUMENTS = f"SELECT {_DOCUMENT} FROM documents WHERE {_ON_SHELF} AND id > :after ORDER BY id LIMIT :limit"
PASSAGES_OF = f"""
SELECT {_PASSAGE} FROM passages WHERE tenant = :tenant AND kind = :kind AND document = :id AND place > :after
ORDER BY place LIMIT :limit"""
LIBRARY = "SELECT version, vectors FROM libraries WHERE tenant = :tenant AND kind = :kind AND model = :model"
_WITH_VECTORS = "tenant = :tenant AND kind = :kind AND model = :model AND vector IS NOT NULL"
VECTORS = f"SELECT id, shelf, vector FROM passages WHERE {_WITH_VECTORS} AND id > :after ORDER BY id LIMIT :limit"
VECTOR_IDS = f"SELECT id FROM passages WHERE {_WITH_VECTORS} ORDER BY id"

# The index knows each passage's owners as words: what belongs to others is not even looked at.
SQLITE_MATCHING = """
SELECT p.id, -w.score FROM (SELECT id, score FROM (
        SELECT rowid AS id, bm25(passage_words, 0.0, 2.0, 1.0) AS score FROM passage_words
        WHERE passage_words MATCH :match LIMIT :most)
    ORDER BY score LIMIT :limit) w
JOIN passages p ON p.id = w.id WHERE p.tenant = :tenant AND p.kind = :kind ORDER BY w.score, p.id"""
POSTGRES_MATCHING = f"""
SELECT id, ts_rank(words, to_tsquery('english', :match), 1) AS score FROM (
    SELECT id, words FROM passages WHERE {_ON_SHELF} AND words @@ to_tsquery('english', :match) LIMIT :most) found
ORDER BY score DESC, id LIMIT :limit"""


@cache
def add_passages(count: int) -> str:
    """Add so many passages of a document at once, as `:place0`, `:heading0` and so on."""
    shared = ":tenant, :kind, :document, :shelf, :owners, :model"
    one = f"({shared}, :place{{0}}, :heading{{0}}, :text{{0}}, :position{{0}}, :vector{{0}})"
    rows = ", ".join(one.format(n) for n in range(count))
    names = "tenant, kind, document, shelf, owners, model, place, heading, text, position, vector"
    return f"INSERT INTO passages ({names}) VALUES {rows}"


@cache
def postgres_counts(count: int) -> str:
    """How many passages have each of so many words, as `:match0` and so on, and no more than `:most`."""
    one = "SELECT 1 FROM passages WHERE {} AND words @@ to_tsquery('english', :match{}) LIMIT :most"
    return " UNION ALL ".join(f"SELECT count(*) FROM ({one.format(_ON_SHELF, n)}) found" for n in range(count))


@cache
def sqlite_counts(count: int) -> str:
    """The same for SQLite, whose index has the owners in it."""
    one = "SELECT count(*) FROM (SELECT 1 FROM passage_words WHERE passage_words MATCH :match{} LIMIT :most)"
    return " UNION ALL ".join(one.format(n) for n in range(count))


@cache
def passages(count: int) -> str:
    """So many passages at once, as `:id0`, `:id1` and so on; by their numbers, not by way of all that a tenant has."""
    ids = ", ".join(f":id{n}" for n in range(count))
    return f"SELECT {_PASSAGE} FROM passages WHERE tenant || '' = :tenant AND id IN ({ids})"


@cache
def postgres_nearest(dimensions: int) -> str:
    """Where pgvector is there, in its index of this model."""
    distance = f"CAST(vector AS vector({dimensions})) <=> CAST(:vector AS vector({dimensions}))"
    return f"""
SELECT id, 1 - ({distance}) FROM passages WHERE {_ON_SHELF} AND model = :model AND vector IS NOT NULL
ORDER BY {distance} LIMIT :limit"""
