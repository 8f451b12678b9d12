"""Record a turn with OpenTelemetry, as part of the trace of its caller, and print the spans."""

import asyncio

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from atlas_agents import Agent, Atlas, OpenTelemetry, tool
from atlas_agents.testing import Scripted, calls, says


@tool(effect="pure")
async def weather(city: str) -> str:
    """Return the weather in a city."""
    return f"sunny in {city}"


model = Scripted(calls("weather", city="Lima"), says("It is sunny."), id="openai/gpt-5.6")
assistant = Agent("assistant", model=model, tools=[weather])
exporter = InMemorySpanExporter()  # in production: BatchSpanProcessor(OTLPSpanExporter())
tracers = TracerProvider()
tracers.add_span_processor(SimpleSpanProcessor(exporter))


def show(spans: list[ReadableSpan], parent: int, depth: int = 0) -> None:
    for span in sorted(spans, key=lambda each: each.start_time or 0):
        if span.parent is not None and span.parent.span_id == parent and span.context is not None:
            tokens = (span.attributes or {}).get("gen_ai.usage.output_tokens")
            print("  " * depth + span.name + (f", {tokens} output tokens" if tokens is not None else ""))
            show(spans, span.context.span_id, depth + 1)


async def main() -> None:
    caller = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    async with Atlas([assistant], telemetry=OpenTelemetry(tracer_provider=tracers)) as atlas:
        await atlas.ask("How is the weather in Lima?", traceparent=caller)
    show(list(exporter.get_finished_spans()), parent=0x00F067AA0BA902B7)


asyncio.run(main())
