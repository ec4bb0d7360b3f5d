"""A DLRM on click data: 26 embedding tables over two owners, and a dense part that every trainer has."""
