"""Views of the stores of several brokers together: stores, routes and assignments."""
