"""Metadata: local values first, then those of the brokers; live, and it can be watched."""

from atlas_agents import Metadata

house = Metadata(values={"colour": "white", "doors": 2})
room = Metadata(house).set("colour", "blue")

room.on_change(lambda key, value: print(f"{key} is now {value}"))
house.set("doors", 3)
house.set("colour", "green")  # hidden by the room's own: nothing changes for it
room.delete("colour")  # now the house's shows

print(room.get("doors"), room.has("garden"), room.all())
