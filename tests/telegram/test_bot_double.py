"""The double behaves like Telegram for aiogram, an independent client, which takes seconds to import."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

import pytest

from bot_double import TOKEN, BotDouble, Fault, bot_double
from checks import TIMEOUT

if TYPE_CHECKING:
    import aiogram


@asynccontextmanager
async def aiogram_bot(double: BotDouble, token: str = TOKEN) -> "AsyncGenerator[aiogram.Bot, None]":
    import aiogram
    from aiogram.client.session.aiohttp import AiohttpSession
    from aiogram.client.telegram import TelegramAPIServer

    bot = aiogram.Bot(token, session=AiohttpSession(api=TelegramAPIServer.from_base(double.url)))
    try:
        async with asyncio.timeout(TIMEOUT):
            yield bot
    finally:
        await bot.session.close()


async def test_messages_entities_and_edits_are_read_as_they_were_sent() -> None:
    import aiogram.exceptions
    import aiogram.types

    async with bot_double() as double, aiogram_bot(double) as bot:
        ana = double.person(42, "Ana")
        assert (await bot.get_me()).username == "atlas_test_bot"
        sent = await bot.send_message(
            42,
            "🦊 bold http://a.example",
            entities=[aiogram.types.MessageEntity(type="bold", offset=3, length=4)],
            link_preview_options=aiogram.types.LinkPreviewOptions(is_disabled=True),
        )
        assert (sent.chat.id, sent.text, sent.entities and sent.entities[0].type) == (
            42,
            "🦊 bold http://a.example",
            "bold",
        )
        assert ana.sees[0].marked("bold") == ["bold"] and double.previews == []
        edited = await bot.edit_message_text("done", chat_id=42, message_id=sent.message_id)
        assert isinstance(edited, aiogram.types.Message) and edited.text == "done"
        with pytest.raises(aiogram.exceptions.TelegramBadRequest, match="message is not modified"):
            await bot.edit_message_text("done", chat_id=42, message_id=sent.message_id)
        assert await bot.send_chat_action(42, "typing")
        assert await bot.set_my_commands([aiogram.types.BotCommand(command="new", description="Start a new session")])
        await bot.send_message(42, "see http://b.example")
        assert double.previews == ["http://b.example"]


async def test_errors_are_those_that_aiogram_knows() -> None:
    import aiogram.exceptions
    import aiogram.types

    async with bot_double() as double, aiogram_bot(double) as bot:
        double.person(42, "Ana")
        double.person(43, "Ben")
        double.blocked.add(43)
        with pytest.raises(aiogram.exceptions.TelegramBadRequest, match="chat not found"):
            await bot.send_message(7, "x")
        with pytest.raises(aiogram.exceptions.TelegramForbiddenError, match="bot was blocked by the user"):
            await bot.send_message(43, "x")
        with pytest.raises(aiogram.exceptions.TelegramBadRequest, match="message is too long"):
            await bot.send_message(42, "🦊" * 2049)
        with pytest.raises(aiogram.exceptions.TelegramBadRequest, match="ends after the end"):
            await bot.send_message(42, "x", entities=[aiogram.types.MessageEntity(type="bold", offset=0, length=2)])
        double.faults.append(Fault("sendMessage", retry_after=3))
        with pytest.raises(aiogram.exceptions.TelegramRetryAfter) as slow:
            await bot.send_message(42, "x")
        assert slow.value.retry_after == 3
        async with aiogram_bot(double, "7000001:AAwrong") as other:
            with pytest.raises(aiogram.exceptions.TelegramUnauthorizedError):
                await other.get_me()


async def test_dispatcher_gets_each_update_once_and_can_answer_a_button() -> None:
    import aiogram.types

    async with bot_double() as double, aiogram_bot(double) as bot:
        ana = double.person(42, "Ana")
        received: list[str] = []
        dispatcher = aiogram.Dispatcher()
        done = asyncio.Event()
        row = [aiogram.types.InlineKeyboardButton(text="Allow once", callback_data="o:1")]

        async def on_message(message: aiogram.types.Message) -> None:
            received.append(message.text or "")
            await message.answer("Well?", reply_markup=aiogram.types.InlineKeyboardMarkup(inline_keyboard=[row]))

        async def on_press(query: aiogram.types.CallbackQuery) -> None:
            received.append(query.data or "")
            await query.answer("thanks")
            done.set()

        dispatcher.message.register(on_message, aiogram.F.text)
        dispatcher.callback_query.register(on_press)
        start = cast(Any, dispatcher).start_polling
        polling = asyncio.create_task(start(bot, handle_signals=False, close_bot_session=False))
        ana.says("hello")
        ana.says("again")
        await double.until(lambda: len(ana.sees) == 2)
        ana.presses(ana.sees[0], "Allow once")
        await done.wait()
        await dispatcher.stop_polling()
        await polling
        assert received == ["hello", "again", "o:1"]
        assert list(double.queries.values()) == ["thanks"]


async def test_second_poll_ends_the_first_with_a_conflict() -> None:
    import aiogram.exceptions

    async with bot_double() as double, aiogram_bot(double) as bot:
        first = asyncio.create_task(bot.get_updates(timeout=10))
        await double.until(lambda: double.count("getUpdates") == 1)
        second = asyncio.create_task(bot.get_updates(timeout=1))
        with pytest.raises(aiogram.exceptions.TelegramConflictError, match="terminated by other getUpdates request"):
            await first
        assert await second == []
        double.webhook = True
        with pytest.raises(aiogram.exceptions.TelegramConflictError, match="webhook is active"):
            await bot.get_updates()
        assert await bot.delete_webhook()
        assert await bot.get_updates() == []
