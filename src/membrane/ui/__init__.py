"""What a person sees: arguments in, text and exit status out."""
