"""What is sent to Telegram: plain text with formatting entities."""

from atlas_agents.builtin_tools.telegram_format import as_params, pieces, styled

for piece in pieces(styled("**Deployed** `v1.2` by [me](https://a.example), 2*3 and <b> are text"), most=40):
    print(as_params(piece))
