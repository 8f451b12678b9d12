"""Forms of an MCP server, answered in a terminal and on the command line."""

import json
import re
import sys
from pathlib import Path

import pytest
from atlas_command import CTRL_D, ENTER, Home

pytestmark = pytest.mark.slow
SHOP = str(Path(__file__).parent.parent / "foreign" / "eliciting_server.py")


@pytest.fixture
def shop(home: Home) -> Home:
    """A home with an MCP server that asks for details of an order."""
    (home.folder / "policy.toml").write_text('[tools."shop/order"]\nyes = ["*"]\n')
    entry = {"command": sys.executable, "args": [SHOP, "new"], "confirm": False}
    (home.path / "workspace" / "mcp.json").write_text(json.dumps({"mcpServers": {"shop": entry}}))
    assert home.run("mcp", "approve", "shop", "--yes").returncode == 0
    return home


def test_user_fills_in_a_form_and_corrects_invalid_values(shop: Home) -> None:
    with shop.terminal("chat") as person:
        person.expect(r"\n>$")
        person.type("order" + ENTER)
        asked = person.expect(r"answer, no or dismiss\? *$")
        assert "? The MCP server shop requests your input" in asked and r"Which \u202eone <b>shall</b> it be?" in asked
        assert "size (small | large, required) · Size · How large it is" in asked
        assert "your answer is sent to the MCP server shop" in asked
        person.type("answer" + ENTER)
        person.expect(r"size: *$")
        person.type("huge" + ENTER)
        person.expect(r"invalid value huge: expected one of small, large(.|\n)*size: *$")
        person.type("large" + ENTER)
        person.expect(r"count: 2$")
        person.type("9" + ENTER)
        person.expect(r"email: *$")
        person.type(ENTER)
        person.expect(r"gift: no$")
        person.type(ENTER)
        person.expect(r'"count": 29(.|\n)*send, answer, no or dismiss\? *$')
        person.type("send" + ENTER)
        person.expect(r"29 is greater than the maximum of 9(.|\n)*answer, no or dismiss\? *$")
        person.type("answer" + ENTER)
        person.expect(r"size: *$", after="maximum of 9")
        for keys, then in (
            ("small", r"count: 2$"),
            ("", r"email: *$"),
            ("a@example.org", r"gift: no$"),
            ("", r"\? *$"),
        ):
            person.type(keys + ENTER)
            person.expect(then, after="maximum of 9")
        person.type("send" + ENTER)
        person.expect(r"It came out: ordered 2 small, gift: False(.|\n)*\n>$")
        person.type(CTRL_D)
        assert person.wait_for_exit() == 0


def test_command_line_sets_values_and_ask_dismisses_forms(shop: Home) -> None:
    with shop.gateway(), shop.terminal("chat") as person:
        person.expect(r"\n>$")
        person.type("order" + ENTER)
        person.expect(r"answer, no or dismiss\? *$")
        listed = " ".join(shop.run("approvals", "list", COLUMNS="400").stdout.split())
        id = re.findall(r"[0-9a-f]{32}", listed)[0]
        assert "the MCP server shop asks:" in listed and "size (small | large, required)" in listed
        for given, message in (
            ("colour=red", "the fields are size, count, email, gift"),
            ("count=3", '"size" is a required property'),
        ):
            refused = shop.run("approvals", "approve", id[:8], "--set", given)
            assert refused.returncode and message in refused.stderr, refused.stderr
        assert shop.run("approvals", "approve", id, "--set", "size=large", "--set", "gift=yes").returncode == 0
        person.expect(r"It came out: ordered 2 large, gift: True(.|\n)*\n>$")
        person.type(CTRL_D)
        assert person.wait_for_exit() == 0
        done = shop.run("ask", "order")
        assert "not answered: the MCP server shop: Which" in done.stderr and "cancel" in done.stdout.lower()
