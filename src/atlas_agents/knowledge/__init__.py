"""Knowledge and memories: documents and notes, searched by meaning and by keywords."""
