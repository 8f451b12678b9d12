"""The writes about records as steps."""

from atlas_agents.core.errors import Conflict, NotStored
from atlas_agents.core.records import DropRecord, PutRecord, Record
from atlas_agents.stores import record_statements as sql
from atlas_agents.stores.query import Place, Steps


def put_record(place: Place, write: PutRecord) -> Steps[Record]:
    if write.version is not None:
        known = yield place.ask(sql.RECORD, kind=write.kind, key=write.key)
        check_version(write, known[0][3] if known else 0)
    rows = yield place.ask(sql.PUT_RECORD, kind=write.kind, key=write.key, body=write.body)
    return Record(*rows[0])


def drop_record(place: Place, write: DropRecord) -> Steps[None]:
    if not (yield place.ask(sql.DROP_RECORD, kind=write.kind, key=write.key)):
        raise no_record(write)


def check_version(write: PutRecord, version: int) -> None:
    if write.version is not None and write.version != version:
        raise Conflict(f"the {write.kind} {write.key!r} was changed meanwhile, or is there already")


def no_record(write: DropRecord) -> NotStored:
    return NotStored(f"there is no {write.kind} {write.key!r}")
