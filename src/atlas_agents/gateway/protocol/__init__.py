"""Wire protocol: every method, event and error, declared once, and the documents generated from them.

Names are snake_case in Python and camelCase on the wire.
"""
