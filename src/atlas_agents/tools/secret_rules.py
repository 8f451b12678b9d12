"""Rules that find secrets, as data: token formats of vendors, commands with passwords, and names of fields.

The formats are those that vendors document and that public secret scanners look for. `tests/test_redaction.py` has an
example for every rule.
"""

from typing import NamedTuple


class SecretRule(NamedTuple):
    """A format of secrets. One of the `hints` must occur in a text (a fast pre-check) before `pattern` is applied.

    If the pattern has a group named `secret`, only that group is redacted. No pattern may backtrack over text that it
    has already read, because texts can be long.
    """

    id: str
    hints: tuple[str, ...]
    pattern: str


MIN_TOKEN = 16
"""The shortest token of a vendor, and the shortest value that can look random."""


def _prefixed(id: str, prefixes: str, rest: str) -> SecretRule:
    """A token that starts with one of the prefixes, separated by spaces."""
    words = prefixes.split()
    starts = "|".join(word.replace(".", r"\.") for word in words)
    return SecretRule(id, tuple(words), rf"(?<![A-Za-z0-9])(?:{starts}){rest}")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


VENDOR_RULES = (
    SecretRule("jwt", ("eyJ",), r"(?<![\w-])eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]{5,}"),
    # Models
    _prefixed("openai-anthropic-and-compatible", "sk- pk- rk-", r"[\w-]{16,}"),
    _prefixed("groq", "gsk_", r"[A-Za-z0-9]{20,}"),
    _prefixed("xai", "xai-", r"[A-Za-z0-9]{40,}"),
    _prefixed("perplexity", "pplx-", r"[A-Za-z0-9]{32,}"),
    _prefixed("replicate", "r8_", r"[A-Za-z0-9]{32,}"),
    _prefixed("fireworks", "fw_", r"[A-Za-z0-9]{20,}"),
    _prefixed("hugging-face", "hf_ api_org_", r"[A-Za-z0-9]{16,}"),
    _prefixed("nvidia", "nvapi-", r"[\w-]{40,}"),
    _prefixed("langsmith", "lsv2_pt_ lsv2_sk_", r"[a-f0-9]{32}_[a-f0-9]{8,}"),
    _prefixed("tavily", "tvly-", r"[\w-]{20,}"),
    _prefixed("pinecone", "pcsk_", r"\w{30,}"),
    _prefixed("cerebras", "csk-", r"[a-z0-9]{40,}"),
    _prefixed("together", "tgp_v1_", r"[\w-]{40,}"),
    _prefixed("voyage", "pa-", r"(?=[\w-]{0,40}\d)[\w-]{43}(?![\w-])"),
    _prefixed("jina", "jina_", r"\w{40,}"),
    _prefixed("elevenlabs-and-novita", "sk_", r"(?=[A-Za-z]{0,40}\d)[A-Za-z0-9]{40,}"),
    _prefixed("firecrawl", "fc-", r"[a-f0-9]{32}(?![A-Za-z0-9])"),
    _prefixed("brave", "BSA", r"(?=[A-Za-z_-]{0,28}\d)[\w-]{28}(?![\w-])"),
    _prefixed("vercel", "vck_ vcp_ vci_ vca_ vcr_", r"[A-Za-z0-9]{24,}"),
    _prefixed("e2b", "e2b_", r"[a-f0-9]{40}"),
    _prefixed("apify", "apify_api_", r"[A-Za-z0-9]{30,}"),
    # Clouds
    _prefixed("aws-access-key-id", "AKIA ASIA ABIA ACCA", r"[0-9A-Z]{16}(?![0-9A-Za-z])"),
    _prefixed("aws-bedrock", "ABSK", r"[A-Za-z0-9+/]{60,}={0,2}"),
    _prefixed("google-api-key", "AIza", r"[\w-]{20,}"),
    _prefixed("google-auth-key", "AQ.", r"[\w-]{40,}"),
    _prefixed("google-oauth-access-token", "ya29.", r"[\w.-]{12,}"),
    _prefixed("google-oauth-refresh-token", "1//0", r"[\w-]{30,}"),
    _prefixed("google-oauth-client-secret", "GOCSPX-", r"[\w-]{20,}"),
    SecretRule("azure-client-secret", ("Q~",), r"(?<![\w~.-])[\w~.]{3}\dQ~[\w~.-]{31,34}"),
    SecretRule(
        "azure-connection-string",
        ("AccountKey=", "AccessKey="),
        r"(?:Account|Access)Key=(?P<secret>[\w+/]{20,}={0,2})",
    ),
    SecretRule(
        "signed-url", ("sig=", "ignature="), r"[?&](?i:(?:x-(?:amz|goog)-)?sig(?:nature)?)=(?P<secret>[\w%+/=-]{16,})"
    ),
    _prefixed("alibaba", "LTAI", r"[A-Za-z0-9]{17,21}(?![A-Za-z0-9])"),
    _prefixed("digitalocean", "dop_v1_ doo_v1_ dor_v1_", r"[a-f0-9]{64}"),
    _prefixed("cloudflare-origin-ca", "v1.0-", r"[a-f0-9]{24}-[a-f0-9]{100,}"),
    _prefixed("heroku", "HRKU-", r"[\w-]{36,}"),
    _prefixed("fly", "fo1_ fm1a_ fm1r_ fm2_", r"[\w+/-]{40,}={0,3}"),
    _prefixed("netlify", "nfp_", r"[A-Za-z0-9]{36,}"),
    _prefixed("supabase", "sbp_ sb_secret_", r"\w{20,}"),
    _prefixed("planetscale", "pscale_tkn_ pscale_oauth_ pscale_pw_", r"[\w=.-]{32,}"),
    _prefixed("neon", "napi_", r"[a-z0-9]{40,}"),
    _prefixed("mongodb-atlas", "mdb_sa_sk_", r"[\w-]{30,}"),
    _prefixed("render", "rnd_", r"[A-Za-z0-9]{28,}"),
    _prefixed("elastic", "essu_", r"[\w+/=-]{40,}"),
    _prefixed("databricks", "dapi", r"[a-f0-9]{32}(?:-\d)?"),
    _prefixed("tailscale", "tskey-", r"[A-Za-z]+-[\w-]{16,}"),
    _prefixed("openshift", "sha256~", r"[\w-]{43}"),
    # Code hosting, packages, builds
    _prefixed("github", "ghp_ gho_ ghu_ ghs_ ghr_ github_pat_", r"\w{20,}"),
    _prefixed(
        "gitlab",
        "glpat- gldt- glft- glsoat- glrt- glptt- glcbt- glimt- glagent- gloas- glffct- GR1348941",
        r"[\w.-]{12,}",
    ),
    _prefixed("bitbucket", "ATBB", r"[A-Za-z0-9]{28,}"),
    _prefixed("atlassian", "ATATT3", r"[\w=-]{60,}"),
    _prefixed("npm", "npm_", r"[A-Za-z0-9]{16,}"),
    _prefixed("pypi", "pypi-AgEI", r"[\w-]{50,}"),
    _prefixed("rubygems", "rubygems_", r"[a-f0-9]{48}"),
    _prefixed("clojars", "CLOJARS_", r"[a-z0-9]{60}"),
    _prefixed("docker-hub", "dckr_pat_ dckr_oat_", r"[\w-]{20,}"),
    _prefixed("artifactory", "AKCp cmVmd", r"[A-Za-z0-9]{59,}"),
    _prefixed("circleci", "CCIPAT_ CCIPRJ_", r"\w{30,}"),
    _prefixed("buildkite", "bkua_", r"[a-f0-9]{40}"),
    _prefixed("sourcegraph", "sgp_", r"\w{40,}"),
    _prefixed("postman", "PMAK-", r"[a-f0-9]{24}-[a-f0-9]{34}"),
    _prefixed("pulumi", "pul-", r"[a-f0-9]{40}"),
    _prefixed("prefect", "pnu_ pnb_", r"[A-Za-z0-9]{36}"),
    _prefixed("infracost", "ico-", r"[A-Za-z0-9]{32}"),
    _prefixed("octopus-deploy", "API-", r"[A-Z0-9]{26}(?![A-Z0-9])"),
    # Secret managers
    _prefixed("vault", "hvs. hvb. hvr.", r"[\w-]{24,}"),
    SecretRule("terraform", (".atlasv1.",), r"(?<![A-Za-z0-9])[A-Za-z0-9]{14}\.atlasv1\.[\w=-]{60,}"),
    _prefixed("doppler", "dp.pt. dp.st. dp.ct. dp.sa.", r"[\w.-]{40,}"),
    _prefixed("1password", "A3-", r"[A-Z0-9]{6}(?:-?[A-Z0-9]{5,11}){4,5}"),
    _prefixed("1password-service-account", "ops_eyJ", r"[\w+/-]{100,}={0,3}"),
    _prefixed("age", "AGE-SECRET-KEY-1", r"[0-9A-Z]{58}"),
    # Messages and mail
    _prefixed("slack", "xoxa- xoxb- xoxe- xoxe. xoxo- xoxp- xoxr- xoxs- xoxc- xoxd- xapp-", r"[\w.-]{10,}"),
    SecretRule(
        "slack-webhook",
        ("hooks.slack.com/",),
        r"hooks\.slack\.com/(?:services|workflows|triggers)/(?P<secret>[\w/+-]{16,})",
    ),
    SecretRule(
        "discord-webhook", ("/api/webhooks/",), r"discord(?:app)?\.com/api/webhooks/\d{10,}/(?P<secret>[\w-]{30,})"
    ),
    SecretRule("teams-webhook", ("/webhookb2/",), r"\.com/webhookb2/(?P<secret>[\w@/-]{60,})"),
    SecretRule("telegram-bot", (":",), r":(?<=\d{6}:)(?P<secret>[\w-]{34,36})(?![\w-])"),
    SecretRule("lark-webhook", ("/bot/v2/hook/",), r"/open-apis/bot/v2/hook/(?P<secret>[\w-]{30,})"),
    _prefixed("resend", "re_", r"[A-Za-z0-9]{8}_[A-Za-z0-9]{20,}"),
    _prefixed("sendgrid", "SG.", r"[\w-]{8,}\.[\w-]{8,}"),
    _prefixed("brevo", "xkeysib- xsmtpsib-", r"[a-f0-9]{40,}-[A-Za-z0-9]{10,}"),
    _prefixed("mailgun", "key-", r"[a-f0-9]{32}(?![A-Za-z0-9])"),
    SecretRule("mailchimp", ("-us",), r"(?<![A-Za-z0-9])[a-f0-9]{32}-us\d{1,2}(?![A-Za-z0-9])"),
    _prefixed("twilio", "SK", r"[a-f0-9]{32}(?![A-Za-z0-9])"),
    # Payments and shops
    _prefixed("stripe", "sk_live_ sk_test_ sk_prod_ rk_live_ rk_test_ rk_prod_ whsec_", r"[A-Za-z0-9+/]{10,}=*"),
    _prefixed("square", "sq0atp- sq0csp- EAAA", r"[\w-]{22,}"),
    _prefixed("shopify", "shpat_ shpca_ shppa_ shpss_", r"[a-fA-F0-9]{32}"),
    _prefixed("flutterwave", "FLWSECK-", r"[\w-]{12,}"),
    _prefixed("flutterwave-test", "FLWSECK_TEST-", r"[\w-]{12,}"),
    _prefixed("shippo", "shippo_live_ shippo_test_", r"[a-fA-F0-9]{40}"),
    _prefixed("easypost", "EZAK EZTK", r"[A-Za-z0-9]{54}"),
    _prefixed("duffel", "duffel_live_ duffel_test_", r"[\w=-]{43}"),
    # Other services
    _prefixed("facebook", "EAAM EAAC EAAB", r"[A-Za-z0-9]{80,}"),
    _prefixed("x-bearer", "AAAAAAAAAAAAAAAAAAAAA", r"[\w%]{60,}"),
    _prefixed("notion", "ntn_", r"[A-Za-z0-9]{40,}"),
    _prefixed("linear", "lin_api_ lin_oauth_", r"[A-Za-z0-9]{40,}"),
    _prefixed("airtable", "pat", r"[A-Za-z0-9]{14}\.[a-f0-9]{64}"),
    _prefixed("figma", "figd_", r"[\w-]{36,}"),
    _prefixed("typeform", "tfp_", r"[\w.=-]{40,}"),
    _prefixed("contentful", "CFPAT-", r"[\w-]{40,}"),
    _prefixed("dropbox", "sl.", r"[\w-]{100,}"),
    _prefixed("readme", "rdme_", r"[a-z0-9]{60,}"),
    _prefixed("posthog", "phx_ phs_", r"[A-Za-z0-9]{40,}"),
    _prefixed("mapbox", "sk.eyJ", r"[\w-]{40,}\.[\w-]{16,}"),
    _prefixed("nuget", "oy2", r"(?=[a-z]{0,40}\d)[a-z0-9]{43}(?![A-Za-z0-9])"),
    _prefixed("grafana", "glsa_ glc_", r"[\w+/=]{32,}"),
    _prefixed("new-relic", "NRAK- NRJS- NRII-", r"[\w-]{19,}"),
    _prefixed("dynatrace", "dt0c01. dt0s01.", r"[A-Z0-9]{24}\.[A-Z0-9]{64}"),
    _prefixed("sentry", "sntrys_ sntryu_", r"[\w+/=]{40,}"),
    _prefixed("adobe", "p8e-", r"[A-Za-z0-9]{32}"),
)
"""Tokens without spaces. Every hint and every token is in one word of at least `MIN_TOKEN` characters."""

TEXT_RULES = (
    SecretRule("discord-bot", ("iscord", "DISCORD"), r"(?<![\w.-])[MNO][\w-]{23,27}\.[\w-]{6}\.[\w-]{27,}"),
    SecretRule(
        "private-key",
        ("-----BEGIN",),
        r"(?s)-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
        r".*?(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----|\Z)",
    ),
    SecretRule("netrc", ("login ",), r"\blogin[ \t]+\S{1,200}\s+password[ \t]+(?P<secret>[^\s\"');]+)"),
    SecretRule(
        "url-password", ("://",), r"(?<=://)(?P<secret>[^/\s:@\"'<>]{0,256}:[^/\s@\"'<>]{1,1024})(?=@[\w\[\]{}$.-])"
    ),
)
"""Secrets that are recognized by the text around them."""

HEADER_RULES = (
    SecretRule(  # requires a digit, a capital or "=", so that "basic information" is not matched
        "authorization",
        ("bearer ", "basic "),
        r"\b(?i:bearer|basic) (?P<secret>(?=\S{1,200}?[0-9A-Z=])[\w.~+/-]{8,}=*)",
    ),
    SecretRule(
        "authorization-header",
        ("authorization:", "token:", "key:", "cookie:", "secret:"),
        r"(?i)(?<![\w-])(?:(?:proxy-)?authorization|(?:set-)?cookie|(?:x-)?(?:[a-z]+-)?(?:api-?key|token|secret))"
        r":[ \t]*(?:(?:token|apikey|digest|negotiate) )?(?P<secret>(?=[^\s\"']{0,200}?[0-9=])[^\s\"',<>\[]{8,})",
    ),
    SecretRule(
        "aws-secret-access-key",
        ("secret_access_key", "secretaccesskey"),
        r"(?i)secret_?access_?key[ \t=:\"']{1,6}(?P<secret>[A-Za-z0-9/+]{40})",
    ),
)
"""HTTP headers and the secret of AWS. The hints are in lowercase."""

COMMAND_RULES = (
    SecretRule(
        "curl-user",
        ("curl",),
        r"\bcurl\b(?:(?!\bcurl\b)[^\n|;&]){0,2000}?[ \t](?:-[a-zA-Z]{0,6}u|--(?:proxy-)?user)(?:=|[ \t]*)"
        r"(?P<quote>[\"'])?[^\s:\"'/-][^\s:\"']{0,200}:(?P<secret>(?(quote)[^\"'\n]+|[^\s\"'/][^\s\"']*))",
    ),
    SecretRule(
        "mysql-password",
        ("mysql", "mariadb"),
        r"\b(?:mysql|mariadb)[\w-]{0,20}(?:(?!\bmysql|\bmariadb)[^\n|;&]){0,2000}?[ \t]-p(?P<quote>[\"'])?"
        r"(?P<secret>(?(quote)[^\"'\n]+|[^\s\"'-][^\s|;&]*))",
    ),
    SecretRule(
        "password-option",
        ("sshpass", "redis-cli", "login", "mongo", "ldap", "htpasswd", "sqlcmd", "zip ", "7z", "mosquitto_", "openssl"),
        r"\b(?:sshpass[ \t]+-p[ \t]*|redis-cli\b[^\n|;&]{0,500}?[ \t]-a[ \t]*"
        r"|(?:docker|podman|helm registry|az)[ \t]+login\b[^\n|;&]{0,500}?[ \t]-p[ \t]+"
        r"|mongo(?:sh|dump|restore|export|import)?\b[^\n|;&]{0,500}?[ \t]-p[ \t]+|sqlcmd\b[^\n|;&]{0,500}?[ \t]-P[ \t]*"
        r"|zip\b[^\n|;&]{0,200}?[ \t]-P[ \t]*|7z[ar]?[ \t]+[a-z]\b[^\n|;&]{0,200}?[ \t]-p"
        r"|mosquitto_\w+\b[^\n|;&]{0,500}?[ \t]-P[ \t]+|openssl[ \t]+enc\b[^\n|;&]{0,500}?[ \t]-k[ \t]+"
        r"|ldap(?:search|modify|add|delete|passwd|whoami)\b[^\n|;&]{0,500}?[ \t]-w[ \t]*"
        r"|htpasswd\b[^\n|;&]{0,200}?-[a-zA-Z]*b[a-zA-Z]*[ \t]+\S+[ \t]+\S+[ \t]+)"
        r"(?P<quote>[\"'])?(?P<secret>(?(quote)[^\"'\n]+|[^\s\"'-][^\s\"']*))",
    ),
    SecretRule(
        "user-and-password",
        ("lftp", "http -a", "https -a", "http --auth", "https --auth", "sqlplus"),
        r"\b(?:lftp\b[^\n|;&]{0,500}?[ \t]-u[ \t]*[^\s,\"']+,|https?[ \t]+(?:-a|--auth)[ =]\S{1,200}?:"
        r"|sqlplus\b[^\n|;&]{0,200}?[ \t]\w+/)(?P<secret>[^\s\"'@/]+)",
    ),
    SecretRule("openssl-password", ("pass:",), r"\s--?pass(?:in|out)?[= \t]+pass:(?P<secret>[^\s\"']+)"),
    SecretRule(
        "smb-password", ("smb",), r"\bsmb\w+\b[^\n|;&]{0,500}?[ \t]-U[ \t]*[\"']?[^\s%\"']+%(?P<secret>[^\s\"']+)"
    ),
)
"""Programs that take a password as an argument of another name. The hints are in lowercase."""

HARMLESS_NAMES = _words(
    """
    sessionkey sessionkeys fullkey primarykey primarykeys foreignkey foreignkeys uniquekey naturalkey compositekey
    sortkey orderkey orderingkey partitionkey shardkey distributionkey rangekey hashkey rowkey groupkey groupingkey
    lookupkey searchkey indexkey cachekey dictkey mapkey objectkey s3key storagekey filekey rowkeys cachekeys lockkey
    dedupkey deduplicationkey idempotencykey routingkey messagekey eventkey jobkey taskkey recordkey itemkey issuekey
    projectkey translationkey labelkey fieldkey columnkey propertykey settingkey configkey publickey publickeys pubkey
    sshpublickey keycode keycodes keyword keywords keyframe keyframes keydown keyup keypress keyboard hotkey hotkeys
    shortcutkey tokencount tokencounts tokenlimit maxtoken maxtokens mintokens inputtokens outputtokens totaltokens
    prompttokens completiontokens cachedtokens reasoningtokens maxcompletiontokens maxoutputtokens maxinputtokens
    newtokens maxnewtokens contexttokens tokensused tokenusage tokenbudget tokensperminute tokenspersecond tokenizer
    tokenindex nexttoken pagetoken nextpagetoken continuationtoken synctoken stoptoken stoptokens eostoken bostoken
    padtoken specialtokens passthrough passrate passcount passed
    """
)
"""Names, without separators and in lowercase, of fields that hold no secret although a word of them says so."""

DESCRIBING_WORDS = _words(
    """
    count counts limit limits max min total type types kind name names url uri endpoint endpoints host id ids size
    length bits path file files dir folder field fields column columns row format mode domain provider scheme schema
    method methods algorithm alg version index position usage used budget rate expiry expires expiration expired ttl
    age seconds minutes hours days ms at status state required enabled disabled missing valid rotation policy policies
    label title description hint error errors owner scope scopes issuer audience
    """
)
"""Words at the end of names that describe a secret: `token_type`, `key_id`. Such fields are redacted if their value
looks random."""

SECRET_WORDS = _words(
    """
    password passwords passwd passphrase passcode pass pwd pw secret secrets token apikey apikeys auth authorization
    authentication cookie cookies credential credentials creds cred conn dsn jwt otp totp mnemonic bearer privatekey
    """
)
"""A name with one of these words holds a secret."""

KEY_WORDS = _words(
    """
    api access private secret encryption decryption encrypt decrypt signing signature sign master auth authentication
    ssh gpg pgp rsa aes hmac ssl tls license service account deploy client consumer app application bot admin root
    shared wallet webhook subscription storage server bearer jwt openai anthropic google gemini azure aws gcp github
    gitlab slack stripe twilio sendgrid mailgun telegram discord groq mistral cohere openrouter huggingface
    """
)
"""Words that make `key` a secret: `api_key`, `OPENAI_KEY`. Another `key` is redacted if its value looks random."""

SECRET_ENDINGS = ("password", "passwd", "passphrase", "secret", "token", "apikey", "accesskey", "privatekey", "connstr")
SECRET_PHRASES = (
    *("connectionstring", "databaseurl", "sessionid", "clientassertion", "seedphrase", "recoverycode", "mfacode"),
    *("twofactorcode", "verificationcode"),
)

COMMON_VALUES = _words(
    """
    password secret token default localhost production development staging testing example public private enabled
    disabled required optional bearer oauth2 google github gitlab postgres postgresql sqlite mongodb username
    anonymous administrator changeme
    """
)
"""Values that are words, although a variable with a secret name has them."""
