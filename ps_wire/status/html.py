"""Tables of HTML, for notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape


def table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]], total: int) -> str:
    """A table without styles of its own: it follows those of the notebook. Nothing for no rows.

    Args:
        title: Its caption.
        heads: The heads of its columns.
        rows: The cells of each row.
        total: How many rows there are; those that are not among `rows` are counted below it.
    """
    if not rows:
        return ""
    more = f"<p>and {total - len(rows):,} more</p>" if total > len(rows) else ""
    head = "".join(f"<th>{escape(each)}</th>" for each in heads)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><caption>{title}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"
