"""What is sent to Telegram: plain text with formatting entities."""

from atlas_agents.builtin_tools.telegram_format import message_params, parse_markdown, split_message

text = parse_markdown("**Deployed** `v1.2` by [me](https://a.example), 2*3 and <b> are text")
for message in split_message(text, max_length=40):
    print(message_params(message))
