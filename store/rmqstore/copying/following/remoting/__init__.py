"""A client of a broker's ordinary port: requests and answers, without any of the client's logic."""
