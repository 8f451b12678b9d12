"""`file_list`: what is in a folder, with sizes."""

import os

from atlas_agents.core.errors import BadArguments
from atlas_agents.toolbox.files.content import counted, sized
from atlas_agents.toolbox.files.root import Root
from atlas_agents.toolbox.files.walk import DEEPEST, Entry, Pattern, Walk

MOST = 500


def listed(root: Root, path: str, pattern: str, depth: int, *, hidden: bool) -> str:
    """Lines of path and size, folders with a slash; the first line says what there is and what is missing."""
    if depth < 0:
        raise BadArguments("depth is how many folders deep to look, 1 or more; 0 leaves it to the tool.")
    wanted = Pattern(pattern)
    walk = Walk(root, depth=depth or (1 if wanted.is_open else DEEPEST), hidden=hidden)
    lines: list[str] = []
    files = folders = more = 0
    with root.find(path, folder=True) as top:
        for entry in walk.through(top):
            if not wanted.fits(os.path.relpath(entry.path, top.path)):
                continue
            files, folders = files + (not entry.is_folder), folders + entry.is_folder
            if len(lines) < MOST:
                lines.append(_line(entry))
            else:
                more += 1
        where = top.path
    notes = walk.notes() + ([f"{more:,} more are not shown: give a pattern or a folder"] if more else [])
    if not lines:
        what = "nothing" if wanted.is_open else f"nothing that fits {pattern}"
        return f"[{', '.join([f'{where}: {what}', *notes])}]"
    head = [f"{where}: {counted(files, 'file')}, {counted(folders, 'folder')}", *notes]
    return "\n".join([f"[{', '.join(head)}]", *lines])


def _line(entry: Entry) -> str:
    if entry.is_folder:
        return f"{entry.path}/"
    if target := entry.leads_to:
        return f"{entry.path} -> {target}"
    return f"{entry.path}  {sized(entry.about.st_size)}" if entry.is_file else f"{entry.path}  (no regular file)"
