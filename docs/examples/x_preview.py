"""A post as the approver sees it, and one that is too long."""

from atlas_agents import ToolFailed
from atlas_agents.builtin_tools.x import preview

print(preview({"content": "Atlas 0.1 is out 🎉 https://example.com/atlas/release/0.1", "media_urls": []}))
try:
    preview({"content": "Atlas 0.1 は本日公開されました。" * 12})
except ToolFailed as error:
    print(error)
