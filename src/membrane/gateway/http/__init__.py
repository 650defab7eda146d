"""HTTP/1 and HTTP/2 as values: messages, the judgement of a request, credentials.  No I/O."""
