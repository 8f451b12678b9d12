"""Settings from a flag, the environment and `./atlas.toml`, each with its source."""

from atlas_agents.config import load

settings = load({"port": 9000})
for line in settings.explain():
    if line.key in ("model", "port", "policy", "approval_deadline", "repeats"):
        print(f"{line.key} = {line.value.rpartition('/')[2]}  ({line.origin.rpartition('/')[2]})")
