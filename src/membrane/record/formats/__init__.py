"""A record in the formats of others: OTLP and OCSF, Tracee's JSON, and one page of HTML."""
