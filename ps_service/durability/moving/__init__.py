"""Named objects that move from one owner to another while trainers train."""
