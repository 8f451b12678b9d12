"""Model providers behind one port: a provider turns a request into a stream of chunks."""
