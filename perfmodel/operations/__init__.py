"""What a model does: lists of operations, each distinct shape priced once.

Parts of a model as matrix products, attention, streams and communication, each with its role.
How they close to a step is `training`.
"""
