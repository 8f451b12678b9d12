"""pgvector, where the server has it: an index for each model whose vectors are searched."""

import hashlib
import logging
import struct
from typing import Any

import psycopg
from psycopg import sql
from psycopg.adapt import Dumper

from atlas_agents.stores.postgres_line import Connection

logger = logging.getLogger(__name__)
_MOST_DIMENSIONS = 2000
"""Of a vector in an index of pgvector's."""
_BUILDING = 600.0
_FLOATS = 1021


class VectorDumper(Dumper):
    """A vector as Postgres writes an array of numbers."""

    oid = _FLOATS

    def dump(self, obj: Any) -> bytes:
        numbers = struct.unpack(f"<{len(obj) // 2}e", obj)
        return b"{" + ",".join([f"{number:.6g}" for number in numbers]).encode() + b"}"


async def find_extension(connection: Connection) -> str | None:
    """The schema that pgvector lives in, made if we may; None where vectors are compared in our own memory instead."""
    asked = """SELECT n.nspname, e.extversion FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace
        WHERE e.extname = 'vector'"""
    row = await (await connection.execute(asked)).fetchone()
    if row is None:
        try:
            await connection.execute("CREATE EXTENSION IF NOT EXISTS vector SCHEMA public")
        except psycopg.Error as error:
            reason = " ".join((error.diag.message_primary or str(error)).split())
            logger.info("Postgres has no pgvector (%s): vectors are compared in memory", reason)
            return None
        row = await (await connection.execute(asked)).fetchone()
    if row is None or _version(row[1]) < (0, 8):
        logger.info("pgvector is missing or older than 0.8: vectors are compared in memory")
        return None
    return str(row[0])


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdigit())


async def ensure_index(connection: Connection, model: str, dimensions: int) -> bool:
    """Have the index for the vectors of a model; False if there can be none."""
    if dimensions > _MOST_DIMENSIONS:
        return False
    name = "nearest_" + hashlib.sha256(f"{model}\0{dimensions}".encode()).hexdigest()[:24]
    statement = sql.SQL(
        "CREATE INDEX IF NOT EXISTS {name} ON passages USING hnsw (CAST(vector AS vector({size})) vector_cosine_ops)"
        " WHERE model = {model} AND vector IS NOT NULL"
    ).format(name=sql.Identifier(name), size=sql.Literal(dimensions), model=sql.Literal(model))
    usual, connection.answer_timeout = connection.answer_timeout, _BUILDING
    try:
        await connection.execute(statement)
    finally:
        connection.answer_timeout = usual
    return True
