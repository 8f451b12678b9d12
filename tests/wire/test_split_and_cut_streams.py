"""Canonical responses, split and cut at every byte: the same message or an error."""

import pytest
from canonical_responses import BODIES, Body, decode
from wire_setup import open_setup

from atlas_agents import ProviderError
from fault_server import FaultServer, byte_by_byte, response

every_body = pytest.mark.parametrize("body", BODIES, ids=repr)
BOTH_PAID = [("bob", 5), ("éve 😀", -1)]


def join_text(body: Body) -> str:
    return "Hm" if body.tools else "Hi 😀 é\u2028!"


@every_body
def test_stream_split_at_any_byte_gives_the_same_message(body: Body) -> None:
    whole = decode(body.reader(), [body.bytes])
    assert whole.text == join_text(body)
    assert len(whole.calls) == 2 * body.tools
    for index in range(len(body.bytes) + 1):
        assert decode(body.reader(), [body.bytes[:index], body.bytes[index:]]) == whole, index
    assert decode(body.reader(), byte_by_byte([body.bytes])) == whole


@pytest.mark.parametrize("body", [body for body in BODIES if not body.tools], ids=repr)
def test_stream_split_with_crlf_gives_the_same_message(body: Body) -> None:
    whole = decode(body.reader(), [body.bytes])
    data = body.bytes.replace(b"\n", b"\r\n")
    for index in range(len(data) + 1):
        assert decode(body.reader(), [data[:index], data[index:]]) == whole, index


@every_body
def test_stream_cut_at_any_byte_gives_an_error_or_the_complete_message(body: Body) -> None:
    whole = decode(body.reader(), [body.bytes])
    for index in range(len(body.bytes)):
        reader = body.reader()
        if index < body.complete_at:
            with pytest.raises(ProviderError) as failure:
                decode(reader, [body.bytes[:index]])
            assert failure.value.kind in ("incomplete", "empty_response")
        else:
            decoded = decode(reader, [body.bytes[:index]])
            assert (decoded.text, decoded.thoughts, decoded.calls) == (whole.text, whole.thoughts, whole.calls), index
            assert (decoded.stop, decoded.model) == (whole.stop, whole.model)
            assert decoded.usage == whole.usage or decoded.usage.estimated


@every_body
async def test_one_byte_per_packet_gives_the_same_turn(body: Body) -> None:
    scripts = [response(*byte_by_byte(body.events)), response(*byte_by_byte(body.wire.builder.says("Done.")))]
    async with open_setup(body.wire, FaultServer(*scripts[: 1 + body.tools])) as setup:
        turn = await setup.turn()
        assert turn.reply_texts == [join_text(body), "Done."][: 1 + body.tools]
        assert setup.paid == BOTH_PAID * body.tools
        assert turn.resets == 0
        await setup.next_turn_works()
