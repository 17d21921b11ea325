"""``rmqstore.copy``: a store into another folder, as a valid store that was closed.

``plan`` says which files are copied and how much of each; ``copier`` copies them, and continues
where an earlier attempt ended.
"""
