"""How long X finds a text: most letters of Europe count one, others two, an address 23 whatever it is."""

import re
import unicodedata

MOST = 280
_ADDRESS = 23
_LIGHT = ((0, 4351), (8192, 8205), (8208, 8223), (8242, 8247))
"""Code points that count one, as X publishes them."""
_ENDINGS = (
    "com|org|net|edu|gov|io|ai|app|dev|co|uk|de|fr|es|it|nl|eu|ch|at|jp|cn|in|br|us|ca|au|me|tv|info|biz|xyz|news"
)
_URL = re.compile(
    rf"https?://[^\s<>\"]+|(?<![\w@.-])(?:[a-z0-9](?:[a-z0-9-]{{0,62}}\.))+(?:{_ENDINGS})\b(?:/[^\s<>\"]*)?",
    re.IGNORECASE,
)
_BASE = r"[\u2190-\u21ff\u2300-\u27bf\u2900-\u297f\u2b00-\u2bff\u3030\u303d\u3297\u3299\U0001f000-\U0001faff]"
_EMOJI = re.compile(
    rf"[\U0001f1e6-\U0001f1ff]{{2}}|[0-9#*]\ufe0f?\u20e3|"
    rf"{_BASE}[\ufe0f\U0001f3fb-\U0001f3ff]*(?:\u200d{_BASE}[\ufe0f\U0001f3fb-\U0001f3ff]*)*"
)


def weighted_length(text: str) -> int:
    """The length that must be no more than `MOST`."""
    rest = unicodedata.normalize("NFC", text)
    rest, addresses = _URL.subn("", rest)
    rest, pictures = _EMOJI.subn("", rest)
    return _ADDRESS * addresses + 2 * pictures + sum(1 if _is_light(ord(char)) else 2 for char in rest)


def _is_light(code: int) -> bool:
    return any(first <= code <= last for first, last in _LIGHT)
