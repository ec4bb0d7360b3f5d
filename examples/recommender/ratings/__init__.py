"""Neural collaborative filtering: NeuMF or GMF on ratings, with tables of users and items over the owners."""
