"""A fuzzer of owners: `make fuzz`. What it sends is made from recorded exchanges, and may be sent again."""
