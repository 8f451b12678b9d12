"""Simulate faults and crashes of an agent, and count what its tools did."""

from atlas_agents import Agent, ToolContext, tool
from atlas_agents.testing import FaultSimulator, Scripted, Simulation, calls, says


def shop(simulation: Simulation) -> Agent:
    """Build the agent. It is called again after each simulated crash."""

    @tool(effect="keyed")
    async def charge(amount: int, context: ToolContext) -> str:
        """Charge the customer's card."""
        simulation.ledger.record("charge", key=context.idempotency_key)  # the double of the payment service
        return f"charged {amount} euros"

    model = Scripted(calls("charge", amount=20), says("You have paid 20 euros."))
    return Agent("shop", model=model, tools=[charge])


def test_the_card_is_charged_once() -> None:
    report = FaultSimulator().run(shop, "I take it", seeds=20)
    report.raise_if_failed()
    print(f"{report.points} points, {len(report.cases)} cases")
    print(report.by_subject())


if __name__ == "__main__":  # not needed with pytest
    test_the_card_is_charged_once()
