"""Errors name the file, line and key; reloading keeps the current settings when the new ones are invalid."""

from pathlib import Path

from atlas_agents.config import load, load_again

settings = load()
file = Path("atlas.toml")
for before, after in [("port = 8080", "prot = 8080"), ("port = 8080", "port = 80800"), ("port = 8080", 'token = "x"')]:
    text = file.read_text()
    file.write_text(text.replace(before, after))
    kept, error = load_again(settings)
    print(kept is settings, error and error.rpartition("/")[2])
    file.write_text(text)
