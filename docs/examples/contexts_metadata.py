"""Metadata: local values first, then those of the parents; live and observable."""

from atlas_agents import Metadata

company = Metadata(values={"language": "English", "seats": 2})
team = Metadata(company).set("language", "Spanish")

team.on_change(lambda key, value: print(f"{key} is now {value}"))
company.set("seats", 3)
company.set("language", "German")  # hidden by the team's own value: no change event
team.delete("language")  # the company's value is visible again

print(team.get("seats"), team.has("country"), team.all())
