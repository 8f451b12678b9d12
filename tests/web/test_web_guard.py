"""SSRF guard: only checked public addresses are contacted, after every redirect."""

import asyncio
import string
from urllib.parse import urlsplit

import pytest
from fake_internet import CAPS, OTHER, PUBLIC, FakeNetwork, fake_internet, page, redirect
from hypothesis import given, settings
from hypothesis import strategies as st

from atlas_agents.builtin_tools.web.download import download
from atlas_agents.builtin_tools.web.ssrf import INTERNET, Hosts, UrlRefused
from atlas_agents.core.errors import ConfigError, ToolFailed
from atlas_agents.core.http import is_private, is_public
from fault_server import FaultServer, response

SECRET = page("the secret of this machine", "text/plain")

LOCAL = {
    "loopback": "127.0.0.1",
    "loopback, another": "127.8.8.8",
    "decimal": "2130706433",
    "hexadecimal": "0x7f000001",
    "hexadecimal parts": "0x7f.0.0.1",
    "octal": "0177.0.0.1",
    "octal, long": "00000177.0.0.1",
    "short": "127.1",
    "shorter": "0",
    "zero": "0.0.0.0",
    "10/8": "10.0.0.5",
    "172.16/12": "172.20.1.1",
    "192.168/16": "192.168.1.1",
    "provider's network": "100.64.0.1",
    "metadata": "169.254.169.254",
    "azure": "168.63.129.16",
    "alibaba": "100.100.100.200",
    "multicast": "224.0.0.1",
    "reserved": "240.0.0.1",
    "broadcast": "255.255.255.255",
    "documentation": "192.0.2.1",
    "benchmarks": "198.18.0.1",
    "6 loopback": "[::1]",
    "6 unspecified": "[::]",
    "6 mapped": "[::ffff:127.0.0.1]",
    "6 mapped, hexadecimal": "[::ffff:7f00:1]",
    "6 compatible": "[::7f00:1]",
    "6 NAT64": "[64:ff9b::7f00:1]",
    "6 NAT64, local": "[64:ff9b:1::a00:1]",
    "6to4": "[2002:7f00:1::]",
    "Teredo": "[2001:0:4136:e378:8000:63bf:80ff:fffe]",
    "ISATAP": "[2606:4700::5efe:a00:1]",
    "6 link-local": "[fe80::1]",
    "6 link-local, scope": "[fe80::1%25lo]",
    "6 unique local": "[fd00:ec2::254]",
    "6 multicast": "[ff02::1]",
    "6 documentation": "[2001:db8::1]",
    "circled digits": "\u2460\u2461\u2466.0.0.1",
    "fullwidth digits": "\uff11\uff12\uff17.\uff10.\uff10.\uff11",
    "fullwidth dots": "127\uff0e0\uff0e0\uff0e1",
    "ideographic dots": "127\u30020\u30020\u30021",
    "percent dots": "127%2e0%2e0%2e1",
    "percent digits": "%31%32%37.0.0.1",
    "trailing dot": "127.0.0.1.",
    "arabic digits": "\u0661\u0662\u0667.0.0.1",
    "superscript": "\u00b9\u00b2\u2077.0.0.1",
    "soft hyphen": "127.0.0\u00ad.1",
    "zero width": "127.0.\u200b0.1",
}


@pytest.mark.parametrize("host", LOCAL.values(), ids=LOCAL.keys())
async def test_no_notation_of_a_local_address_is_accepted(host: str) -> None:
    async with fake_internet(then=SECRET) as internet:
        for url in (f"http://{host}/", f"http://{host}:{internet.network.port}/secret", f"https://{host}/"):
            with pytest.raises(ToolFailed):
                await internet.fetch(url)
        assert (internet.server.requests, internet.network.connected) == ([], [])


ODD = {
    "user": "http://pub.test@127.0.0.1/",
    "user, other way round": "http://127.0.0.1@pub.test/",
    "password": "http://ana:secret@pub.test/",
    "empty user": "http://@pub.test/",
    "backslash": "http://pub.test\\@127.0.0.1/",
    "backslash, first": "http:\\\\127.0.0.1/",
    "tab": "http://pub\t.test/",
    "line": "http://pub.test/a\r\nX-Evil: 1",
    "line in the host": "http://pub.test\n.evil/",
    "space": "http://pub.test /",
    "nul": "http://pub.test\x00.evil/",
    "no scheme": "pub.test/",
    "no host": "http:///secret",
    "half a scheme": "http:pub.test",
    "file": "file:///etc/passwd",
    "ftp": "ftp://pub.test/",
    "gopher": "gopher://pub.test:6379/_FLUSHALL",
    "data": "data:text/html,hello",
    "javascript": "javascript:alert(1)",
    "unix socket": "http+unix://%2Fvar%2Frun%2Fdocker.sock/info",
    "ssh": "http://pub.test:22/",
    "mail": "http://pub.test:25/",
    "redis": "http://pub.test:6379/",
    "postgres": "http://pub.test:5432/",
    "port 0": "http://pub.test:0/",
    "port too large": "http://pub.test:99999/",
    "port that is none": "http://pub.test:80a/",
    "bracket": "http://[pub.test/",
    "label too long": f"http://{'a' * 64}.test/",
    "too long": f"http://pub.test/{'a' * 5000}",
    "dots": "http://pub..test/",
    "star": "http://*.test/",
    "localhost": "http://localhost/",
    "localhost.": "http://localhost./",
    "LOCALHOST": "http://LOCALHOST/",
    "sub.localhost": "http://a.localhost/",
    "nothing": "",
}


@pytest.mark.parametrize("url", ODD.values(), ids=ODD.keys())
async def test_odd_url_is_refused_before_any_connection(url: str) -> None:
    async with fake_internet(then=SECRET) as internet:
        internet.network.names |= {
            "localhost": [["127.0.0.1"]],
            "a.localhost": [["::1"]],
            "localhost.": [["127.0.0.1"]],
        }
        with pytest.raises(ToolFailed):
            await internet.fetch(url)
        assert (internet.server.requests, internet.network.connected) == ([], [])


@pytest.mark.parametrize(
    "addresses",
    [
        ["10.0.0.1"],
        [PUBLIC, "127.0.0.1"],
        ["::ffff:127.0.0.1"],
        ["64:ff9b::a9fe:a9fe"],
        ["fe80::1%eth0"],
        ["nonsense"],
        [],
    ],
)
async def test_name_is_refused_if_any_of_its_addresses_is_local(addresses: list[str]) -> None:
    async with fake_internet(then=SECRET) as internet:
        internet.network.names["bad.test"] = [addresses]
        with pytest.raises(ToolFailed):
            await internet.fetch("http://bad.test/")
        assert internet.server.requests == []


async def test_rebinding_name_is_resolved_once_and_connected_to_the_checked_address() -> None:
    async with fake_internet(page("<p>public")) as internet:
        internet.network.names["rebind.test"] = [[PUBLIC], ["127.0.0.1"]]
        assert "public" in await internet.fetch("http://rebind.test/")
        assert (internet.network.looked_up, internet.network.connected) == (["rebind.test"], [PUBLIC])


async def test_name_that_rebinds_between_redirects_is_refused() -> None:
    async with fake_internet(redirect("http://rebind.test/again"), then=SECRET) as internet:
        internet.network.names["rebind.test"] = [[PUBLIC], ["127.0.0.1"]]
        with pytest.raises(UrlRefused, match="not on the public internet"):
            await internet.fetch("http://rebind.test/")
        assert [asked.path for asked in internet.server.requests] == ["/"]


@pytest.mark.parametrize(
    "location",
    [
        "http://127.0.0.1/secret",
        "http://[::ffff:7f00:1]/secret",
        "//127.0.0.1/secret",
        "\\\\127.0.0.1\\secret",
        "http://priv.test/secret",
        "http://pub.test:22/",
        "http://ana:pw@pub.test/",
        "file:///etc/passwd",
        "ftp://pub.test/",
        "data:text/html,x",
        "http://\u2460\u2461\u2466.0.0.1/",
    ],
)
async def test_redirect_to_a_local_address_is_refused(location: str) -> None:
    async with fake_internet(redirect("/on"), redirect(location), then=SECRET) as internet:
        internet.network.names["priv.test"] = [["192.168.0.1"]]
        with pytest.raises(ToolFailed):
            await internet.fetch("http://pub.test/")
        assert [asked.path for asked in internet.server.requests] == ["/", "/on"]


async def test_redirects_end_after_five() -> None:
    async with fake_internet(then=redirect("/again")) as internet:
        with pytest.raises(ToolFailed, match="redirects more than 5 times"):
            await internet.fetch("http://pub.test/")
        assert len(internet.server.requests) == 6


async def test_redirect_to_a_public_page_is_followed_without_cookies_or_referrer() -> None:
    to = "http://other.test/there?q=1#part"
    first = response(b"", status="308 Permanent Redirect", framing="sized", location=to, set_cookie="a=b")
    async with fake_internet(first, page("<p>there")) as internet:
        output = await internet.fetch("http://pub.test/")
        assert output.startswith("Fetched: http://other.test/there?q=1\n")
        sent = internet.server.requests[1].headers
        assert sent["host"] == "other.test"
        assert {"cookie", "referer", "authorization"}.isdisjoint(sent)
        assert internet.network.connected[:2] == [PUBLIC, OTHER]


async def test_public_address_of_this_machine_is_refused() -> None:
    async with fake_internet(then=SECRET) as internet:
        internet.network.own_addresses = frozenset([PUBLIC])
        with pytest.raises(UrlRefused, match="not on the public internet"):
            await internet.fetch("http://pub.test:18789/")
        assert internet.server.requests == []


def test_real_network_knows_the_addresses_of_this_machine() -> None:
    assert (INTERNET.is_own("127.0.0.1"), INTERNET.is_own(PUBLIC), INTERNET.is_own(OTHER)) == (True, False, False)
    assert INTERNET.route(PUBLIC, 80) == (PUBLIC, 80)


async def test_real_network_refuses_loopback_and_its_names() -> None:
    async with FaultServer(then=SECRET) as server:
        port = urlsplit(server.url).port
        for host in ("127.0.0.1", "localhost", "127.0.0.2"):
            with pytest.raises(UrlRefused, match="not on the public internet"):
                await download(f"http://{host}:{port}/", hosts=Hosts(), check_type=lambda url, kind: None, caps=CAPS)
        assert server.requests == []


async def test_proxy_of_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with FaultServer(then=SECRET) as proxy, fake_internet(page("<p>straight")) as internet:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        assert "straight" in await internet.fetch("http://pub.test/")
        assert proxy.requests == []


# Hosts that a person has named


async def test_allowed_host_may_be_on_a_private_network() -> None:
    names = {"wiki.intern": [["10.0.0.7"]], "dev.intern": [["127.0.0.1"]], "x.wiki.intern": [["10.0.0.8"]]}
    names["wiki.intern."] = names["wiki.intern"]
    async with fake_internet(then=SECRET) as internet:
        internet.network.names |= names
        with pytest.raises(UrlRefused):
            await internet.fetch("http://wiki.intern/a")
    async with fake_internet(then=page("<p>inside"), hosts=["wiki.intern", "dev.intern:8080", "10.1.1.1"]) as internet:
        internet.network.names |= names
        for url in ("http://wiki.intern/a", "http://WIKI.intern./b", "http://dev.intern:8080/"):
            assert "inside" in await internet.fetch(url)
        for url in (
            "http://wiki.intern:8080/",
            "http://dev.intern/",
            "http://x.wiki.intern/",
            "http://10.0.0.7/",
            "http://127.0.0.1:8080/",
        ):
            with pytest.raises(UrlRefused):
                await internet.fetch(url)


@pytest.mark.parametrize(
    "address", ["169.254.169.254", "::ffff:169.254.169.254", "fd00:ec2::254", "224.0.0.1", "0.0.0.0"]
)
async def test_allowed_host_cannot_reach_cloud_metadata_services(address: str) -> None:
    async with fake_internet(then=SECRET, hosts=["wiki.intern"]) as internet:
        internet.network.names["wiki.intern"] = [[address]]
        with pytest.raises(UrlRefused):
            await internet.fetch("http://wiki.intern/")
        assert internet.server.requests == []


@pytest.mark.parametrize(
    "name", ["https://wiki.intern", "*.intern", "wiki.intern/a", "", "a@b", "wiki.intern:x", "::1"]
)
def test_invalid_host_is_rejected_at_once(name: str) -> None:
    with pytest.raises(ConfigError, match=r"invalid host .*: expected a name like"):
        Hosts([name])


# Whatever is written


def test_no_address_is_both_public_and_private() -> None:
    for address in (
        "8.8.8.8",
        "1.1.1.1",
        PUBLIC,
        OTHER,
        "2a00:1450:4001::1",
        "172.15.255.255",
        "172.32.0.1",
        "100.128.0.1",
    ):
        assert (is_public(address), is_private(address)) == (True, False)
    for address in ("10.0.0.1", "127.0.0.1", "::1", "fd12::1", "192.168.0.1", "100.64.0.1"):
        assert (is_public(address), is_private(address)) == (False, True)


PIECES = st.sampled_from(
    [
        *("http://", "https://", "//", "/", ":", "@", "\\", "#", "?", "%", "%2e", "%00", "[", "]", ".", "-", ";", "&"),
        *(
            "127.0.0.1",
            "127",
            "0",
            "1",
            "0x7f",
            "0177",
            "localhost",
            "pub.test",
            "priv.test",
            "::1",
            "::ffff:",
            "fe80::",
        ),
        *(
            "\u2460",
            "\uff11",
            "\uff0e",
            "\u3002",
            "\u200b",
            "\u00ad",
            "\t",
            "\n",
            " ",
            "80",
            "443",
            "22",
            "xn--",
            "\ufeff",
        ),
    ]
)
URLS = st.one_of(
    st.lists(PIECES, max_size=12).map("".join),
    st.lists(PIECES, max_size=10).map(lambda found: "http://" + "".join(found)),
    st.text(string.printable, max_size=40).map(lambda text: "http://" + text),
    st.text(max_size=20).map(lambda text: f"http://{text}/"),
)


@settings(max_examples=400, deadline=None)
@given(url=URLS)
def test_no_url_leads_to_a_connection_that_is_not_public(url: str) -> None:
    class Everywhere(FakeNetwork):
        """Every name resolves to this machine, except one with a public address that serves nothing."""

        async def lookup(self, host: str, port: int) -> list[str]:
            return [PUBLIC] if host.rstrip(".") == "pub.test" else ["127.0.0.1"]

        def route(self, address: str, port: int) -> tuple[str, int]:
            assert address == PUBLIC
            raise ToolFailed("far enough")

    async def fetch() -> None:
        with pytest.raises(ToolFailed):
            await download(url, hosts=Hosts(), check_type=lambda url, kind: None, caps=CAPS, network=Everywhere(0))

    asyncio.run(fetch())
