"""Programs for people: bilevel problems that come ready to use."""
