"""Redaction: a test per rule, names that are harmless, values that are too common, streams, base64, and speed."""

import ast
import base64
import html
import json
import random
import re
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pytest

from atlas_agents import MemoryAudit, ToolContext, tool
from atlas_agents.core.paths import Secret
from atlas_agents.testing import Scripted, calls, in_memory_atlas, says
from atlas_agents.tools import secret_rules
from atlas_agents.tools.redact import REDACTED, Redactor, find_secrets, is_secret_name
from checks import cpu_factor

REPOSITORY = Path(__file__).parent.parent
MAX_FALSE_POSITIVES = 0.01
HEX = "0123456789abcdef" * 10
MIXED = "aB3dE6gH9kLmN2pQrS5tUv8xYz" * 10
CAPITALS = "A1B2C3D4E5F6G7H8J9K0" * 10

# Built from parts, so that no scanner mistakes an example for a real secret.
EXAMPLES = {
    "jwt": f"eyJ{MIXED[:30]}.eyJ{MIXED[:40]}.{MIXED[:30]}",
    "openai-anthropic-and-compatible": f"sk-ant-api03-{MIXED[:80]}",
    "groq": f"gsk_{MIXED[:52]}",
    "xai": f"xai-{MIXED[:80]}",
    "perplexity": f"pplx-{MIXED[:48]}",
    "replicate": f"r8_{MIXED[:37]}",
    "fireworks": f"fw_{MIXED[:24]}",
    "hugging-face": f"hf_{'abcdefghijklmnopqrstuvwxyzABCDEFGH'}",
    "nvidia": f"nvapi-{MIXED[:64]}",
    "langsmith": f"lsv2_pt_{HEX[:32]}_{HEX[:10]}",
    "tavily": f"tvly-dev-{MIXED[:32]}",
    "pinecone": f"pcsk_{MIXED[:60]}",
    "cerebras": f"csk-{HEX[:48]}",
    "together": f"tgp_v1_{MIXED[:43]}",
    "voyage": f"pa-{MIXED[:43]}",
    "jina": f"jina_{MIXED[:60]}",
    "elevenlabs-and-novita": f"sk_{HEX[:48]}",
    "firecrawl": f"fc-{HEX[:32]}",
    "brave": f"BSA{MIXED[:28]}",
    "vercel": f"vck_{MIXED[:56]}",
    "e2b": f"e2b_{HEX[:40]}",
    "apify": f"apify_api_{MIXED[:36]}",
    "google-auth-key": f"AQ.Ab8{MIXED[:50]}",
    "neon": f"napi_{HEX[:64]}",
    "mongodb-atlas": f"mdb_sa_sk_{MIXED[:40]}",
    "render": f"rnd_{MIXED[:32]}",
    "elastic": f"essu_{MIXED[:60]}",
    "lark-webhook": f"https://open.larksuite.com/open-apis/bot/v2/hook/{MIXED[:36]}",
    "resend": f"re_{MIXED[:8]}_{MIXED[:24]}",
    "posthog": f"phx_{MIXED[:43]}",
    "mapbox": f"sk.eyJ1{MIXED[:60]}.{MIXED[:22]}",
    "nuget": f"oy2{HEX[:43]}",
    "user-and-password": f"lftp -u ana,{MIXED[:12]} ftp.example",
    "netrc": f"machine ftp.example login ana password {MIXED[:12]}",
    "aws-access-key-id": f"ASIA{CAPITALS[:16]}",
    "aws-bedrock": f"ABSK{MIXED[:120]}=",
    "google-api-key": f"AIza{MIXED[:35]}",
    "google-oauth-access-token": f"ya29.a0{MIXED[:60]}",
    "google-oauth-refresh-token": f"1//0g{MIXED[:60]}",
    "google-oauth-client-secret": f"GOCSPX-{MIXED[:28]}",
    "azure-client-secret": f"abc8Q~{MIXED[:34]}",
    "azure-connection-string": f"DefaultEndpointsProtocol=https;AccountName=a;AccountKey={MIXED[:86]}==",
    "signed-url": f"https://a.blob.example/b?se=2026&sig={MIXED[:43]}%3D",
    "alibaba": f"LTAI{MIXED[:20]}",
    "digitalocean": f"dop_v1_{HEX[:64]}",
    "cloudflare-origin-ca": f"v1.0-{HEX[:24]}-{HEX[:146]}",
    "heroku": f"HRKU-AA{MIXED[:58]}",
    "fly": f"fo1_{MIXED[:43]}",
    "netlify": f"nfp_{MIXED[:36]}",
    "supabase": f"sbp_{HEX[:40]}",
    "planetscale": f"pscale_pw_{MIXED[:43]}",
    "databricks": f"dapi{HEX[:32]}",
    "tailscale": f"tskey-auth-{MIXED[:30]}",
    "openshift": f"sha256~{MIXED[:43]}",
    "github": f"github_pat_{MIXED[:82]}",
    "gitlab": f"glpat-{MIXED[:20]}",
    "bitbucket": f"ATBB{MIXED[:32]}",
    "atlassian": f"ATATT3{MIXED[:186]}",
    "npm": f"npm_{MIXED[:36]}",
    "pypi": f"pypi-AgEIcHlwaS5vcmc{MIXED[:80]}",
    "rubygems": f"rubygems_{HEX[:48]}",
    "clojars": f"CLOJARS_{HEX[:60]}",
    "docker-hub": f"dckr_pat_{MIXED[:27]}",
    "artifactory": f"AKCp{MIXED[:69]}",
    "circleci": f"CCIPAT_{MIXED[:22]}_{HEX[:40]}",
    "buildkite": f"bkua_{HEX[:40]}",
    "sourcegraph": f"sgp_{HEX[:40]}",
    "postman": f"PMAK-{HEX[:24]}-{HEX[:34]}",
    "pulumi": f"pul-{HEX[:40]}",
    "prefect": f"pnu_{MIXED[:36]}",
    "infracost": f"ico-{MIXED[:32]}",
    "octopus-deploy": f"API-{CAPITALS[:26]}",
    "vault": f"hvs.{MIXED[:90]}",
    "terraform": f"{MIXED[:14]}.atlasv1.{MIXED[:67]}",
    "doppler": f"dp.pt.{MIXED[:43]}",
    "1password": "A3-ABC123-ABC123ABC12-ABC12-ABC12-ABC12",
    "1password-service-account": f"ops_eyJ{MIXED * 2}",
    "age": f"AGE-SECRET-KEY-1{CAPITALS[:58]}",
    "slack": f"xoxb-123456789012-{MIXED[:24]}",
    "slack-webhook": f"https://hooks.slack.com/services/T0000000/B0000000/{MIXED[:24]}",
    "discord-webhook": f"https://discord.com/api/webhooks/123456789012345678/{MIXED[:68]}",
    "discord-bot": f"discord: M{MIXED[:25]}.{MIXED[:6]}.{MIXED[:38]}",
    "teams-webhook": f"https://a.webhook.example.com/webhookb2/{HEX[:36]}@{HEX[:36]}/IncomingWebhook/{HEX[:32]}/{HEX[:36]}",
    "telegram-bot": f"123456789:AA{MIXED[:33]}",
    "sendgrid": f"SG.{MIXED[:22]}.{MIXED[:43]}",
    "brevo": f"xkeysib-{HEX[:64]}-{MIXED[:16]}",
    "mailgun": f"key-{HEX[:32]}",
    "mailchimp": f"{HEX[:32]}-us12",
    "twilio": f"SK{HEX[:32]}",
    "stripe": f"sk_live_{MIXED[:24]}",
    "square": f"sq0atp-{MIXED[:22]}",
    "shopify": f"shpat_{HEX[:32]}",
    "flutterwave": f"FLWSECK-{HEX[:32]}-X",
    "flutterwave-test": f"FLWSECK_TEST-{HEX[:32]}-X",
    "shippo": f"shippo_live_{HEX[:40]}",
    "easypost": f"EZAK{MIXED[:54]}",
    "duffel": f"duffel_live_{MIXED[:43]}",
    "facebook": f"EAAC{MIXED[:120]}",
    "x-bearer": f"{'A' * 21}{MIXED[:90]}",
    "notion": f"ntn_{MIXED[:46]}",
    "linear": f"lin_api_{MIXED[:40]}",
    "airtable": f"pat{MIXED[:14]}.{HEX[:64]}",
    "figma": f"figd_{MIXED[:40]}",
    "typeform": f"tfp_{MIXED[:59]}",
    "contentful": f"CFPAT-{MIXED[:43]}",
    "dropbox": f"sl.{MIXED[:138]}",
    "readme": f"rdme_{HEX[:70]}",
    "grafana": f"glsa_{MIXED[:32]}_{HEX[:8]}",
    "new-relic": f"NRAK-{CAPITALS[:27]}",
    "dynatrace": f"dt0c01.{CAPITALS[:24]}.{CAPITALS[:64]}",
    "sentry": f"sntryu_{HEX[:64]}",
    "adobe": f"p8e-{MIXED[:32]}",
    "private-key": f"-----BEGIN OPENSSH PRIVATE KEY-----\n{MIXED[:70]}\n-----END OPENSSH PRIVATE KEY-----",
    "url-password": f"postgresql://ana:{MIXED[:12]}@db.example/shop",
    "authorization": f"Bearer {MIXED[:24]}",
    "authorization-header": f"PRIVATE-TOKEN: {MIXED[:24]}",
    "aws-secret-access-key": f"aws configure set aws_secret_access_key {MIXED[:40]}",
    "curl-user": f"curl -sS -u ana:{MIXED[:12]} https://shop.example/orders",
    "mysql-password": f"mysqldump --single-transaction -u root -p{MIXED[:12]} shop",
    "password-option": f"sshpass -p {MIXED[:12]} ssh ana@db.example",
    "openssl-password": f"openssl rsa -in a.pem -passin pass:{MIXED[:12]}",
    "smb-password": f"smbclient //nas/share -U ana%{MIXED[:12]}",
}
RULES = [
    *secret_rules.VENDOR_RULES,
    *secret_rules.TEXT_RULES,
    *secret_rules.HEADER_RULES,
    *secret_rules.COMMAND_RULES,
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_secret_of_each_rule_is_redacted(rule: secret_rules.SecretRule) -> None:
    redactor, example = Redactor(environment={}), EXAMPLES[rule.id]
    for text in (f"see {example} there", f'{{"note": "{example}"}}', f"({example})", f"a={example};"):
        hidden = redactor.text(text)
        assert REDACTED in hidden
        for body in (MIXED, HEX, CAPITALS, "ABC123ABC", "ghijkl"):
            assert body[:12] not in hidden
    assert redactor.text(f"see {example} there").startswith("see ")
    assert MIXED[:12] not in str(redactor.value({"arguments": [{"deep": example}]}))


@pytest.mark.parametrize(
    "text",
    [
        "curl -u ana:tiger-77 https://shop.example",
        "zip -P tiger-77 a.zip b",
        "7z x -ptiger-77 a.7z",
        "openssl enc -aes256 -k tiger-77 -in a",
        "mosquitto_pub -h a -u ana -P tiger-77 -t b",
        "http -a ana:tiger-77 GET shop.example",
        "sqlplus -s ana/tiger-77@shop",
        "curl -uana:tiger-77 https://shop.example",
        "curl --silent --user 'ana:tiger-77 x' https://shop.example",
        'curl -sSu "ana:tiger-77" https://shop.example',
        "curl --user=ana:tiger-77 https://shop.example",
        "curl --proxy-user ana:tiger-77 https://shop.example",
        "curl -H 'Authorization: token tiger-77xyz' https://shop.example",
        'curl -H "X-API-Key: tiger-77xyz" https://shop.example',
        "mysql -uroot -ptiger-77",
        "mysql -ptiger-77 -u root shop",
        "mysql -h db.example -u root -p'tiger-77' shop",
        "mysql --password=tiger-77 shop",
        "mariadb-dump -ptiger-77 shop",
        "PGPASSWORD=tiger-77 psql -h db.example",
        "MYSQL_PWD=tiger-77 mysql",
        "export GITHUB_TOKEN=tiger-77",
        "deploy --password tiger-77 --verbose",
        "deploy --api-key tiger-77",
        "docker login -u ana -p tiger-77 registry.example",
        "redis-cli -h cache.example -a tiger-77 ping",
        "password: tiger-77",
        "  - api_key: tiger-77\n    name: x",
        "client_secret = 'tiger-77'",
        '{\\"password\\": \\"tiger-77\\"}',
        "Cookie: session=tiger-77",
        "\u0130 PASSWORD=tiger-77",
        "password='$tiger-77'",
        "password='<tiger-77'",
        "password='none-tiger-77'",
        "password='[tiger-77]'",
        "curl -u ana:$tiger-77 https://shop.example",
    ],
)
def test_password_in_a_command_or_setting_is_redacted(text: str) -> None:
    hidden = Redactor(environment={}).text(text)
    assert "tiger" not in hidden
    assert REDACTED in hidden


def test_password_in_a_list_of_arguments_is_redacted() -> None:
    redactor = Redactor(environment={})
    command = ["curl", "-s", "-u", "ana:tiger-77", "https://shop.example"]
    assert redactor.value({"command": command}) == {
        "command": ["curl", "-s", "-u", f"ana:{REDACTED}", "https://shop.example"]
    }
    assert redactor.value(["deploy", "--token", "tiger-77", "-v", "x"]) == ["deploy", "--token", REDACTED, "-v", "x"]


@pytest.mark.parametrize(
    "field",
    [
        {"key": "colour"},
        {"key": "user:42:profile"},
        {"key": "sessionUpdatedAt"},
        {"key": "550e8400-e29b-41d4-a716-446655440000"},
        {"keys": ["name", "price"]},
        {"max_tokens": 4096},
        {"maxTokens": "4096"},
        {"token_count": 17},
        {"tokens": 17},
        {"tokens": ["a", "red", "car"]},
        {"usage": {"input_tokens": 12, "outputTokens": 3, "cachedTokens": 0}},
        {"sessionKey": "agent:main:4f2c9d1b7e8a4c3d9f10"},
        {"session_key": "agent:main:4f2c9d1b7e8a4c3d9f10"},
        {"primary_key": "customer_id"},
        {"foreignKey": "order_id"},
        {"idempotency_key": "7f9c1a2b3d4e5f60718293a4b5c6d7e8"},
        {"public_key": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5"},
        {"nextPageToken": "CAUQAA7f9c1a2b3d4e5f6071"},
        {"token_type": "Bearer"},
        {"key_id": "main-2026"},
        {"auth_mode": "none"},
        {"password_policy": "at least 12 characters"},
        {"monkey": "see", "keyboard": "qwerty", "author": "Ana", "passenger": "Bo", "compass": "north"},
        {"PWD": "/home/ana"},
        ["key", "colour"],
        {"name": "primary_key", "value": "id"},
    ],
)
def test_harmless_name_is_not_redacted(field: Any) -> None:
    assert Redactor(environment={}).value(field) == field


@pytest.mark.parametrize(
    "text",
    [
        'sorted(rows, key="colour")',
        'token_count=17 max_tokens=4096 sessionKey="main" primary_key="id"',
        "def connect(token: str, password: str | None = None) -> None:",
        "provider = OpenAI(api_key=settings.api_key, token=get_token())",
        'client = Client(token=os.environ["TOKEN"], secret=secret)',
        "curl -u $USER:$PASS https://shop.example",
        "curl -u ana:${PASS} https://shop.example",
        "password=<your password> token='{token}' secret=$(cat file) api_key='xxxx' pwd=****",
        "curl -H 'Authorization: Bearer $TOKEN' https://shop.example",
        "mysql -u root -p shop --port=3306",
        "deploy --token-file /run/secrets/token --password-stdin",
        "password: Input should be a valid string",
        "the secret to success is time; the key is practice",
        "see https://docs.example/guide/sk-learn and the task-force-report-of-november",
        "commit 9fceb02d0ae598e95dc970b74767f19372d61af8 by ana",
        "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        base64.b64encode(b"only a harmless text that is long enough").decode(),
    ],
)
def test_harmless_text_is_not_redacted(text: str) -> None:
    assert Redactor(environment={}).text(text) == text


@pytest.mark.parametrize("name", ["key", "keys", "token_id", "cacheToken"])
def test_generated_value_under_an_unclear_name_is_redacted(name: str) -> None:
    secret = MIXED[:32]
    redactor = Redactor(environment={})
    assert redactor.value({name: secret}) == {name: REDACTED}
    assert secret not in str(redactor.value({name: [secret, "plain"]}))
    assert secret not in redactor.text(f'{name}="{secret}"')


# Known values


@pytest.mark.parametrize(
    "key", ["x", "ab", "test", "key", "aaaaaaaaaaaa", "colour", "123456", "banana", "my-key", "a1", "aaaa1"]
)
def test_short_or_common_key_is_not_searched_for(key: str) -> None:
    redactor = Redactor([key], environment={"OPENAI_API_KEY": key})
    text = f"the maximum of {key} tests in colour is 123456 bananas, aaaaaaaaaaaaaaa my-keys a1 aaaa1"
    assert redactor.text(text) == text
    assert redactor.remove_known({"text": text}) == {"text": text}


@pytest.mark.parametrize("key", ["k-123", "hunter2", "tiger-77", "correcthorsebattery"])
def test_distinctive_key_is_searched_for(key: str) -> None:
    assert Redactor([key], environment={}).text(f"it is {key}!") == f"it is {REDACTED}!"


async def test_secret_argument_that_is_a_word_does_not_change_the_result() -> None:
    @tool
    async def log_in(password: str) -> str:
        """Log in."""
        return f"the garage is open, {password}"

    audit = MemoryAudit()
    async with in_memory_atlas(
        Scripted(calls("log_in", password="garage"), says("ok")), [log_in], audit=audit
    ) as atlas:
        await atlas.ask("go")
    (record,) = await audit.records()
    assert record.entry.meta["arguments"] == {"password": REDACTED}
    assert record.entry.meta["result"] == "the garage is open, garage"


# Secrets in data, and encodings

SECRET = "p@ss!w(o)rd/7+é<&>"


@pytest.mark.parametrize(
    "written",
    [
        quote(SECRET, safe=""),
        quote(SECRET, safe="").lower(),
        quote(SECRET, safe="!'()*"),
        json.dumps(SECRET, ensure_ascii=False).replace("<", r"\u003c").replace(">", r"\u003e").replace("&", r"\u0026"),
        json.dumps(SECRET).replace("/", r"\/"),
        json.dumps(json.dumps({"echo": SECRET})),
        html.escape(SECRET),
        str(SECRET.encode()),
    ],
    ids=["url", "lowercase url", "browser url", "json for pages", "json with slashes", "json in json", "html", "bytes"],
)
def test_known_secret_in_another_encoding_is_redacted(written: str) -> None:
    for hidden in (
        Redactor([SECRET], environment={}).text(f"It was {written}."),
        Redactor(environment={}).text(f"It was {written}.", [SECRET]),
        Redactor(environment={}).head(f"It was {written}.", 1000, [SECRET]),
    ):
        assert REDACTED in hidden and "ss!w" not in hidden and "rd" not in hidden


@pytest.mark.parametrize(
    "data",
    [
        {"name": "password", "value": "tiger-Wq7-lake-93"},
        {"headers": [["X-Api-Key", "tiger-Wq7-lake-93"]]},
        {"headers": {"Authorization": "Bearer tiger-Wq7-lake-93"}},
        {"headers": {"Authorization": f"Basic {base64.b64encode(b'ana:tiger-Wq7-lake-93').decode()}"}},
        {"body": '{"user": "ana", "password": "tiger-Wq7-lake-93"}'},
        '[{"password": "tiger-Wq7-lake-93"}]',
        {"url": "postgresql://ana:tiger-Wq7-lake-93@db.example.org/shop"},
        {"command": "mysqldump -u ana --password=tiger-Wq7-lake-93 shop"},
        {"command": ["curl", "-u", "ana:tiger-Wq7-lake-93", "https://example.org"]},
        {"env": ["PGPASSWORD=tiger-Wq7-lake-93"]},
    ],
    ids=["pair", "list", "bearer", "basic", "json", "json list", "url", "command", "arguments", "variable"],
)
def test_secret_in_data_is_found(data: Any) -> None:
    assert "tiger-Wq7-lake-93" in find_secrets(data)


def test_data_without_secrets_has_none_to_find() -> None:
    data = {
        "name": "city",
        "value": "Lima",
        "pair": ["left", "right"],
        "url": "https://example.org/a:b",
        "command": ["git", "commit", "-m", "fix: the token count"],
        "text": "The password is required.",
        "json": '{"monkey": "x1"}',
        "count": 7,
    }
    assert find_secrets(data) == []


def test_secret_that_is_recognized_once_is_removed_everywhere_in_a_text() -> None:
    redactor = Redactor(environment={})
    assert redactor.text("password=tiger-7-lake is wrong: tiger-7-lake") == f"password={REDACTED} is wrong: {REDACTED}"
    text = "postgresql://ana:tiger-7-lake@db.example.org refused tiger-7-lake"
    assert redactor.text(text) == f"postgresql://{REDACTED}@db.example.org refused {REDACTED}"


def test_name_of_a_field_that_turns_out_to_be_secret_is_redacted() -> None:
    redactor = Redactor(environment={})
    data = {"tiger-Wq7-lake-93": 1}
    assert redactor.value(data) == data
    redactor.add_secrets("tiger-Wq7-lake-93")
    assert redactor.value(data) == {REDACTED: 1}


def test_name_that_is_checked_while_it_becomes_secret_is_redacted_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    redactor = Redactor(environment={})
    data = {"tiger-Wq7-lake-93": 1}

    def compile_slowly(pattern: str, flags: int = 0) -> re.Pattern[str]:
        redactor.value(data)  # as another thread may do meanwhile
        return compiled(pattern, flags)

    compiled = re.compile
    with monkeypatch.context() as patched:
        patched.setattr(re, "compile", compile_slowly)
        redactor.add_secrets("tiger-Wq7-lake-93")
    assert redactor.value(data) == {REDACTED: 1}


def test_value_under_a_name_that_prints_differently_is_redacted() -> None:
    class Key(str):
        def __str__(self) -> str:
            return "its value"

    data = {"name": "password", Key("value"): "garage"}
    assert Redactor(environment={}).value(data) == {"name": "password", "its value": REDACTED}


def test_many_names_of_fields_do_not_fill_the_memory() -> None:
    redactor = Redactor(environment={})
    names = {f"field {n}": n for n in range(50_000)}
    tracemalloc.start()
    try:
        assert len(redactor.value(names)) == 50_000
        assert tracemalloc.get_traced_memory()[0] < 3 << 19
    finally:
        tracemalloc.stop()


def test_lines_of_a_private_key_in_a_list_are_redacted() -> None:
    lines = ["-----BEGIN RSA PRIVATE KEY-----", MIXED[:64], "-----END RSA PRIVATE KEY-----"]
    redactor = Redactor(environment={})
    assert redactor.value(["first", *lines, "last"]) == ["first", *[REDACTED] * 3, "last"]
    assert redactor.value(["first", "\n".join(lines), "last"]) == ["first", REDACTED, "last"]


async def test_atlas_that_shares_secrets_redacts_what_the_other_learns_later() -> None:
    @tool(effect="pure")
    async def show() -> str:
        """Show."""
        return "It is tiger-Wq7-lake-93."

    audit = MemoryAudit()
    async with in_memory_atlas(Scripted(calls("show"), says("ok")), [show], audit=audit) as atlas:
        other = in_memory_atlas(Scripted())
        atlas.share_secrets(other)
        other.keep_secret(Secret("tiger-Wq7-lake-93"))
        await atlas.ask("go")
    (record,) = await audit.records()
    assert record.entry.meta["result"] == f"It is {REDACTED}."


# Base64 and streams


@pytest.mark.parametrize("rule", ["gitlab", "stripe", "slack", "curl-user", "aws-access-key-id", "telegram-bot"])
@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
def test_secret_in_base64_is_redacted(rule: str, encode: Any) -> None:
    encoded = encode(f'{{"deploy": "{EXAMPLES[rule]}"}}'.encode()).decode()
    for text in (encoded, f"see {encoded} there", f'{{"data":"{encoded}"}}'):
        hidden = Redactor(environment={}).text(text)
        assert encoded[:20] not in hidden
        assert REDACTED in hidden


SPLIT = ["openai-anthropic-and-compatible", "gitlab", "telegram-bot", "slack-webhook", "private-key", "jwt"]


@pytest.mark.parametrize("rule", SPLIT)
def test_secret_split_over_pieces_is_redacted_at_every_position(rule: str) -> None:
    secret = EXAMPLES[rule]
    text = f"first line\nsee {secret} there\n"
    for cut in range(1, len(text)):
        stream = Redactor(environment={}).stream()
        shown = stream.add(text[:cut]) + stream.add(text[cut:]) + stream.flush()
        assert not any(MIXED[start : start + 12] in shown for start in range(26)), cut
        assert shown.startswith("first line\nsee ")
        assert shown.endswith(" there\n")


def test_known_secret_split_over_pieces_is_redacted_at_every_position() -> None:
    secret = "Kanarienvogel/7731"
    text = f"see {secret} there"
    redactor = Redactor([secret], environment={})
    for first in range(1, len(text)):
        for second in range(first, len(text)):
            stream = redactor.stream()
            pieces = (text[:first], text[first:second], text[second:])
            shown = "".join([*map(stream.add, pieces), stream.flush()])
            assert _longest_common(shown, secret) <= 8, (first, second)
            assert shown.endswith(" there")


def test_text_after_a_secret_in_a_stream_is_shown_once() -> None:
    text = "see Kanarienvogel/7731 there, and https://ana:tiger-7@example.org/x as well, and so on"
    redactor = Redactor(["Kanarienvogel/7731"], environment={})
    for size in range(4, len(text)):
        stream = redactor.stream()
        shown = "".join([stream.add(text[at : at + size]) for at in range(0, len(text), size)]) + stream.flush()
        assert shown.count(REDACTED) == 2 and "tiger" not in shown, size
        assert shown.endswith(f"{REDACTED} there, and https://{REDACTED}@example.org/x as well, and so on"), size


def test_secret_that_a_stream_names_late_does_not_repeat_what_was_shown() -> None:
    stream = Redactor(environment={}).stream()
    pieces = ("tiger-7-lake is it: ", "password=tiger-7-lake ", "again")
    assert "".join([*map(stream.add, pieces), stream.flush()]) == f"tiger-7-lake is it: password={REDACTED} again"


@pytest.mark.parametrize("size", [7, 64, 1000, 9000])
def test_long_private_key_in_a_stream_is_redacted_to_its_end(size: int) -> None:
    key = "\n".join(
        ["-----BEGIN PGP PRIVATE KEY BLOCK-----", *[MIXED[:64]] * 300, "-----END PGP PRIVATE KEY BLOCK-----"]
    )
    for text, rest in ((f"see\n{key}\nthere", "\nthere"), (f"see\n{key[:15_000]}", "")):
        stream = Redactor(environment={}).stream()
        shown = "".join([stream.add(text[at : at + size]) for at in range(0, len(text), size)]) + stream.flush()
        assert shown.startswith("see\n") and shown.endswith(rest) and MIXED[:16] not in shown


def test_stream_without_secrets_is_shown_at_once() -> None:
    stream = Redactor(["kanarienvogel-7731"], environment={}).stream()
    pieces = ["sending part 1 of 3", "started at 12:30:07", "uploading image_2.png", "half a wo", "rd and the key"]
    assert [stream.add(piece) for piece in pieces] == pieces
    assert stream.flush() == ""


async def test_secret_split_over_progress_messages_is_redacted() -> None:
    secret = EXAMPLES["gitlab"]

    @tool
    async def work(context: ToolContext) -> str:
        """Work."""
        for piece in ("started\n", f"token {secret[:10]}", secret[10:18], secret[18:]):
            context.progress(piece)
        return "done"

    async with in_memory_atlas(Scripted(calls("work"), says("ok")), [work]) as atlas:
        events = [event async for event in atlas.send("go")]
    shown = "".join(event.message for event in events if event.type == "tool:progress")
    assert shown == f"started\ntoken {REDACTED}"


def _longest_common(text: str, secret: str) -> int:
    """Return the length of the longest part of the secret that a text contains."""
    return max(
        (
            size
            for size in range(1, len(secret))
            if any(secret[n : n + size] in text for n in range(len(secret) - size))
        ),
        default=0,
    )


# False positives and speed


def _lines(folder: str) -> Iterator[str]:
    for path in sorted((REPOSITORY / folder).rglob("*")):
        if path.suffix in (".py", ".md", ".toml", ".json", ".txt"):
            yield from (line for line in path.read_text(errors="replace").splitlines() if line.strip())


@pytest.mark.parametrize("folder", ["tests", "docs", "src"])
def test_at_most_one_percent_of_the_lines_of_this_repository_change(folder: str) -> None:
    """Every changed line counts as a false positive, also those with the secrets of tests."""
    redactor, lines = Redactor(environment={}), list(_lines(folder))[::4]
    changed = [line for line in lines if redactor.text(line) != line]
    assert len(lines) > 1000
    assert len(changed) / len(lines) <= MAX_FALSE_POSITIVES, changed[:20]


def _fields() -> Iterator[dict[str, Any]]:
    """Yield the keyword arguments and dictionary items with constant values in a quarter of the tests."""
    for path in sorted((REPOSITORY / "tests").rglob("*.py"))[::4]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.keyword) and node.arg and isinstance(node.value, ast.Constant):
                yield {node.arg: node.value.value}
            elif isinstance(node, ast.Dict):
                for key, value in zip(node.keys, node.values, strict=True):
                    if isinstance(key, ast.Constant) and isinstance(value, ast.Constant):
                        yield {str(key.value): value.value}


def test_at_most_one_percent_of_the_harmless_fields_in_tests_change() -> None:
    """Fields with a certain name, such as `password`, are not harmless."""
    redactor = Redactor(environment={})
    fields = [field for field in _fields() if isinstance(next(iter(field.values())), str | int | None)]
    harmless = [field for field in fields if not is_secret_name(next(iter(field)))]
    changed = [field for field in harmless if redactor.value(field) != field]
    assert len(harmless) > 1000
    assert len(changed) / len(harmless) <= MAX_FALSE_POSITIVES, changed[:20]


@pytest.mark.parametrize(
    "text",
    [
        "a b " * 250_000,
        "a" * 1_000_000,
        "key=" * 250_000,
        "token " * 170_000,
        "curl -u " * 120_000,
        "mysql -p " * 110_000,
        "-----BEGIN PRIVATE KEY" * 45_000,
        "sk-" * 330_000,
        "://a:b" * 160_000,
        "discord " + "M" * 1_000_000,
        '{"password": "' * 70_000,
        f"{MIXED}/" * 3_800,
        " ".join([base64.b64encode(f"password=tiger-{n:09}".encode()).decode() for n in range(25_000)]),
    ],
    ids=lambda text: text[:12],
)
def test_a_megabyte_is_searched_in_time(text: str) -> None:
    redactor = Redactor(environment={})
    begun = time.process_time()
    redactor.text(text)
    assert time.process_time() - begun < 10 * cpu_factor()


@pytest.mark.parametrize(
    "data",
    [
        {"password": "tiger-Wq7-lake-93\n" * 50_000},
        {"password": "".join([f"tiger-Wq7-lake-{n}\n" for n in range(50_000)])},
        {"text": "".join([f"password=tiger-Wq7-lake-{n}\n" for n in range(30_000)])},
        {f"password_{n}": f"tiger-Wq7-lake-{n}" for n in range(30_000)},
        {"lines": ["-----BEGIN PRIVATE KEY-----" * 18_000 + "-----END" + "x" * 500_000, "next"]},
    ],
    ids=["same lines", "lines", "assignments", "fields", "keys"],
)
def test_secrets_of_large_data_are_found_and_removed_in_time(data: dict[str, Any]) -> None:
    redactor = Redactor(environment={})
    begun = time.process_time()
    redactor.value(data)
    redactor.head("some result", 20_000, find_secrets(data))
    assert time.process_time() - begun < 5 * cpu_factor()


def test_redacting_the_data_of_a_call_takes_less_than_a_millisecond() -> None:
    redactor = Redactor([f"{n}-{MIXED[:30]}" for n in range(5)], environment={})
    arguments = {"path": "src/app.py", "query": "SELECT name FROM shop WHERE id = 7", "options": {"deep": True}}
    result = msgspec.json.encode([{"name": f"row {n}", "price": n} for n in range(40)]).decode()
    best = 1.0
    for _ in range(20):
        begun = time.process_time()
        redactor.value(arguments)
        redactor.head(result, 1000)
        best = min(best, time.process_time() - begun)
    assert best < 0.001 * cpu_factor()


def test_short_text_is_redacted_as_the_beginning_of_a_long_one() -> None:
    """Short texts are first checked for what every rule needs; in a long text every rule is applied."""
    rng, redactor, filler = random.Random(7), Redactor(environment={}), "\n" + "x " * 100
    pieces = [
        "Bearer ",
        "BASIC ",
        "login ",
        "--password ",
        "token",
        "=",
        ": ",
        " ",
        "-",
        "\t",
        "\u017f",
        "é",
        "tiger7",
        EXAMPLES["groq"],
    ]
    found = 0
    for _ in range(3000):
        text = "".join(rng.choices(pieces, k=rng.randint(1, 6)))
        short = redactor.text(text)
        assert redactor.text(text + filler) == short + filler, text
        found += short != text
    assert found > 100
