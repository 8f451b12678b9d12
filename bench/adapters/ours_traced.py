"""Atlas Agents as `ours`, with every turn recorded by OpenTelemetry: the SDK, its batch processor, no network."""

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from adapters import ours
from adapters.ours import make_history, setup, turn
from atlas_agents import Agent, Atlas, OpenTelemetry
from scenarios import SYSTEM

IMPORT = "from atlas_agents import Agent, Atlas, OpenAIProvider, OpenTelemetry"
LONG_TURNS = True
RESPONSES = True
PIP = ["$BENCH_OURS", "opentelemetry-sdk"]
__all__ = ["make_agent", "make_history", "setup", "turn"]


class Discard(SpanExporter):
    """Export nothing: encoding and sending happen in a thread of the exporter, whichever one is used."""

    def export(self, spans):
        return SpanExportResult.SUCCESS

    def shutdown(self):
        pass


def make_agent(tools):
    agent = Agent("bench", model=ours.PROVIDER, system_prompt=SYSTEM, tools=tools, max_rounds=1000)
    tracers = TracerProvider()
    tracers.add_span_processor(BatchSpanProcessor(Discard()))
    telemetry = OpenTelemetry(tracer_provider=tracers, meter_provider=MeterProvider([InMemoryMetricReader()]))
    return Atlas(agents=[agent], telemetry=telemetry)
