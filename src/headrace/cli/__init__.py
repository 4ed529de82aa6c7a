"""The command line: thin verbs over the rest of headrace.

`main` is the entry point and turns errors into messages and exit codes; the other modules hold
one family of verbs each. Everything heavy is imported inside the verb that needs it, so that
`headrace --help` is instant. Data goes to standard output, everything else to standard error.
"""
