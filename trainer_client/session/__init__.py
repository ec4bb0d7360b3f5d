"""Numbered requests of one trainer to one owner, over a stream that may break."""
