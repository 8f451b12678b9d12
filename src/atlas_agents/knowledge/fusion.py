"""Two answers to one question, found by meaning and by words, made one."""

import re
from collections.abc import Sequence

from atlas_agents.core.shelves import Hit

WORDS_WEIGH = 0.1
"""What the best match by words adds to a cosine; found on the tuning half of the questions in tests/knowledge."""
CODES_WEIGH = 0.4
"""The same for a question with a number or a code in it: those are the same, or they are not."""
_WORD = re.compile(r"[^\W_]+(?:[-'’.][^\W_]+)*")
_SMALL = frozenset(
    """a about after all also am an and any are as at be been before being but by can could did do does doing for from
    get got had has have he her him his how i if in into is it its just let may me might must my no nor not of on or our
    out over own she should so some such than that the their them then there these they this those through to too under
    up us very was we were what when where which while who whom whose why will with would you your""".split()  # noqa: SIM905
)


def words_of(question: str) -> list[str]:
    """The words that are worth looking for; all of them if none is."""
    words = list(dict.fromkeys(word.casefold() for word in _WORD.findall(question)))
    return [word for word in words if word not in _SMALL] or words


def weight_of(question: str) -> float:
    """How much the words of this question count beside its meaning."""
    return CODES_WEIGH if any(char.isdigit() for char in question) else WORDS_WEIGH


def fused(by_meaning: Sequence[Hit], by_words: Sequence[Hit], weight: float = WORDS_WEIGH) -> list[Hit]:
    """The cosine, and on top of it how good the words are beside the best that were found.

    A passage that only the words have found is taken to be as near as the last that was found by meaning.
    """
    near = {hit.passage: hit.score for hit in by_meaning}
    furthest = min(near.values(), default=0.0)
    best = max((hit.score for hit in by_words), default=0.0)
    said = {hit.passage: hit.score / best for hit in by_words} if best > 0 else {}
    total = {id: near.get(id, furthest) + weight * said.get(id, 0.0) for id in (*near, *said)}
    return sorted([Hit(id, score) for id, score in total.items()], key=lambda hit: (-hit.score, hit.passage))
