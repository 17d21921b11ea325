"""Where the parts of a store lie: from its root, from a part of it, or from a broker's file."""
