"""The words of the wire, declared once: every method, event and error, and the documents made from them.

Nothing here opens a socket or runs an agent. Names are Python's here and camelCase on the wire.
"""
