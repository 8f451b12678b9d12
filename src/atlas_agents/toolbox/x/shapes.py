"""Posts as X tells them."""

import html
from typing import Any

import msgspec

from atlas_agents.toolbox.web.untrusted import one_line, plain


class Author(msgspec.Struct, frozen=True):
    id: str
    username: str = ""
    name: str = ""


class Address(msgspec.Struct, frozen=True):
    """A short address in a text, and what it stands for; one with a media key is that of a picture."""

    url: str
    expanded_url: str = ""
    media_key: str = ""


class Entities(msgspec.Struct, frozen=True):
    urls: tuple[Address, ...] = ()


class Post(msgspec.Struct, frozen=True):
    """What somebody has said."""

    id: str
    text: str
    author_id: str = ""
    created_at: str = ""
    public_metrics: dict[str, int] = {}
    entities: Entities = Entities()

    @property
    def words(self) -> str:
        """The text as it was written: X puts short addresses into it, and signs of HTML."""
        text = self.text
        for address in self.entities.urls:
            text = text.replace(address.url, "" if address.media_key else address.expanded_url or address.url)
        return html.unescape(text).strip()


class Included(msgspec.Struct, frozen=True):
    users: tuple[Author, ...] = ()


class Page(msgspec.Struct, frozen=True):
    """Posts, and who wrote them."""

    data: tuple[Post, ...] = ()
    includes: Included = Included()

    def told(self, most: int) -> list[dict[str, Any]]:
        """As a model reads them, with nothing hidden in them."""
        authors = {each.id: each for each in self.includes.users}
        return [_told(post, authors.get(post.author_id, Author(post.author_id))) for post in self.data[:most]]


def _told(post: Post, author: Author) -> dict[str, Any]:
    counts = post.public_metrics
    return {
        "author": f"@{one_line(author.username, 50)}",
        "name": one_line(author.name, 80),
        "text": plain(post.words),
        "created_at": post.created_at,
        "likes": counts.get("like_count", 0),
        "reposts": counts.get("retweet_count", 0),
        "replies": counts.get("reply_count", 0),
        "url": address_of(post.id),
    }


def address_of(id: str) -> str:
    return f"https://x.com/i/web/status/{id}"
