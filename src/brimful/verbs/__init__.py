"""What brimful does for a user, one file a verb: each ties measuring and deciding together and
returns a `Record`.
"""
