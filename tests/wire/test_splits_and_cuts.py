"""Four canonical answers, split and cut at every byte: the same message, or an error, and nothing between."""

import pytest
from canonical import BODIES, Body, hear
from wire_turns import room

from atlas_agents import ProviderError, RetryPolicy
from fault_server import FaultServer, broken_response, byte_by_byte, response

every_body = pytest.mark.parametrize("body", BODIES, ids=repr)
BOTH_PAID = [("bob", 5), ("éve 😀", -1)]


def text_of(body: Body) -> str:
    return "Hm" if body.tools else "Hi 😀 é\u2028!"


@every_body
def test_split_in_two_at_any_byte_it_is_the_same_message(body: Body) -> None:
    whole = hear(body.reader(), [body.bytes])
    assert whole.text == text_of(body)
    assert len(whole.calls) == 2 * body.tools
    for place in range(len(body.bytes) + 1):
        assert hear(body.reader(), [body.bytes[:place], body.bytes[place:]]) == whole, place
    assert hear(body.reader(), byte_by_byte([body.bytes])) == whole


@every_body
def test_split_with_crlf_it_is_the_same_message(body: Body) -> None:
    whole = hear(body.reader(), [body.bytes])
    data = body.bytes.replace(b"\n", b"\r\n")
    for place in range(len(data) + 1):
        assert hear(body.reader(), [data[:place], data[place:]]) == whole, place


@every_body
def test_cut_at_any_byte_it_is_an_error_or_the_complete_message(body: Body) -> None:
    whole = hear(body.reader(), [body.bytes])
    for place in range(len(body.bytes)):
        reader = body.reader()
        if place < body.complete_at:
            with pytest.raises(ProviderError) as failure:
                hear(reader, [body.bytes[:place]])
            assert failure.value.kind in ("incomplete", "empty_response")
        else:
            heard = hear(reader, [body.bytes[:place]])
            assert (heard.text, heard.thoughts, heard.calls) == (whole.text, whole.thoughts, whole.calls), place
            assert (heard.stop, heard.model) == (whole.stop, whole.model)
            assert heard.usage == whole.usage or heard.usage.estimated


@every_body
async def test_every_byte_in_its_own_packet_is_the_same_turn(body: Body) -> None:
    scripts = [response(*byte_by_byte(body.events)), response(*byte_by_byte(body.wire.builder.says("Done.")))]
    async with room(body.wire, FaultServer(*scripts[: 1 + body.tools])) as here:
        turn = await here.turn()
        assert turn.said == [text_of(body), "Done."][: 1 + body.tools]
        assert here.paid == BOTH_PAID * body.tools
        assert turn.resets == 0
        await here.next_turn_works()


@every_body
@pytest.mark.parametrize("by", ["a clean end", "a close", "a reset"])
async def test_cut_after_any_event_it_is_an_error_or_the_whole_turn(body: Body, by: str) -> None:
    done = response(*body.wire.builder.says("Done."))
    for count in range(len(body.events)):
        events = body.events[:count]
        cut = (
            response(*events)
            if by == "a clean end"
            else broken_response(*events, by="close" if by == "a close" else "reset")
        )
        async with room(body.wire, FaultServer(cut), retry=RetryPolicy(retries=0)) as here:
            if count >= body.last and body.tools:
                here.server.add(done)
            turn = await here.turn()
            if count < body.last:
                assert isinstance(turn.error, ProviderError)
                assert [message.role for message in turn.added] == ["user"]
                assert here.paid == []
            else:
                assert turn.said[0] == text_of(body)
                assert here.paid == BOTH_PAID * body.tools
            await here.next_turn_works()
