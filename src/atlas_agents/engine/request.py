"""What the model is shown: instructions, the end of the conversation, and the tools."""

from atlas_agents.engine.run import Run
from atlas_agents.providers.base import Request


async def build_request(run: Run) -> Request:
    """The next request of a run, after its interceptors have seen it."""
    settings = run.settings
    request = Request(
        messages=tuple(run.history.shown(run.messages)),
        system=await _system(run),
        tools=run.stage.offered(run.desk.shown()),
        tool_choice=run.stage.tool_choice or settings.tool_choice,
        temperature=settings.temperature,
        max_tokens=settings.max_tokens,
        stop=settings.stop,
        output=run.output.spec if run.output and run.stage.last else None,
        metadata=run.context.metadata,
    )
    return await run.interceptors.request(request)


async def _system(run: Run) -> str:
    """Atlas's prompt, the agent's, the rules that apply, and what the context says, in this order."""
    pieces = [run.system_prompt, run.settings.system_prompt]
    if rules := await run.context.applied_rules():
        pieces.append("Rules:\n" + "\n".join([f"- {rule.text}" for rule in rules]))
    pieces += [message.text for message in run.prelude if message.role == "system"]
    if run.output and run.stage.last and not run.provider.capabilities.structured:
        pieces.append(run.output.instruction)
    return "\n\n".join([piece for piece in pieces if piece])
