"""The state of a ``fit`` call: what it is made of, and how it is kept between two processes."""
