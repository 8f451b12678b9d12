"""Kills turns at every point and checks what is left: `python -m crash` in the folder above says how."""
